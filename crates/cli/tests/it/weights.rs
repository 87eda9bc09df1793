//! Weights in and out of other programs: `--cfg`, `convert-weights`, and what their messages say.

use crate::harness::{Place, photographs};
use model::weights::{WeightsMeta, load, save};
use model::{Model, init};

/// Random weights of a model under the reference's names, and nothing about the model.
fn write_plain(place: &Place, name: &str, cfg: &str, nc: usize) {
    let model = Model::load(cfg, Some(nc)).unwrap();
    model::pytorch::save_state_dict(&place.path(name), &init(&model, 0).unwrap(), false).unwrap();
}

/// Two photographs.
fn pictures(place: &Place) {
    for (i, jpeg) in photographs("val").iter().take(2).enumerate() {
        place.write(&format!("pictures/{i}.jpg"), std::fs::read(jpeg).unwrap());
    }
}

/// The only tensor of a `--save-raw` file, with its shape.
fn raw(place: &Place, name: &str) -> (Vec<usize>, Vec<f32>) {
    let weights = load(&place.path(name)).unwrap();
    let (_, tensor) = weights.tensors.iter().next().unwrap();
    assert_eq!(weights.tensors.len(), 1);
    (tensor.dims.clone(), tensor.values.clone())
}

#[test]
fn a_state_dict_with_cfg_predicts_like_the_described_file_it_becomes() {
    let place = Place::new();
    pictures(&place);
    write_plain(&place, "plain.pt", "yolov9-m", 5);
    let detect = |weights: &str, cfg: &[&str], out: &str| {
        let mut args = vec!["detect", "--weights", weights, "--source", "pictures", "--img", "64", "--batch", "2"];
        args.extend(cfg);
        args.extend(["--save-raw", out, "--nosave"]);
        place.run(&args)
    };
    let ran = detect("plain.pt", &[], "none.safetensors");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.labelled("hint")[0].contains("--cfg"), "{ran:?}");
    let ran = detect("plain.pt", &["--cfg", "yolov9-m"], "plain.safetensors");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran =
        place.run(&["convert-weights", "--weights", "plain.pt", "--cfg", "yolov9-m", "--output", "g.safetensors"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("main branch"), "{ran:?}");
    let ran = detect("g.safetensors", &[], "converted.safetensors");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let (shape, plain) = raw(&place, "plain.safetensors");
    assert_eq!(shape, [2, 4 + 5, 8 * 8 + 4 * 4 + 2 * 2]);
    assert_eq!((shape, plain), raw(&place, "converted.safetensors"));
}

#[test]
fn converted_state_dicts_come_back_unchanged() {
    let place = Place::new();
    let model = Model::load("yolov9-t", Some(2)).unwrap();
    let tensors = init(&model, 0).unwrap();
    let meta = WeightsMeta::of(&model, vec!["cell".to_owned(), "other".to_owned()], false);
    save(&place.path("w.safetensors"), &tensors, &meta).unwrap();
    let ran = place.run(&["convert-weights", "--weights", "w.safetensors", "--keep-aux", "--output", "out.pt"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("--cfg yolov9-t"), "{ran:?}");
    assert_eq!(load(&place.path("out.pt")).unwrap().tensors, tensors);
    // Class names are kept where the file can hold them.
    let ran = place.run(&["convert-weights", "--weights", "w.safetensors"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(load(&place.path("w-converted.safetensors")).unwrap().meta.unwrap().names, ["cell", "other"]);
}

#[test]
fn weights_are_never_written_over_by_their_conversion() {
    let place = Place::new();
    write_plain(&place, "w.pt", "gelan-t", 1);
    let before = std::fs::read(place.path("w.pt")).unwrap();
    for output in ["w.pt", "./w.pt", "w.onnx", "w"] {
        let ran = place.run(&["convert-weights", "--weights", "w.pt", "--cfg", "gelan-t", "--output", output]);
        assert_eq!(ran.code, Some(2), "{output}: {ran:?}");
    }
    assert!(std::fs::read(place.path("w.pt")).unwrap() == before);
}

#[test]
fn damaged_weights_are_refused_by_every_command() {
    let place = Place::new();
    pictures(&place);
    place.data_set(2, "0 0.5 0.5 0.2 0.2\n");
    write_plain(&place, "w.pt", "yolov9-t", 2);
    let whole = std::fs::read(place.path("w.pt")).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    let pickle = b"cos\nsystem\n(S'touch owned'\ntR.".to_vec();
    for (name, bytes) in [("short.pt", &whole[..whole.len() / 3]), ("flipped.pt", &flipped), ("pickle.pt", &pickle)] {
        place.write(name, bytes);
        for args in [
            &["detect", "--source", "pictures", "--cfg", "yolov9-t"][..],
            &["val", "--data", "set/data.yaml", "--cfg", "yolov9-t"],
            &["train", "--data", "set/data.yaml", "--cfg", "yolov9-t", "--epochs", "1"],
            &["convert-weights", "--output", "out.pt"],
        ] {
            let ran = place.run(&[args, &["--weights", name]].concat());
            assert_eq!(ran.code, Some(1), "{name} {args:?}: {ran:?}");
            assert!(ran.labelled("error")[0].contains(name), "{name} {args:?}: {ran:?}");
        }
    }
    assert!(!place.path("owned").exists() && !place.path("out.pt").exists());
}
