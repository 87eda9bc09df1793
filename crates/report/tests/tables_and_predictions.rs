//! Terminal tables and prediction files, against the text that Python's format strings give.

use std::fs;

use report::Error;
use report::predictions::{CocoDetection, ImageId, write_coco_json, write_yolo_rows, yolo_row};
use report::tables::{TrainingRow, ValidationRow, training_header, training_row, validation_header, validation_row};

#[test]
fn validation_table_has_the_usual_widths() {
    assert_eq!(
        validation_header(),
        "                 Class     Images  Instances          P          R      mAP50   mAP50-95"
    );
    let row = ValidationRow {
        class: "all",
        images: 87,
        instances: 1139,
        precision: 0.91234,
        recall: 0.8765,
        map50: 0.93,
        map50_95: 0.000012345,
    };
    assert_eq!(
        validation_row(&row),
        "                   all         87       1139      0.912      0.876       0.93   1.23e-05"
    );
}

#[test]
fn training_table_has_the_usual_widths_and_whole_counts() {
    assert_eq!(training_header(), "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size");
    let row = TrainingRow {
        epoch: 7,
        epochs: 100,
        memory: "3.21G",
        losses: [1.23456, 12345.6, 0.00098765],
        instances: 73,
        image_size: 640,
    };
    assert_eq!(training_row(&row), "       7/99      3.21G      1.235  1.235e+04  0.0009877         73        640");
    let crowded = training_row(&TrainingRow { instances: 12345, epochs: 0, ..row });
    assert!(crowded.contains("      12345        640"), "{crowded}");
}

#[test]
fn numeric_stems_become_numbers() {
    assert_eq!(ImageId::from_stem("000000000139"), ImageId::Number(139));
    for text in ["img_7", "", "-5", "+5", "1.5", "٣", "99999999999999999999999"] {
        assert_eq!(ImageId::from_stem(text), ImageId::Stem(text.to_owned()));
    }
}

#[test]
fn coco_file_holds_rounded_rows_and_parses() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("predictions.json");
    let rows = [
        CocoDetection::new(ImageId::from_stem("000139"), 1, [10.12345, 20.5, 30.98765, 40.0], 0.987_654_3).unwrap(),
        CocoDetection::new(ImageId::from_stem("缺\"陷"), 90, [0.0, 0.0, 1.0, 2.0], 1.0).unwrap(),
    ];
    write_coco_json(&path, &rows).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        concat!(
            "[\n",
            r#"{"image_id":139,"category_id":1,"bbox":[10.123,20.5,20.864,19.5],"score":0.98765},"#,
            "\n",
            r#"{"image_id":"缺\"陷","category_id":90,"bbox":[0.0,0.0,1.0,2.0],"score":1.0}"#,
            "\n]\n"
        )
    );
    write_coco_json(&path, &[]).unwrap();
    let empty: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(empty.is_empty());
}

#[test]
fn coco_rows_are_finite() {
    let id = || ImageId::from_stem("a");
    for (xyxy, score) in [([f32::NAN, 0.0, 1.0, 1.0], 0.5), ([0.0; 4], f32::INFINITY)] {
        assert!(matches!(CocoDetection::new(id(), 0, xyxy, score), Err(Error::NotFinite { .. })));
    }
}

#[test]
fn yolo_rows_have_six_significant_digits() {
    let cxcywh = [0.5, 0.123_456_79, 0.00001234, 1.0];
    assert_eq!(yolo_row(3, cxcywh, Some(0.987_654_3)), "3 0.5 0.123457 1.234e-05 1 0.987654");
    assert_eq!(yolo_row(0, cxcywh, None), "0 0.5 0.123457 1.234e-05 1");
}

#[test]
fn writing_a_label_file_twice_does_not_double_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.txt");
    let rows = [yolo_row(1, [0.5; 4], None), yolo_row(2, [0.25; 4], None)];
    for _ in 0..2 {
        write_yolo_rows(&path, &rows).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "1 0.5 0.5 0.5 0.5\n2 0.25 0.25 0.25 0.25\n");
}
