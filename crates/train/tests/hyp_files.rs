//! Hyper-parameter files: what is read, what is refused, and with which words.

use std::path::Path;
use train::TrainError;
use train::hyp::{EMBEDDED, Hyp};

fn refuse(text: &str) -> (String, Option<String>) {
    let error = Hyp::parse("my.yaml", text).expect_err(text);
    (error.to_string(), error.hint())
}

#[test]
fn embedded_file_of_a_missing_path_is_the_default() {
    let loaded = Hyp::load(Path::new("data/hyps/hyp.scratch-high.yaml")).unwrap();
    assert_eq!(loaded.hyp, Hyp::default());
}

#[test]
fn demo_file_lifts_warmup_and_nominal_batch() {
    let hyp = Hyp::load(Path::new("hyp.demo.yaml")).unwrap().hyp;
    assert_eq!((hyp.warmup_min_iterations, hyp.nominal_batch, hyp.mosaic), (0.0, 8.0, 0.0));
}

#[test]
fn milder_files_differ_from_the_default_in_their_augmentation_only() {
    let low = Hyp::load(Path::new("data/hyps/hyp.scratch-low.yaml")).unwrap();
    assert_eq!(low.hyp, Hyp { scale: 0.5, mixup: 0.0, copy_paste: 0.0, ..Hyp::default() });
    let medium = Hyp::load(Path::new("hyp.scratch-med.yaml")).unwrap();
    assert_eq!(medium.hyp, Hyp { mixup: 0.1, copy_paste: 0.0, ..Hyp::default() });
    for (name, text) in EMBEDDED {
        let (hyp, absent) = Hyp::parse(name, text).unwrap();
        assert_eq!((absent, hyp.unusual_gains()), (Vec::new(), Vec::new()), "{name}");
        assert!(text.starts_with("# Hyper-parameters for "), "{name} says what it is for");
    }
}

#[test]
fn gains_of_other_trainers_are_warned_about_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hyp.yaml");
    let warnings = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Hyp::load(&path).unwrap().warnings
    };
    let expected = "box: 0.05 is a YOLOv5 gain; YOLOv9's loss expects about 7.5: boxes will hardly be learned";
    // The other gains of that file are near enough, and what only heads with anchors use is nobody's business.
    assert_eq!(warnings("box: 0.05\ncls: 0.3\nobj: 1.0\nobj_pw: 2.0\niou_t: 0.9\nanchor_t: 4.0\n"), [expected]);
    assert!(warnings("box: 1.875\ncls: 2.0\ndfl: 6.0\n").is_empty(), "just within four times");
    let far = warnings("box: 1.87\ncls: 2.1\ndfl: 0\n");
    assert_eq!(far.len(), 3, "{far:?}");
    assert!(far[0].starts_with("box: 1.87 is far below the 7.5 "), "{far:?}");
    assert!(far[1].starts_with("cls: 2.1 is far above the 0.5 "), "{far:?}");
    assert!(far[2].starts_with("dfl: 0 turns this part of the loss off"), "{far:?}");
}

#[test]
fn the_label_smoothing_that_runs_of_the_reference_store_is_read() {
    let (hyp, absent) = Hyp::parse("hyp.yaml", "label_smoothing: 0.1\n").unwrap();
    assert_eq!(hyp.label_smoothing, 0.1);
    assert!(!absent.contains(&"label_smoothing"));
    assert!(!Hyp::parse("hyp.yaml", "lr0: 0.1\n").unwrap().1.contains(&"label_smoothing"), "few would expect it");
    assert!(refuse("label_smoothing: 1.0\n").0.ends_with("must be at least 0 and below 1"));
}

#[test]
fn missing_file_names_the_embedded_ones() {
    let error = Hyp::load(Path::new("nowhere/mine.yaml")).unwrap_err();
    assert!(matches!(error, TrainError::Missing { .. }));
    assert!(error.hint().unwrap().contains("hyp.scratch-high.yaml"));
}

#[test]
fn gains_in_the_file_are_obeyed() {
    let (hyp, absent) = Hyp::parse("my.yaml", "box: 5\ncls: 1e-1\ndfl: 2.5\n").unwrap();
    assert_eq!((hyp.box_gain, hyp.cls, hyp.dfl), (5.0, 0.1, 2.5));
    assert!(absent.contains(&"lr0") && !absent.contains(&"box"));
}

#[test]
fn unknown_key_is_refused_with_the_nearest_known_one() {
    let (message, hint) = refuse("lr_0: 0.1\n");
    assert_eq!(message, "my.yaml:1: unknown hyper-parameter 'lr_0'");
    assert_eq!(hint.unwrap(), "did you mean 'lr0'?");
}

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    assert_eq!(refuse("lr0: -1\n").0, "my.yaml:1: lr0 = -1: must be between 0 and 100");
    assert_eq!(refuse("momentum: 1.0\n").0, "my.yaml:1: momentum = 1: must be at least 0 and below 1");
    for text in ["lr0: .nan", "box: .inf", "mosaic: 1.5", "nominal_batch: 2.5", "scale: 1.0", "fliplr: -.inf"] {
        assert!(matches!(Hyp::parse("my.yaml", text), Err(TrainError::HypRange { .. })), "{text}");
    }
}

#[test]
fn text_that_is_no_map_of_numbers_is_refused_with_its_line() {
    for text in ["lr0: fast\n", "- 1\n- 2\n", "lr0: 0.1\nlr0: 0.2\n", "lr0: [1, 2]\n", "{"] {
        assert!(matches!(Hyp::parse("my.yaml", text), Err(TrainError::HypFile { .. })), "{text}");
    }
    assert!(refuse("lrf: 0.1\nlr0: fast\n").0.starts_with("my.yaml:2: "));
}

#[test]
fn written_file_reads_back_equal() {
    let hyp = Hyp { lr0: 0.1 + 0.2, fl_gamma: 1.5, mosaic: 0.0, nominal_batch: 16.0, ..Hyp::default() };
    assert_eq!(Hyp::parse("hyp.yaml", &hyp.to_yaml()).unwrap(), (hyp, Vec::new()));
}
