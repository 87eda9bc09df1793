//! Help texts as they appear.

use crate::harness::Place;

fn help(args: &[&str]) -> String {
    let ran = Place::new().run(args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    ran.stdout
}

#[test]
fn overview() {
    insta::assert_snapshot!(help(&["--help"]));
}

#[test]
fn train() {
    insta::assert_snapshot!(help(&["train", "--help"]));
}

#[test]
fn val() {
    insta::assert_snapshot!(help(&["val", "--help"]));
}

#[test]
fn detect() {
    insta::assert_snapshot!(help(&["detect", "--help"]));
}

#[test]
fn info() {
    insta::assert_snapshot!(help(&["info", "--help"]));
}

#[test]
fn demo() {
    insta::assert_snapshot!(help(&["demo", "--help"]));
}

#[test]
fn the_reference_names_of_a_command_show_the_same_help() {
    for (command, names) in [
        ("train", ["train_dual", "train_triple", "train.py", "train_dual.py"].as_slice()),
        ("val", &["val_dual", "val_triple", "val.py", "val_dual.py"]),
        ("detect", &["detect_dual", "detect.py", "detect_dual.py"]),
    ] {
        let expected = help(&[command, "--help"]);
        for name in names {
            assert_eq!(help(&[name, "--help"]), expected, "{name}");
        }
    }
}

#[test]
fn version() {
    assert_eq!(help(&["--version"]), format!("yolov9 {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn convert_weights() {
    insta::assert_snapshot!(help(&["convert-weights", "--help"]));
}

#[test]
fn env() {
    insta::assert_snapshot!(help(&["env", "--help"]));
}

#[test]
fn selftest() {
    insta::assert_snapshot!(help(&["selftest", "--help"]));
}

#[test]
fn bench_step() {
    insta::assert_snapshot!(help(&["bench", "step", "--help"]));
}

#[test]
fn bench_data() {
    insta::assert_snapshot!(help(&["bench", "data", "--help"]));
}

#[test]
fn synth() {
    insta::assert_snapshot!(help(&["synth", "--help"]));
}
