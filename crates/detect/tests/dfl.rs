//! Distance expectation, distribution focal loss and the box loss of an anchor against the fixture.

use detect::dfl::{self, BINS, BOX_CHANNELS};
use detect::loss::box_terms;
use detect::{Levels, Real, boxes};
use testkit::assert_close;

fn check<T: Real>(tolerance: f64) {
    let arrays = testkit::arrays("pieces/dfl.safetensors");
    let facts = testkit::json("pieces/dfl.json");
    let of = |name: &str| arrays[name].data.iter().map(|&v| T::of(v)).collect::<Vec<T>>();
    let wide = |v: &[T]| v.iter().map(|v| v.wide()).collect::<Vec<f64>>();
    let (logits, points, targets) = (of("logits"), of("anchor_points"), of("target_box_grid"));
    let anchors = arrays["anchor_points"].shape[0];
    let scores = &arrays["target_scores"].data;
    let score_sum: f64 = scores.iter().sum();
    let normaliser = score_sum.max(1.0);
    let mut all = Vec::new();
    let (mut loss_iou, mut loss_dfl) = (0.0, 0.0);
    let mut box_gradient = vec![T::zero(); logits.len()];
    let (mut distances, mut xyxy, mut xywh, mut ltrb) = (vec![], vec![], vec![], vec![]);
    let (mut dfl_losses, mut dfl_gradient) = (vec![], vec![T::zero(); logits.len()]);
    for (i, logits) in logits.as_chunks::<BOX_CHANNELS>().0.iter().enumerate() {
        let centre = (points[i % anchors * 2], points[i % anchors * 2 + 1]);
        let target: [T; 4] = std::array::from_fn(|k| targets[i * 4 + k]);
        let corners = dfl::decode_corners(logits, centre);
        xyxy.extend(corners);
        xywh.extend(boxes::corners_to_xywh(&corners));
        let wanted = dfl::target_distances(centre, &target);
        ltrb.extend(wanted);
        let mut loss = T::zero();
        let out = &mut dfl_gradient[i * BOX_CHANNELS..][..BOX_CHANNELS];
        for (k, logits) in logits.as_chunks::<BINS>().0.iter().enumerate() {
            distances.push(dfl::expected_distance(logits));
            let side = dfl::side(logits);
            loss = loss + dfl::side_loss(logits, &side, wanted[k]) * T::of(0.25);
            let out = (&mut out[k * BINS..][..BINS]).try_into().unwrap();
            dfl::add_side_loss_gradient(&side, wanted[k], T::of(0.25), out);
        }
        dfl_losses.push(loss);
        if arrays["fg_mask"].data[i] != 0.0 {
            let weight: f64 = scores[i * 4..i * 4 + 4].iter().sum();
            let scale = |gain: f64| T::of(gain * weight / normaliser);
            let out = (&mut box_gradient[i * BOX_CHANNELS..][..BOX_CHANNELS]).try_into().unwrap();
            let terms = box_terms(logits, centre, &target, (scale(7.5), scale(1.5)), Some(out));
            let plain = box_terms(logits, centre, &target, (scale(7.5), scale(1.5)), None);
            assert_close("terms without gradient", &[plain.iou.wide()], &[terms.iou.wide()], 0.0, 1e-6);
            assert_eq!(plain.dfl, terms.dfl);
            loss_iou += terms.iou.wide() * weight / normaliser;
            loss_dfl += terms.dfl.wide() * weight / normaliser;
        }
        all.push(i);
    }
    assert_eq!(all.len(), 2 * anchors);
    for (name, got) in [
        ("expected_distance", &distances),
        ("xyxy_grid", &xyxy),
        ("xywh_grid", &xywh),
        ("target_ltrb", &ltrb),
        ("dfl_loss", &dfl_losses),
        ("dfl_loss_grad_of_sum", &dfl_gradient),
        ("box_loss_grad_7.5iou_1.5dfl", &box_gradient),
    ] {
        assert_close(name, &wide(got), &arrays[name].data, tolerance, tolerance);
    }
    let module = &arrays["module_output_b4a"];
    for (i, &d) in distances.iter().enumerate() {
        let (image, anchor, side) = (i / 4 / anchors, i / 4 % anchors, i % 4);
        let want = module.data[(image * 4 + side) * anchors + anchor];
        assert_close("module output", &[d.wide()], &[want], tolerance, tolerance);
    }
    let want = |name: &str| facts[name].as_f64().unwrap();
    assert_close("loss_iou", &[loss_iou], &[want("loss_iou")], 0.0, tolerance);
    assert_close("loss_dfl", &[loss_dfl], &[want("loss_dfl")], 0.0, tolerance);
    assert_close("target score sum", &[score_sum], &[want("target_scores_sum")], 0.0, 1e-6);
}

#[test]
fn distances_losses_and_gradients_match_the_fixture_in_f64() {
    check::<f64>(1e-6);
}

#[test]
fn distances_losses_and_gradients_match_the_fixture_in_f32() {
    check::<f32>(1e-5);
}

#[test]
fn anchor_points_are_cell_centres_level_by_level_row_by_row() {
    let want = &testkit::json("pieces/dfl.json")["make_anchors_maps_5x3_3x2_2x1"];
    let levels = Levels::new([(5, 3, 8), (3, 2, 16), (2, 1, 32)]).unwrap();
    assert_eq!(levels.anchors(), want["points_xy"].as_array().unwrap().len());
    for anchor in 0..levels.anchors() {
        let (level, cell) = levels.locate(anchor);
        let level = &levels.as_slice()[level];
        let (x, y) = level.centre::<f64>(cell);
        assert_eq!([x, y], [0, 1].map(|i| want["points_xy"][anchor][i].as_f64().unwrap()));
        assert_eq!(level.stride as f64, want["stride"][anchor].as_f64().unwrap());
    }
    assert!(Levels::new([(1, 1, 0)]).is_none());
    assert!(Levels::new([(1, 1, 8); 9]).is_none());
    assert!(Levels::new([(usize::MAX, 2, 8)]).is_none());
}
