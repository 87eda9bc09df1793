//! `yolov9 plan`.

use crate::harness::Place;

#[test]
fn all_cards_for_yolov9_s() {
    let ran = Place::new().run(&["plan", "--cfg", "yolov9-s", "--batch", "64"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn a_batch_that_does_not_fit_is_an_error_with_what_would() {
    let place = Place::new();
    let ran = place.run(&["plan", "--cfg", "yolov9-s", "--batch", "128", "--gpu", "24GiB"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].starts_with("batch 128 needs "), "{ran:?}");
    let hint = ran.labelled("hint")[0];
    let budget = hint.split_once("--memory-budget ").expect("a budget").1.split(' ').next().expect("a number");
    let kept = place.run(&["plan", "--cfg", "yolov9-s", "--batch", "128", "--gpu", "24GiB", "--memory-budget", budget]);
    assert_eq!(kept.code, Some(0), "{kept:?}");
    let batch = hint.split_once("--batch ").expect("a batch").1.split(' ').next().expect("a number");
    assert_eq!(place.run(&["plan", "--cfg", "yolov9-s", "--batch", batch, "--gpu", "24GiB"]).code, Some(0));
}

#[test]
fn a_tensor_above_its_limit_names_the_largest_batch() {
    let ran = Place::new().run(&["plan", "--cfg", "yolov9-s", "--batch", "700"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("more than 2^31 elements"), "{ran:?}");
    assert_eq!(ran.labelled("hint"), ["--batch 296 is the most"]);
}

#[test]
fn several_cards_share_the_batch() {
    let ran = Place::new().run(&["plan", "--batch", "64", "--devices", "4", "--gpu", "H200"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("batch 64 on 4 cards, 16 each"), "{ran:?}");
    assert!(ran.stdout.contains("communication"), "{ran:?}");
}

#[test]
fn names_and_numbers_that_cannot_be_planned_are_wrong_usage() {
    for (args, error, hint) in [
        (["--gpu", "RTX 4099"].as_slice(), "--gpu RTX 4099: no card of that name", "did you mean RTX 4090"),
        (&["--gpu", "Radeon VII"], "--gpu Radeon VII: no card of that name", "known are RTX 4060"),
        (&["--batch", "0"], "--batch: 0 must be between", "yolov9 plan --help"),
        (&["--batch", "10", "--devices", "4"], "--batch 10 does not divide among 4 GPUs", "--batch 12 does"),
    ] {
        let ran = Place::new().run(&[&["plan"], args].concat());
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.labelled("error")[0].starts_with(error), "{ran:?}");
        assert!(ran.labelled("hint")[0].contains(hint), "{ran:?}");
    }
}

#[test]
fn json_and_picture_are_written() {
    let place = Place::new();
    let args = ["plan", "--cfg", "gelan-t", "--img", "320", "--json", "plan.json", "--picture", "plan.png"];
    assert_eq!(place.run(&args).code, Some(0));
    let json = std::fs::read_to_string(place.path("plan.json")).expect("a file");
    assert!(json.contains("\"total_bytes\"") && json.contains("\"images_per_second\""), "{json}");
    assert!(std::fs::read(place.path("plan.png")).expect("a file").starts_with(b"\x89PNG"));
}
