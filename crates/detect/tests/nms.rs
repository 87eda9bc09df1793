//! Non-maximum suppression against every case of the fixture, and its order and limits.

use detect::nms::{COLUMNS, Detection, NmsConfig, NmsError, most_detections, scratch_words, suppress, suppress_into};
use testkit::assert_close;

/// Predictions of the fixture as rows: per image (anchors, 4 + 5).
fn predictions() -> Vec<Vec<f32>> {
    let arrays = testkit::arrays("pieces/nms.safetensors");
    let stored = &arrays["prediction"];
    let [batch, columns, anchors] = stored.shape[..] else { panic!("three axes") };
    let data = stored.f32();
    (0..batch)
        .map(|b| {
            (0..anchors)
                .flat_map(|a| (0..columns).map(move |c| (b * columns + c) * anchors + a))
                .map(|i| data[i])
                .collect()
        })
        .collect()
}

fn rows(detections: &[Detection]) -> Vec<f64> {
    let row = |d: &Detection| {
        let c = d.corners.map(f64::from);
        [c[0], c[1], c[2], c[3], d.score as f64, d.class as f64]
    };
    detections.iter().flat_map(row).collect()
}

#[test]
fn detections_match_every_case_of_the_fixture() {
    let arrays = testkit::arrays("pieces/nms.safetensors");
    let images = predictions();
    let cases = testkit::json("pieces/nms.json");
    let cases = cases.as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let (name, nc) = match case["case"].as_u64() {
            Some(number) => (format!("case{number}"), 5),
            None => ("nc1".to_string(), 1),
        };
        let flag = |key: &str| case.get(key).is_some_and(|v| v.as_bool().unwrap());
        let config = NmsConfig {
            conf_threshold: case.get("conf_thres").map_or(0.25, |v| v.as_f64().unwrap()) as f32,
            iou_threshold: case.get("iou_thres").map_or(0.45, |v| v.as_f64().unwrap()),
            multi_label: flag("multi_label") || nc == 1,
            agnostic: flag("agnostic"),
            classes: case
                .get("classes")
                .map(|v| v.as_array().unwrap().iter().map(|c| c.as_u64().unwrap() as u32).collect()),
            max_det: case.get("max_det").map_or(300, |v| v.as_u64().unwrap() as usize),
        };
        for (b, image) in images.iter().enumerate() {
            let got = suppress(&config, image, 9, nc);
            let want = &arrays[&format!("{name}.image{b}")].data;
            assert_eq!(got.len() as u64, case["rows"][b].as_u64().unwrap(), "{name} image {b}");
            let got = rows(&got);
            assert_close(&format!("{name} image {b}"), &got, want, 1e-4, 1e-6);
            let pick = |v: &[f64], k: usize| v.chunks(6).map(|r| r[k]).collect::<Vec<_>>();
            assert_eq!(pick(&got, 4), pick(want, 4), "{name} image {b}: scores");
            assert_eq!(pick(&got, 5), pick(want, 5), "{name} image {b}: classes");
        }
    }
}

#[test]
fn equal_scores_keep_the_order_of_their_rows() {
    // Two overlapping boxes of equal score and one apart: the first of the pair stays.
    let rows =
        [[10.0, 10.0, 8.0, 8.0, 0.5, 0.5], [10.0, 11.0, 8.0, 8.0, 0.5, 0.1], [50.0, 50.0, 8.0, 8.0, 0.5, 0.2]].concat();
    let got = suppress(&NmsConfig::default(), &rows, 6, 2);
    assert_eq!(got.iter().map(|d| d.corners[1]).collect::<Vec<_>>(), [6.0, 46.0]);
    assert!(got.iter().all(|d| d.class == 0));
}

#[test]
fn a_crowded_image_keeps_every_separate_box_up_to_max_det() {
    // 40,000 separate boxes: 30,000 enter, max_det leave, in the order of their scores.
    let mut rows = Vec::new();
    for i in 0..40_000 {
        let score = 0.3 + 0.6 * ((i * 7919 % 40_000) as f32 / 40_000.0);
        rows.extend([(i % 200) as f32 * 10.0, (i / 200) as f32 * 10.0, 4.0, 4.0, score, -1.0]);
    }
    let config = NmsConfig { max_det: 2000, ..NmsConfig::default() };
    let got = suppress(&config, &rows, 6, 1);
    assert_eq!(got.len(), 2000);
    assert!(got.is_sorted_by(|a, b| a.score >= b.score));
    assert!(got[1999].score > 0.869);
}

#[test]
fn odd_input_gives_no_detection_and_no_panic() {
    let config = NmsConfig { multi_label: true, ..NmsConfig::default() };
    assert!(suppress(&config, &[], 6, 2).is_empty());
    assert!(suppress(&config, &[1.0; 6], 0, 2).is_empty());
    assert!(suppress(&config, &[1.0; 5], 6, 2).is_empty());
    let not_numbers = [f32::NAN, 1.0, 1.0, 1.0, 0.9, f32::NAN, 1.0, 1.0, 1.0, 1.0, 0.8, f32::NAN];
    assert_eq!(suppress(&config, &not_numbers, 6, 2).len(), 2);
}

