//! Correct detections and confusion matrix against the fixture.

use detect::matching::{ConfusionMatrix, Label, THRESHOLDS, match_detections};
use detect::nms::Detection;

fn case(name: usize) -> (Vec<Detection>, Vec<Label>) {
    let arrays = testkit::arrays("pieces/process_batch.safetensors");
    let detections = arrays[&format!("case{name}.detections")].f32();
    let labels = arrays[&format!("case{name}.labels")].f32();
    let detections = detections
        .chunks(6)
        .map(|d| Detection { corners: [d[0], d[1], d[2], d[3]], score: d[4], class: d[5] as u32 })
        .collect();
    let labels = labels.chunks(5).map(|l| Label { class: l[0] as u32, corners: [l[1], l[2], l[3], l[4]] }).collect();
    (detections, labels)
}

#[test]
fn correct_detections_match_every_case_of_the_fixture() {
    let arrays = testkit::arrays("pieces/process_batch.safetensors");
    let facts = testkit::json("pieces/process_batch.json");
    assert_eq!(facts.as_array().unwrap().len(), 6);
    for (name, facts) in facts.as_array().unwrap().iter().enumerate() {
        let (detections, labels) = case(name);
        let correct = match_detections(&detections, &labels);
        let got: Vec<f64> = correct.iter().flatten().map(|&c| c as u8 as f64).collect();
        assert_eq!(got, arrays[&format!("case{name}.correct")].data, "case {name}");
        for t in 0..THRESHOLDS {
            let count = correct.iter().filter(|c| c[t]).count() as u64;
            assert_eq!(count, facts["correct_per_threshold"][t].as_u64().unwrap());
        }
    }
}

#[test]
fn confusion_matrix_matches_every_case_of_the_fixture() {
    let arrays = testkit::arrays("pieces/process_batch.safetensors");
    for name in 0..6 {
        let (detections, labels) = case(name);
        let mut matrix = ConfusionMatrix::new(2);
        matrix.add(&detections, &labels);
        let got: Vec<f64> = matrix.counts().iter().map(|&c| c as f64).collect();
        assert_eq!(got, arrays[&format!("case{name}.confusion")].data, "case {name}");
    }
}

#[test]
fn false_detections_and_missed_objects_count_in_images_without_a_match() {
    let corners = [0.0, 0.0, 10.0, 10.0];
    let detection = |score| Detection { corners, score, class: 1 };
    let mut matrix = ConfusionMatrix::new(2);
    matrix.add(&[detection(0.9), detection(0.2)], &[]);
    matrix.add(&[], &[Label { class: 0, corners }]);
    assert_eq!((matrix.count(1, 2), matrix.count(2, 0), matrix.count(9, 0)), (1, 1, 0));
    assert_eq!(matrix.counts().iter().sum::<u64>(), 2);
    assert!(match_detections(&[], &[Label { class: 0, corners }]).is_empty());
    assert_eq!(match_detections(&[detection(0.5)], &[]), [[false; THRESHOLDS]]);
}

#[test]
fn the_second_detection_of_an_object_is_wrong_and_gets_no_second_choice() {
    let label = |x: f32| Label { class: 0, corners: [x, 0.0, x + 10.0, 10.0] };
    let detection = |x: f32, score| Detection { corners: [x, 0.0, x + 10.0, 10.0], score, class: 0 };
    // The second detection overlaps both labels above 0.5, the first label more.
    let correct = match_detections(&[detection(0.0, 0.9), detection(1.4, 0.8)], &[label(0.0), label(3.0)]);
    assert_eq!(correct[0], [true; THRESHOLDS]);
    assert_eq!(correct[1], [false; THRESHOLDS]);
}
