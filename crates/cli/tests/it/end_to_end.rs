//! Whole commands on real photographs, as small as they go.

use crate::harness::{Place, photographs};
use std::path::Path;

/// Label rows that are right, wrong, and wrong again.
const ROWS: &str = "0 .5 .5 .4 .4\n1 .3 .3 .2\n0 .7 .7 .2 .2\n";

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_path_buf()];
    while let Some(folder) = waiting.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => waiting.push(path),
                path => found.push((path.display().to_string(), std::fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn train_resume_validate_and_detect() {
    let place = Place::new();
    place.data_set(2, ROWS);
    place.write("set/images/train/broken.jpg", b"\xFF\xD8\xFF\xE0 this is no picture");
    place.write("set/labels/train/broken.txt", "0 .5 .5 .4 .4\n");
    let before = files(&place.path("set"));

    let base = ["train", "--data", "set/data.yaml", "--cfg", "gelan-t.yaml", "--hyp", "hyp.demo.yaml", "--img", "64"];
    let trained = place.run(&[base.as_slice(), &["--batch", "2", "--epochs", "1", "--name", "tiny"]].concat());
    assert_eq!(trained.code, Some(0), "{trained:?}");
    let warnings = trained.labelled("warning");
    assert!(warnings.iter().any(|w| w.contains("set/labels/train/0.txt:2: ")), "{trained:?}");
    assert!(warnings.iter().any(|w| w.contains("set/images/train/broken.jpg: ")), "{trained:?}");
    assert_eq!(trained.stdout.lines().last(), Some("Results saved to runs/train/tiny"));
    // Without a terminal an epoch is one line.
    assert_eq!(trained.stdout.lines().filter(|l| l.trim_start().starts_with("0/0 ")).count(), 1, "{trained:?}");
    for name in ["weights/last.safetensors", "results.csv", "hyp.yaml", "opt.yaml"] {
        assert!(place.path("runs/train/tiny").join(name).is_file(), "{name}");
    }

    let finished = place.run(&["train", "--resume", "runs/train/tiny"]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    assert!(finished.labelled("hint")[0].contains("--epochs"), "{finished:?}");
    let resumed = place.run(&["train", "--resume", "runs/train/tiny", "--epochs", "2"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    let rows = std::fs::read_to_string(place.path("runs/train/tiny/results.csv")).unwrap();
    assert_eq!(rows.lines().count(), 3, "{rows}");

    let weights = "runs/train/tiny/weights/last.safetensors";
    let validated = place.run(&["val", "--data", "set/data.yaml", "--weights", weights, "--img", "64"]);
    assert_eq!(validated.code, Some(0), "{validated:?}");
    assert!(validated.stdout.contains("mAP50-95"), "{validated:?}");
    assert_eq!(validated.stdout.lines().last(), Some("Results saved to runs/val/exp"));

    let found = place.run(&[
        "detect_dual",
        "--weights",
        weights,
        "--source",
        "set/images/val",
        "--img",
        "64",
        "--conf",
        "0.001",
        "--save-txt",
        "--json",
        "--device",
        "cpu",
    ]);
    assert_eq!(found.code, Some(0), "{found:?}");
    assert_eq!(found.stdout.lines().last(), Some("Results saved to runs/detect/exp"));
    for picture in ["0.jpg", "1.jpg"] {
        assert!(place.path("runs/detect/exp").join(picture).is_file(), "{picture}");
    }

    // Nothing of the user's was changed; a cache of the scan may lie beside it.
    let after = files(&place.path("set"));
    assert!(before.iter().all(|file| after.contains(file)));
}

#[test]
fn the_demo_trains_and_draws() {
    let place = Place::new();
    let ran = place.run(&["demo", "--out", "demo", "--epochs", "1", "--imgsz", "64"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().last(), Some("Results saved to demo"));
    let pictures = std::fs::read_dir(place.path("demo/detect")).unwrap().flatten();
    let pictures = pictures.filter(|e| e.path().extension().is_some_and(|x| x == "jpg")).count();
    assert_eq!(pictures, photographs("val").len());
    assert!(ran.stdout.contains(&format!("{pictures} pictures with")), "{ran:?}");
}

#[test]
fn the_demo_overwrites_nothing() {
    let place = Place::new();
    place.write("demo/mine.txt", "mine");
    let ran = place.run(&["demo", "--out", "demo"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.labelled("error"), ["demo is not empty"]);
}