/// Numbers from 0 to 1 with few digits, so that many are equal.
fn coarse(at: usize) -> f32 {
    ((at * 7919 + 13) % 101) as f32 / 101.0
}

#[test]
fn of_more_than_thirty_thousand_candidates_the_best_enter_in_their_order() {
    // 20,000 boxes far apart with three classes each, and many equal scores on both sides of the limit.
    let (rows, nc) = (20_000, 3);
    let mut values = Vec::new();
    for i in 0..rows {
        values.extend([(i % 200) as f32 * 10.0, (i / 200) as f32 * 10.0, 4.0, 4.0]);
        values.extend((0..nc).map(|class| coarse(i * nc + class)));
    }
    let config = NmsConfig { conf_threshold: 0.1, multi_label: true, max_det: 40_000, ..NmsConfig::default() };
    let mut want: Vec<(f32, usize, usize)> = (0..rows * nc).map(|at| (coarse(at), at / nc, at % nc)).collect();
    want.retain(|c| c.0 > 0.1);
    assert!(want.len() > 30_000);
    want.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    want.truncate(30_000);
    let got = suppress(&config, &values, 4 + nc, nc);
    let row_of = |d: &Detection| (d.corners[0] + 2.0) as usize / 10 + (d.corners[1] + 2.0) as usize / 10 * 200;
    let got: Vec<_> = got.iter().map(|d| (d.score, row_of(d), d.class as usize)).collect();
    assert!(got == want, "{} and {}", got.len(), want.len());
}

#[test]
fn rows_without_an_allocation_are_the_same_detections_and_then_zeros() {
    let (rows, nc, pitch, out_pitch) = (300, 3, 8, 8);
    let mut values = Vec::new();
    for i in 0..rows {
        values.extend([coarse(i) * 100.0, coarse(i + 5) * 100.0, 20.0 + coarse(i + 9) * 20.0, 30.0]);
        values.extend((0..nc).map(|class| coarse(i * nc + class + 1)));
        values.push(f32::NAN);
    }
    let wide: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
    let base = NmsConfig { conf_threshold: 0.3, ..NmsConfig::default() };
    for config in [
        base.clone(),
        NmsConfig { multi_label: true, max_det: 20, ..base.clone() },
        NmsConfig { agnostic: true, classes: Some(vec![0, 2]), ..base.clone() },
        NmsConfig { max_det: 0, ..base.clone() },
        NmsConfig { conf_threshold: 1.0, ..base },
    ] {
        let want = suppress(&config, &values, pitch, nc);
        let most = most_detections(&config, rows, nc);
        let mut words = vec![0xA5A5_A5A5; scratch_words(&config, rows, nc)];
        let mut out = vec![f32::NAN; most * out_pitch];
        let found = suppress_into(&config, (&values, pitch), nc, &mut words, (&mut out, out_pitch)).unwrap();
        assert_eq!(found, want.len(), "{config:?}");
        let mut doubles = vec![f64::NAN; most * out_pitch];
        let same = suppress_into(&config, (&wide, pitch), nc, &mut words, (&mut doubles, out_pitch)).unwrap();
        assert_eq!(same, found, "{config:?}");
        for (at, (row, wide)) in out.chunks(out_pitch).zip(doubles.chunks(out_pitch)).enumerate() {
            let expected = want.get(at).map_or([0.0; COLUMNS], |d| {
                let [x0, y0, x1, y1] = d.corners;
                [x0, y0, x1, y1, d.score, d.class as f32]
            });
            assert_eq!(row[..COLUMNS], expected, "{config:?} row {at}");
            assert_eq!(wide[..COLUMNS], expected.map(f64::from), "{config:?} row {at}");
            assert!(row[COLUMNS..].iter().all(|v| v.is_nan()));
        }
    }
}

#[test]
fn scratch_and_output_that_are_too_small_are_refused() {
    let (config, rows) = (NmsConfig { max_det: 2, ..NmsConfig::default() }, [0.5f32; 3 * 5]);
    let needed = scratch_words(&config, 3, 1);
    let run = |words: usize, len: usize, pitch: usize| {
        suppress_into(&config, (&rows, 5), 1, &mut vec![0; words], (&mut vec![0.0; len], pitch))
    };
    assert_eq!(run(needed, 12, 6), Ok(1));
    assert_eq!(run(needed - 1, 12, 6), Err(NmsError::Scratch { len: needed - 1, needed }));
    assert_eq!(run(needed, 11, 6), Err(NmsError::Output { len: 11, pitch: 6, rows: 2 }));
    assert_eq!(run(needed, 12, 5), Err(NmsError::Output { len: 12, pitch: 5, rows: 2 }));
}
