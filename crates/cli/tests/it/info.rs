//! `yolov9 info`.

use crate::harness::Place;

#[test]
fn yolov9_s_row_by_row() {
    let ran = Place::new().run(&["info", "yolov9-s"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn a_pasted_path_means_the_built_in_model_and_an_existing_file_wins() {
    let place = Place::new();
    let built_in = place.run(&["info", "gelan-t", "--nc", "3", "--img", "320"]);
    assert_eq!(
        place.run(&["info", "models/detect/gelan-t.yaml", "--nc", "3", "--img-size", "320"]).stdout,
        built_in.stdout
    );
    place.write("models/detect/gelan-t.yaml", "nc: 80\nbackbone: []\nhead: []\n");
    let own = place.run(&["info", "models/detect/gelan-t.yaml"]);
    assert_eq!(own.code, Some(1), "{own:?}");
    assert!(own.stderr.starts_with("error: models/detect/gelan-t.yaml"), "{own:?}");
}

#[test]
fn an_unknown_model_lists_the_known_ones() {
    let ran = Place::new().run(&["info", "yolov9-xxl"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.labelled("error")[0].contains("yolov9-xxl"), "{ran:?}");
    assert!(ran.labelled("hint")[0].contains("yolov9-t, yolov9-s"), "{ran:?}");
}

#[test]
fn a_size_that_does_not_fit_names_one_that_does() {
    let ran = Place::new().run(&["info", "yolov9-t", "--img", "100"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("hint")[0].contains("128x128"), "{ran:?}");
}

#[test]
fn a_weight_file_that_is_cut_short_is_named() {
    let place = Place::new();
    place.write("cut.safetensors", [255, 0, 0, 0, 0, 0, 0, 0, b'{']);
    let ran = place.run(&["info", "cut.safetensors"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.starts_with("error: cut.safetensors: truncated"), "{ran:?}");
}
