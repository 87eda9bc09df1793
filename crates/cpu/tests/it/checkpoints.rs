//! Predictions of weights in the reference's own files, and of what they are converted to.

use crate::common::SINGLE;
use model::weights::{Weights, load};
use model::{Branches, ConvertOptions, convert, fit};
use parity::forward::{compare, predict};
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    testkit::fixture(&format!("checkpoints/{name}-micro-nc3.pt"))
}

fn read(name: &str) -> Weights {
    load(&file(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn checkpoints_predict_as_the_reference_does() {
    let expected = testkit::arrays("checkpoints/micro-forward.safetensors");
    // A plain state dict says nothing about its model: it gets the description of the checkpoint's module.
    let folder = std::env::temp_dir().join(format!("yolov9-micro-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let cfg = folder.join("yolov9-micro.yaml");
    std::fs::write(&cfg, read("checkpoint").meta.expect("a description").yaml).unwrap();
    for (name, key, cfg) in [
        ("stripped", "stripped", None),
        ("state_dict", "state_dict", Some(cfg.to_str().unwrap())),
        ("converted-gelan", "converted", None),
    ] {
        if !testkit::has(&format!("checkpoints/{name}-micro-nc3.pt")) {
            continue;
        }
        let fitted = fit(&read(name), cfg, name).unwrap_or_else(|e| panic!("{e}"));
        for (branch, got) in predict(&SINGLE, &fitted.model, &fitted.fold().unwrap(), Branches::All) {
            compare(&format!("{name} {branch}"), &got, &expected[&format!("{key}_pred_{branch}")], 0.05);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_averaged_weights_of_a_checkpoint_are_those_of_the_stripped_file() {
    let (whole, stripped) = (read("checkpoint"), read("stripped"));
    let fitted = |w: &Weights| fit(w, None, "checkpoint").unwrap().tensors;
    assert_eq!(fitted(&whole), fitted(&stripped));
    assert_eq!(whole.meta.unwrap().names, ["red", "green", "blue cup"]);
}

#[test]
fn converting_changes_no_prediction_of_the_main_branch() {
    let expected = &testkit::arrays("checkpoints/micro-forward.safetensors")["converted_pred_main"];
    let stripped = read("stripped");
    let whole = fit(&stripped, None, "stripped").unwrap();
    let before = predict(&SINGLE, &whole.model, &whole.fold().unwrap(), Branches::Main);
    for fold in [false, true] {
        let options = ConvertOptions { fold, ..ConvertOptions::default() };
        let converted = convert(&stripped, &options, "stripped").unwrap();
        assert_eq!(converted.meta.folded, fold);
        let again = Weights { meta: Some(converted.meta), tensors: converted.tensors, ..stripped.clone() };
        let again = fit(&again, None, "converted").unwrap();
        let after = predict(&SINGLE, &again.model, &again.fold().unwrap(), Branches::All);
        assert_eq!(after, before, "bit for bit");
        compare("converted", &after[0].1, expected, 0.05);
    }
}
