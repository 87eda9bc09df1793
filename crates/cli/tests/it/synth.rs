//! `yolov9 synth`, and `yolov9 bench data` on what it drew.

use crate::harness::Place;

#[test]
fn synth_draws_a_set_that_bench_data_measures() {
    let place = Place::new();
    let ran = place.run(&["synth", "--out", "set", "--images", "12", "--val", "2", "--classes", "3"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.starts_with("12 pictures for training and 2 for validation"), "{ran:?}");
    let files = |folder: &str| std::fs::read_dir(place.path(folder)).expect("a folder").count();
    assert_eq!(
        ["images/train", "labels/train", "images/val", "labels/val"].map(|f| files(&format!("set/{f}"))),
        [12, 12, 2, 2]
    );

    let line = "bench data set/data.yaml --img 320 --batch 4 --workers 2,1 --seconds 0 --json data.json";
    let ran = place.run(&line.split(' ').collect::<Vec<_>>());
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    for start in [
        "set/data.yaml: 12 images",
        "scan ",
        "read, warm ",
        "decode ",
        "resize ",
        "render ",
        "loader ",
        "upload ",
        "--workers auto: ",
    ] {
        assert!(ran.stdout.lines().any(|line| line.starts_with(start)), "{start}: {ran:?}");
    }
    assert_eq!(ran.stdout.lines().filter(|line| line.starts_with("loader ")).count(), 2, "{ran:?}");
    let text = std::fs::read_to_string(place.path("data.json")).expect("the report");
    assert!(text.contains("\"images_per_second\"") && text.contains("\"stage\": \"loader\""), "{text}");
}

#[test]
fn synth_refuses_a_folder_with_anything_in_it() {
    let place = Place::new();
    std::fs::create_dir(place.path("set")).expect("a folder");
    std::fs::write(place.path("set/mine.txt"), "mine").expect("a file");
    let ran = place.run(&["synth", "--out", "set", "--images", "1"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("is not empty") && ran.labelled("hint")[0].contains("--out"), "{ran:?}");
    assert_eq!(std::fs::read_dir(place.path("set")).expect("a folder").count(), 1);
}

#[test]
fn numbers_out_of_range_are_wrong_usage() {
    let place = Place::new();
    for line in [
        "synth --out set --images 0",
        "synth --out set --images 1 --classes 1001",
        "bench data data.yaml --workers 0",
        "bench data data.yaml --img 0",
        "bench data data.yaml --batch 0",
        "bench data data.yaml --seconds nan",
    ] {
        let ran = place.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!((ran.code, ran.labelled("error").len()), (Some(2), 1), "{line}: {ran:?}");
    }
    assert!(!place.path("set").exists());
}

#[test]
fn bench_data_without_its_yaml_names_the_file() {
    let ran = Place::new().run(&["bench", "data", "nowhere.yaml"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("error")[0].contains("nowhere.yaml"), "{ran:?}");
}
