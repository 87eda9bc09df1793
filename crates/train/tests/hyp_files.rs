//! Hyper-parameter files: what is read, what is refused, and with which words.

use std::path::Path;
use train::TrainError;
use train::hyp::Hyp;

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
