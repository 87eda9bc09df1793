//! What the weights of a run are good for: validation and detection from the file.

mod common;

use common::{Memory, data_set, tiny};
use train::{DetectOptions, TrainError, TrainOptions, ValOptions, detect, run, validate};

#[test]
fn best_weights_validate_as_in_the_run_and_detect_on_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 3);
    let trained = run(&TrainOptions { epochs: 1, ..tiny(folder.path(), &data, "t") }, &mut Memory::default()).unwrap();
    let weights = trained.best.unwrap();
    let options = ValOptions {
        data,
        weights: weights.clone(),
        batch_size: 6,
        imgsz: 64,
        project: folder.path().join("val"),
        save_json: true,
        save_txt: true,
        ..ValOptions::default()
    };
    let found = validate(&options, &mut Memory::default()).unwrap();
    assert_eq!(Some(found.metrics), trained.metrics);
    assert_eq!((found.images, found.instances, found.skipped), (3, 3, 0));
    assert!(found.table[0].contains("mAP50-95") && found.table[1].trim_start().starts_with("all"));
    assert!(found.metrics.losses.iter().all(|l| l.is_finite() && *l > 0.0));
    assert!(found.folder.join("predictions.json").is_file() && found.folder.join("val_batch0_pred.jpg").is_file());

    // Two pictures of one name, one that is broken, in a folder and by pattern.
    let pictures = folder.path().join("pictures");
    for sub in ["a", "b"] {
        std::fs::create_dir_all(pictures.join(sub)).unwrap();
        std::fs::copy(folder.path().join("images/val/val00.png"), pictures.join(sub).join("same.png")).unwrap();
    }
    std::fs::write(pictures.join("b/broken.jpg"), b"not a picture").unwrap();
    let raw = folder.path().join("raw.safetensors");
    let options = DetectOptions {
        weights,
        source: pictures.join("*/*").to_string_lossy().into_owned(),
        imgsz: vec![64],
        conf_thres: 0.0001,
        project: folder.path().join("detect"),
        save_txt: true,
        save_conf: true,
        json: true,
        save_raw: Some(raw.clone()),
        batch_size: 2,
        ..DetectOptions::default()
    };
    let mut memory = Memory::default();
    let found = detect(&options, &mut memory).unwrap();
    assert_eq!((found.images.len(), found.skipped), (2, 1));
    assert!(memory.warnings.iter().any(|w| w.contains("broken.jpg")));
    assert!(found.folder.join("same.png").is_file() && found.folder.join("same_2.png").is_file());
    assert!(found.folder.join("labels/same_2.txt").is_file() && found.json.unwrap().is_file());
    assert_eq!(found.images[0].boxes, found.images[1].boxes);
    let bytes = std::fs::read(&raw).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor("predictions").unwrap();
    assert_eq!(tensor.shape(), [2, 6, 64 + 16 + 4]);
    let first: f32 = f32::from_le_bytes(tensor.data()[..4].try_into().unwrap());
    assert!((-64.0..128.0).contains(&first), "centre x of the first anchor: {first}");
}

#[test]
fn missing_weights_are_named_before_a_missing_source() {
    let options =
        DetectOptions { weights: "yolov9-s.pt".into(), source: "horses.jpg".into(), ..DetectOptions::default() };
    let error = detect(&options, &mut Memory::default()).unwrap_err();
    assert!(matches!(&error, TrainError::Missing { path, .. } if path.ends_with("yolov9-s.pt")), "{error}");
    assert!(error.hint().unwrap().contains("best.safetensors"));
}

#[test]
fn weights_of_other_classes_are_refused_with_both_counts() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 1, noval: true, ..tiny(folder.path(), &data, "t") };
    let weights = run(&options, &mut Memory::default()).unwrap().last.unwrap();
    std::fs::write(&data, "train: images/train\nval: images/val\nnames: [red, blue, green]\n").unwrap();
    let options = ValOptions { data, weights, imgsz: 64, project: folder.path().join("val"), ..ValOptions::default() };
    let error = validate(&options, &mut Memory::default()).unwrap_err();
    assert!(matches!(error, TrainError::ClassCount { model: 2, data: 3, .. }), "{error}");
}
