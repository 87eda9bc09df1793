//! Command lines that cannot be obeyed end with 2 and say why; harmless flags of the reference are ignored aloud.

use crate::harness::Place;

fn wrong(args: &[&str]) -> String {
    let ran = Place::new().run(args);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(!ran.stdout.contains("Results saved"), "{ran:?}");
    ran.stderr
}

#[test]
fn unknown_commands_flags_and_values() {
    for (args, expected) in [
        (["tarin", "--epochs", "1"].as_slice(), "unrecognized subcommand 'tarin'"),
        (&["train", "--epochz", "1"], "unexpected argument '--epochz'"),
        (&["train", "--epochs", "many"], "invalid value 'many' for '--epochs <N>'"),
        (&["train", "--optimizer", "Adagrad"], "possible values: SGD, Adam, AdamW, LION"),
        (&["train", "--memory-budget", "10parsec"], "'parsec' is no unit of bytes"),
        (&["train", "--partners", "window:0"], "'window:0' is neither fresh nor window:N"),
        (&["train", "--lr-scale", "sqrt"], "possible values: none, linear"),
        (&["train", "--gradient-accumulation-steps", "-1"], "unexpected argument '-1'"),
        (&["train", "--label-smoothing", "much"], "invalid value 'much' for '--label-smoothing <E>'"),
        (&["train", "--workers", "many"], "'many' is neither a number nor auto"),
        (&["info"], "<MODEL>"),
    ] {
        let stderr = wrong(args);
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}

#[test]
fn a_misspelt_command_gets_the_name_suggested_and_not_its_aliases() {
    for (typed, meant) in [("trian", "train"), ("trainn", "train"), ("vla", "val"), ("detct", "detect")] {
        let stderr = wrong(&[typed]);
        assert!(stderr.contains(&format!("'{meant}'")), "{stderr}");
        assert!(!stderr.contains(".py") && !stderr.contains("_dual"), "{stderr}");
    }
}

#[test]
fn names_that_no_run_can_have_are_wrong_usage_for_all_commands() {
    for command in ["val", "detect"] {
        let ran = Place::new().run(&[command, "--weights", "none.safetensors", "--name", "../up"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.labelled("error")[0].starts_with("--name: \"../up\" cannot be the name of a run: "), "{ran:?}");
    }
}

#[test]
fn no_command_shows_the_help() {
    assert!(wrong(&[]).contains("Usage: yolov9"));
}

#[test]
fn refused_flags_say_why_and_what_to_do_instead() {
    for (args, reason) in [
        (["train", "--evolve"].as_slice(), "--evolve: hyper-parameters are not searched for"),
        (&["train", "--evolve", "300"], "--evolve: hyper-parameters are not searched for"),
        (&["train", "--quad"], "--quad: batches of quadruple size are not built"),
        (&["train", "--bucket", "gs://b"], "--bucket: runs are not uploaded"),
        (&["val", "--augment"], "--augment: test-time augmentation is not supported"),
        (&["val", "--task", "study"], "--task study: sweeps over sizes and thresholds are not supported"),
        (&["val", "--weights", "a.pt", "b.pt"], "--weights: ensembles of several files are not supported"),
        (&["detect", "--weights", "a.pt", "b.pt"], "--weights: ensembles of several files are not supported"),
        (&["detect", "--weights", ""], "--weights: no file is named"),
        (&["detect", "--save-crop"], "--save-crop: boxes are not cut out"),
        (&["info", "yolov9-s", "--threads", "0"], "--threads: at least one thread is needed"),
        (&["info", "yolov9-t", "--img", "10000000"], "--img: 10000000 must be between 1 and 16384"),
        (&["info", "yolov9-t", "--img", "640", "0"], "--img: 0 must be between 1 and 16384"),
        (&["info", "a.safetensors", "--nc", "3"], "--nc: weights have the number of classes"),
    ] {
        let stderr = wrong(args);
        assert!(stderr.starts_with(&format!("error: {reason}")), "{args:?}: {stderr}");
        assert!(stderr.contains("\nhint: "), "{args:?}: {stderr}");
    }
}

#[test]
fn harmless_flags_are_ignored_with_a_warning() {
    let args = [
        "train_dual",
        "--local_rank",
        "-1",
        "--sync-bn",
        "--noautoanchor",
        "--entity",
        "me",
        "--upload_dataset",
        "--bbox_interval",
        "-1",
        "--artifact_alias",
        "latest",
        "--data",
        "none.yaml",
    ];
    let ran = Place::new().run(&args);
    let warnings = ran.labelled("warning");
    for flag in ["local_rank", "sync-bn", "noautoanchor", "entity", "upload_dataset", "bbox_interval", "artifact_alias"]
    {
        let start = format!("--{flag} is ignored: ");
        assert!(warnings.iter().any(|w| w.starts_with(&start)), "{flag}: {ran:?}");
    }
    // What fails is the missing data set, not the flags.
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn options_out_of_range_are_wrong_usage() {
    let place = Place::new();
    place.data_set(1, "0 .5 .5 .2 .2\n");
    let base = ["train", "--data", "set/data.yaml", "--cfg", "yolov9-t"];
    let long = "long".repeat(60);
    for more in [
        ["--epochs", "0"],
        ["--batch", "0"],
        ["--batch-size", "-2"],
        ["--img", "0"],
        ["--freeze", "999"],
        ["--label-smoothing", "1"],
        ["--gradient-accumulation-steps", "0"],
        ["--lr-base-batch", "32"],
        ["--name", ""],
        ["--name", ".."],
        ["--name", "/"],
        ["--name", &long],
    ] {
        let ran = place.run(&[base.as_slice(), &more].concat());
        assert_eq!(ran.code, Some(2), "{more:?}: {ran:?}");
        assert_eq!(ran.labelled("error").len(), 1, "{more:?}: {ran:?}");
    }
}
