//! `yolov9 train` before its first batch: pasted commands and bad input.

use crate::harness::{Place, Ran};

/// The command of the reference's README, with another number of workers.
const PASTED: &str = "train_dual --workers 8 --device 0 --batch 64 --data data.yaml --img 640 \
    --cfg models/detect/yolov9-s.yaml --weights '' --name yolov9-s --hyp hyp.scratch-high.yaml --min-items 0 \
    --epochs 20 --close-mosaic 15";

fn pasted(place: &Place) -> Ran {
    let args: Vec<&str> = PASTED.split_whitespace().map(|word| word.trim_matches('\'')).collect();
    place.run(&args)
}

#[test]
fn a_pasted_command_without_its_data_names_the_missing_file() {
    let ran = pasted(&Place::new());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let first = ran.stdout.lines().next().unwrap();
    assert!(first.starts_with(concat!("yolov9 ", env!("CARGO_PKG_VERSION"), " · CPU (")), "{ran:?}");
    assert!(ran.labelled("warning")[0].starts_with("--device 0: "), "{ran:?}");
    assert_eq!(ran.labelled("error"), ["the data YAML data.yaml does not exist"]);
    assert_eq!(ran.labelled("hint").len(), 1, "{ran:?}");
}

#[test]
fn nothing_to_train_is_told() {
    let place = Place::new();
    place.data_set(1, "0 .5 .5 .2 .2\n");
    let ran = place.run(&["train", "--data", "set/data.yaml"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(ran.labelled("error"), ["--cfg: neither a model nor weights are given"]);
}

#[test]
fn a_class_that_does_not_exist_is_named_with_file_and_line() {
    let place = Place::new();
    place.data_set(2, "0 .5 .5 .2 .2\n7 .5 .5 .2 .2\n");
    let ran = place.run(&["train", "--data", "set/data.yaml", "--cfg", "yolov9-t"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = ran.labelled("error")[0];
    assert!(error.contains("set/labels/train/0.txt:2: class 7"), "{ran:?}");
    assert!(ran.labelled("hint")[0].contains("names"), "{ran:?}");
}

#[test]
fn yaml_mistakes_are_named_with_file_and_line() {
    let place = Place::new();
    place.write("data.yaml", "train: images\nval: images\nnames: [a\n");
    let ran = place.run(&["train", "--data", "data.yaml", "--cfg", "yolov9-t"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].starts_with("data.yaml:"), "{ran:?}");
}

#[test]
fn a_misspelt_hyper_parameter_gets_a_suggestion() {
    let place = Place::new();
    place.data_set(1, "0 .5 .5 .2 .2\n");
    place.write("hyp.yaml", "lr0: 0.01\nmosiac: 1.0\n");
    let ran = place.run(&["train", "--data", "set/data.yaml", "--cfg", "yolov9-t", "--hyp", "hyp.yaml"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.labelled("error"), ["hyp.yaml:2: unknown hyper-parameter 'mosiac'"]);
    assert_eq!(ran.labelled("hint"), ["did you mean 'mosaic'?"]);
}

#[test]
fn a_folder_without_labels_says_where_they_were_looked_for() {
    let place = Place::new();
    place.data_set(1, "");
    std::fs::remove_dir_all(place.path("set/labels")).unwrap();
    let ran = place.run(&["train", "--data", "set/data.yaml", "--cfg", "yolov9-t"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("set/labels/train/0.txt"), "{ran:?}");
}

#[test]
fn nothing_to_resume_is_told() {
    let ran = Place::new().run(&["train", "--resume"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.labelled("error").len(), 1, "{ran:?}");
    assert_eq!(ran.labelled("hint").len(), 1, "{ran:?}");
}

/// `ulimit -v` is a shell's, and what it leaves can be read on Linux only.
#[cfg(target_os = "linux")]
#[test]
fn a_pasted_command_without_the_memory_for_it_names_a_batch_that_fits() {
    let place = Place::new();
    place.data_set(8, "0 .5 .5 .2 .2\n");
    let args = PASTED.replace("--data data.yaml", "--data set/data.yaml");
    let binary = place.command(&[]).get_program().to_string_lossy().into_owned();
    let mut command = std::process::Command::new("sh");
    let script = format!("ulimit -v 1300000 && exec {binary} {args} --threads 2");
    command.args(["-c", &script]).current_dir(place.path("")).stdin(std::process::Stdio::null());
    let ran = crate::harness::ran(command);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let error = ran.labelled("error")[0];
    assert!(error.starts_with("training needs ") && error.contains(" are available"), "{ran:?}");
    let hint = ran.labelled("hint")[0];
    assert!(hint.contains(" fits, with ") || hint.contains("lower --img"), "{ran:?}");
    assert!(!place.path("runs").exists(), "{ran:?}");
}
