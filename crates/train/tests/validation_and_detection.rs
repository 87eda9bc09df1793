//! What the weights of a run are good for: validation and detection from the file.

mod common;

use common::{Memory, data_set, tiny};
use serde_json::json;
use std::path::{Path, PathBuf};
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
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let images: serde_json::Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["images"]).unwrap();
    let about = &images[1];
    assert!(about["image"].as_str().unwrap().ends_with("same.png"), "{images}");
    assert_eq!((&about["original_hw"], &about["network_hw"]), (&json!([56, 72]), &json!([64, 64])));
    assert!((about["pad_xy"][1].as_f64().unwrap() - (64.0 - 56.0 * 64.0 / 72.0) / 2.0).abs() < 1e-9, "{images}");
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

/// Random weights of the test's model, and the data set.
fn untrained(folder: &Path, val: usize) -> (PathBuf, PathBuf) {
    let data = data_set(folder, 1, val);
    let cfg = tiny(folder, &data, "untrained").cfg.unwrap();
    let model = model::Model::load(&cfg.to_string_lossy(), Some(2)).unwrap();
    let meta = model::weights::WeightsMeta::of(&model, vec!["red".to_owned(), "blue".to_owned()], false);
    let path = folder.join("untrained.safetensors");
    model::weights::save(&path, &model::init(&model, 0).unwrap(), &meta).unwrap();
    (data, path)
}

#[test]
fn predictions_of_images_that_share_a_stem_have_ids_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (data, weights) = untrained(folder.path(), 1);
    let images = folder.path().join("images/val");
    for sub in ["a", "b"] {
        std::fs::create_dir(images.join(sub)).unwrap();
        std::fs::copy(images.join("val00.png"), images.join(sub).join("7.png")).unwrap();
    }
    std::fs::copy(images.join("val00.png"), images.join("b/007.png")).unwrap();
    let project = folder.path().join("val");
    let options = ValOptions {
        data,
        weights,
        imgsz: 64,
        conf_thres: 0.0,
        max_det: 2,
        save_json: true,
        project,
        ..ValOptions::default()
    };
    let found = validate(&options, &mut Memory::default()).unwrap();
    let text = std::fs::read_to_string(found.folder.join("predictions.json")).unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    let mut ids: Vec<String> = rows.iter().map(|row| row["image_id"].to_string()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{text}");
    assert!(ids.contains(&"7".to_owned()) && ids.contains(&"\"7_2\"".to_owned()), "{ids:?}");
}

#[test]
fn validation_and_detection_without_the_memory_for_them_are_refused_before_they_write() {
    let folder = tempfile::tempdir().unwrap();
    let (data, weights) = untrained(folder.path(), 4);
    let source = folder.path().join("images/val").to_string_lossy().into_owned();
    let (weights, data, project) = (&weights, &data, folder.path().join("runs"));
    let val = |memory_available: Option<u64>| {
        let (data, weights, project) = (data.clone(), weights.clone(), project.clone());
        let options = ValOptions { data, weights, imgsz: 64, project, memory_available, ..ValOptions::default() };
        validate(&options, &mut Memory::default()).map(|_| ())
    };
    let find = |memory_available: Option<u64>| {
        let (source, imgsz, project) = (source.clone(), vec![64], project.clone());
        let weights = weights.clone();
        let options = DetectOptions {
            weights,
            source,
            imgsz,
            project,
            batch_size: 4,
            memory_available,
            ..DetectOptions::default()
        };
        detect(&options, &mut Memory::default()).map(|_| ())
    };
    for run in [&val as &dyn Fn(Option<u64>) -> Result<(), TrainError>, &find] {
        let error = run(Some(1000)).unwrap_err();
        let TrainError::Memory { needed, .. } = error else { panic!("{error}") };
        let hint = run(Some(needed - 1)).unwrap_err().hint().unwrap();
        assert!(hint.starts_with("--batch 2 fits"), "{hint}");
        assert!(!project.exists());
    }
    val(None).unwrap();
    find(None).unwrap();
}

#[test]
fn a_failed_detection_leaves_no_empty_folder_and_uses_up_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = untrained(folder.path(), 1);
    let project = folder.path().join("detect");
    let bad = folder.path().join("bad.jpg");
    std::fs::write(&bad, "no picture").unwrap();
    let good = folder.path().join("images/val/val00.png");
    let with = |source: &Path, classes: Option<Vec<usize>>| DetectOptions {
        weights: weights.clone(),
        source: source.display().to_string(),
        imgsz: vec![64],
        save_txt: true,
        classes,
        project: project.clone(),
        ..DetectOptions::default()
    };
    for (source, classes) in [(&good, Some(vec![99])), (&bad, None)] {
        detect(&with(source, classes), &mut Memory::default()).unwrap_err();
        assert!(!project.join("exp").exists(), "{}", source.display());
    }
    let found = detect(&with(&good, None), &mut Memory::default()).unwrap();
    assert_eq!(found.folder, project.join("exp"));
}
