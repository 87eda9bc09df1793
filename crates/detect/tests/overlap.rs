//! Overlap measures, CIoU gradient and mapping back to the original picture against the fixtures.

use detect::boxes::{self, Letterbox, Overlap};
use serde_json::Value;
use testkit::assert_close;

fn corners(value: &Value) -> [f64; 4] {
    std::array::from_fn(|i| number(&value[i]))
}

fn number(value: &Value) -> f64 {
    match value.as_str() {
        Some("nan") => f64::NAN,
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        _ => value.as_f64().expect("a number"),
    }
}

const KINDS: [(&str, Overlap); 4] =
    [("iou", Overlap::Iou), ("giou", Overlap::Giou), ("diou", Overlap::Diou), ("ciou", Overlap::Ciou)];

#[test]
fn overlaps_and_ciou_gradient_match_the_fixture_in_f64() {
    for case in testkit::json("pieces/iou.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (a, b) = (corners(&case["box1"]), corners(&case["box2"]));
        for (key, kind) in KINDS {
            let want = number(&case[format!("{key}_f64")]);
            assert_close(&format!("{name} {key}"), &[boxes::overlap(kind, &a, &b)], &[want], 1e-9, 1e-9);
        }
        let (ciou, gradient) = boxes::ciou_with_gradient(&a, &b);
        assert_eq!(ciou, boxes::overlap(Overlap::Ciou, &a, &b), "{name}: value beside the gradient");
        let want = corners(&case["ciou_grad_box1_f64"]);
        assert_close(&format!("{name} ciou gradient"), &gradient, &want, 1e-12, 1e-8);
        let area = boxes::intersection_over_area(&a, &b);
        let want = number(&case["intersection_over_box2_area_f64"]);
        assert_close(&format!("{name} intersection over area"), &[area], &[want], 1e-9, 1e-9);
    }
}

#[test]
fn overlaps_match_the_fixture_in_f32() {
    for case in testkit::json("pieces/iou.json").as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let (a, b) = (corners(&case["box1"]).map(|v| v as f32), corners(&case["box2"]).map(|v| v as f32));
        for (key, kind) in KINDS {
            let want = number(&case[format!("{key}_f32")]);
            let got = boxes::overlap(kind, &a, &b) as f64;
            assert_close(&format!("{name} {key}"), &[got], &[want], 1e-4, 1e-4);
        }
        let want = number(&case["box_iou_f32"]);
        let got = boxes::matching_iou(&a, &b) as f64;
        assert_close(&format!("{name} matching IoU"), &[got], &[want], 1e-6, 1e-5);
    }
}

#[test]
fn ciou_never_exceeds_iou_so_the_short_way_skips_nothing_that_counts() {
    for case in testkit::json("pieces/iou.json").as_array().unwrap() {
        let (a, b) = (corners(&case["box1"]).map(|v| v as f32), corners(&case["box2"]).map(|v| v as f32));
        let (iou, ciou) = (boxes::overlap(Overlap::Iou, &a, &b), boxes::overlap(Overlap::Ciou, &a, &b));
        assert!(ciou <= iou, "{}: {ciou} > {iou}", case["name"]);
        for floor in [-1.0, 0.0, 0.3, ciou] {
            match boxes::ciou_above(&a, &b, floor) {
                Some(value) => assert_eq!(value, ciou),
                None => assert!(ciou <= floor),
            }
        }
    }
}

#[test]
fn boxes_return_to_the_original_picture_as_in_the_fixture() {
    let pair = |v: &Value| (v[0].as_u64().unwrap() as usize, v[1].as_u64().unwrap() as usize);
    for case in testkit::json("pieces/scale_boxes.json").as_array().unwrap() {
        let (net, original) = (pair(&case["net_hw"]), pair(&case["orig_hw"]));
        let ratio_pad = &case["ratio_pad"];
        let given = Letterbox {
            gain: number(&ratio_pad[0][0]),
            pad_x: number(&ratio_pad[1][0]),
            pad_y: number(&ratio_pad[1][1]),
        };
        let ways = [("without_ratio_pad", Letterbox::from_sizes(net, original)), ("with_ratio_pad", given)];
        for (key, letterbox) in ways {
            for (i, b) in case["boxes"].as_array().unwrap().iter().enumerate() {
                let got = letterbox.to_original(&corners(b).map(|v| v as f32), original).map(f64::from);
                assert_close(&format!("{net:?} {original:?} {key} {i}"), &got, &corners(&case[key][i]), 1e-3, 0.0);
            }
        }
    }
}

#[test]
fn centre_form_and_corners_are_inverse() {
    let b = [3.0f64, 4.5, 10.0, 6.25];
    assert_eq!(boxes::corners_to_xywh(&boxes::xywh_to_corners(&b)), b);
    assert_eq!(boxes::clip(&[-1.0f32, f32::NAN, 30.0, 7.0], (6, 20)), [0.0, 0.0, 20.0, 6.0]);
}
