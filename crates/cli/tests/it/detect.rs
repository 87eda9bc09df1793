//! `yolov9 detect` and `yolov9 val` before they compute: missing weights first, then a missing source.

use crate::harness::{Place, photographs};
use model::weights::{WeightsMeta, save};
use model::{Model, init};

const PASTED: &str = "detect_dual --source './data/images/horses.jpg' --img 640 --device 0 --weights './yolov9-s.pt' \
    --name yolov9_s_640_detect";

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().map(|word| word.trim_matches('\'')).collect()
}

/// Random weights of yolov9-t for two classes.
fn write_weights(place: &Place, name: &str) {
    let model = Model::load("yolov9-t", Some(2)).unwrap();
    let meta = WeightsMeta::of(&model, vec!["cell".to_owned(), "other".to_owned()], false);
    save(&place.path(name), &init(&model, 0).unwrap(), &meta).unwrap();
}

#[test]
fn a_pasted_command_names_missing_weights_first_and_where_such_files_come_from() {
    let ran = Place::new().run(&words(PASTED));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = ran.labelled("error")[0];
    assert!(error.contains("./yolov9-s.pt") && error.contains("does not exist"), "{ran:?}");
    assert!(!ran.stderr.contains("horses.jpg"), "{ran:?}");
    assert!(ran.labelled("hint")[0].contains("train"), "{ran:?}");
}

#[test]
fn with_weights_a_missing_source_is_named() {
    let place = Place::new();
    write_weights(&place, "w.safetensors");
    let ran = place.run(&["detect", "--weights", "w.safetensors", "--source", "./data/images/horses.jpg"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.labelled("error"), ["the source ./data/images/horses.jpg does not exist"]);
    assert_eq!(ran.labelled("hint").len(), 1, "{ran:?}");
}

#[test]
fn cameras_and_addresses_are_refused_with_the_kinds_that_are_accepted() {
    let place = Place::new();
    write_weights(&place, "w.safetensors");
    for source in ["0", "rtsp://camera/1", "https://example.com/a.jpg"] {
        let ran = place.run(&["detect", "--weights", "w.safetensors", "--source", source]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.labelled("hint")[0].contains("folder"), "{ran:?}");
    }
}

#[test]
fn thresholds_outside_of_their_range_are_wrong_usage() {
    let place = Place::new();
    write_weights(&place, "w.safetensors");
    let photograph = photographs("val")[0].display().to_string();
    for threshold in [["--conf", "1.5"], ["--iou", "NaN"], ["--conf-thres", "-0.1"], ["--classes", "2"]] {
        let threshold = [format!("{}={}", threshold[0], threshold[1])];
        let ran = place.run(&["detect", "--weights", "w.safetensors", "--source", &photograph, &threshold[0]]);
        assert_eq!(ran.code, Some(2), "{threshold:?}: {ran:?}");
    }
}

#[test]
fn validation_names_missing_weights() {
    let ran = Place::new().run(&[
        "val_dual",
        "--data",
        "data.yaml",
        "--weights",
        "best.pt",
        "--batch",
        "32",
        "--conf",
        "0.001",
    ]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("best.pt"), "{ran:?}");
}
