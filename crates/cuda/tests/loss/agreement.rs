//! Values, assignments and gradients of random problems against the CPU.

use crate::card::{self, Computed, Wanted};
use crate::problem::{BOX_PITCH, Problem, Random, awkward, scattered};
use crate::reference::{self, Expected, SENTINEL};
use cuda::Format;
use detect::LossConfig;

/// Fails where the card and the CPU disagree; owners are compared exactly.
pub fn check(problem: &Problem, wanted: Wanted, got: &Computed) {
    let want = reference::loss(problem, wanted.box_channels);
    let what = problem.name;
    for branch in 0..problem.heads.len() {
        let (owner, score) = reference::assignment(problem, branch);
        for (at, (g, w)) in got.owner[branch].iter().zip(&owner).enumerate() {
            assert_eq!(g, w, "{what}: owner of anchor {at} in branch {branch}");
        }
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        testkit::assert_close(&format!("{what}: target score"), &wide(&got.score[branch]), &wide(&score), 1e-6, 2e-4);
    }
    check_values(what, &got.values, &want, 1e-5);
    if let Some(format) = wanted.gradients {
        check_gradients(problem, format, wanted.loss_scale.unwrap_or(1.0), got, &want);
    }
}

pub fn check_values(what: &str, got: &[f32], want: &Expected, tolerance: f64) {
    let got: Vec<f64> = got.iter().map(|&v| f64::from(v)).collect();
    testkit::assert_close(&format!("{what}: values"), &got, &want.values, 1e-30, tolerance);
    for branch in want.values[4..].chunks(5).zip(got[4..].chunks(5)) {
        assert_eq!(branch.0[3], branch.1[3], "{what}: foreground anchors");
    }
}

/// Each element within rounding of its own, of the largest of its row and of its map: a target score carries the sixth
/// power of an overlap, whose rounding a row of small score feels most.
fn check_gradients(problem: &Problem, format: Format, scale: f32, got: &Computed, want: &Expected) {
    // Half a unit in the last place, with room for double rounding; smallest numbers that are not zero.
    let (relative, least) = match format {
        Format::F32 => (1e-5, 1e-37),
        Format::F16 => (0.51 / 1024.0, 6e-8),
        Format::Bf16 => (0.51 / 128.0, 1e-37),
    };
    for (branch, (got, want)) in got.gradients.iter().zip(&want.gradients).enumerate() {
        for (level, (got, want)) in got.iter().zip(want).enumerate() {
            for (part, got, want, pitch) in
                [("box", &got.0, &want.0, BOX_PITCH), ("class", &got.1, &want.1, problem.class_pitch())]
            {
                assert_eq!(got.len(), want.len());
                let real = |v: &&f32| **v != SENTINEL;
                let largest = |v: &[f32]| v.iter().filter(real).fold(0.0f32, |a, v| a.max(v.abs())) * scale;
                let of_map = largest(want);
                for (row, (got, want)) in got.chunks(pitch).zip(want.chunks(pitch)).enumerate() {
                    let of_row = largest(want);
                    for (channel, (g, w)) in got.iter().zip(want).enumerate() {
                        let w = if *w == SENTINEL { *w } else { *w * scale };
                        let bound = if w == 0.0 || w == SENTINEL {
                            0.0
                        } else {
                            relative * w.abs() + 2e-5 * of_row + 2e-6 * of_map + least
                        };
                        assert!(
                            (g - w).abs() <= bound,
                            "{}: {part} gradient of branch {branch} level {level} row {row} channel {channel}: \
                             got {g}, want {w} within {bound}",
                            problem.name
                        );
                    }
                }
            }
        }
    }
}

fn agree(problem: &Problem, formats: &[Format]) {
    let Some((gpu, loss)) = card::open() else { return };
    for &format in formats {
        let wanted = Wanted { gradients: Some(format), ..Wanted::default() };
        check(problem, wanted, &card::run(&gpu, &loss, problem, wanted));
    }
    let wanted = Wanted { gradients: None, poison: 0x3C, ..Wanted::default() };
    check(problem, wanted, &card::run(&gpu, &loss, problem, wanted));
}

const EVERY: [Format; 3] = [Format::F32, Format::F16, Format::Bf16];

#[test]
fn one_class_in_one_branch_agrees() {
    let mut random = Random(1);
    let boxes = vec![scattered(&mut random, 4, 0.1, 0.8), vec![], awkward()];
    agree(&Problem::new("one class", LossConfig::new(1, vec![1.0]), (64, 96), boxes, 11), &EVERY);
}

#[test]
fn three_classes_on_odd_maps_in_two_branches_agree() {
    let mut random = Random(2);
    let boxes = vec![awkward(), scattered(&mut random, 12, 0.05, 0.6), vec![[0.4, 0.5, 0.3, 0.2]]];
    agree(&Problem::new("odd maps", LossConfig::new(3, vec![0.25, 1.0]), (152, 104), boxes, 12), &EVERY);
}

#[test]
fn eighty_classes_in_two_branches_agree() {
    let mut random = Random(3);
    let boxes = (0..4).map(|i| scattered(&mut random, 7 * i, 0.03, 0.7)).collect();
    agree(&Problem::new("eighty classes", LossConfig::new(80, vec![0.25, 1.0]), (256, 192), boxes, 13), &EVERY);
}

#[test]
fn smoothing_focal_loss_and_positive_weights_agree() {
    let mut random = Random(4);
    let boxes: Vec<_> = (0..3).map(|_| scattered(&mut random, 9, 0.1, 0.7)).collect();
    let base = LossConfig::new(91, vec![0.25, 1.0]);
    for (i, config) in [
        LossConfig { label_smoothing: 0.1, ..base.clone() },
        LossConfig { cls_pw: 1.7, box_gain: 5.0, cls_gain: 1.5, dfl_gain: 0.5, ..base.clone() },
        LossConfig { fl_gamma: 1.5, cls_pw: 0.6, ..base.clone() },
        LossConfig { fl_gamma: 2.0, label_smoothing: 0.3, ..base.clone() },
    ]
    .into_iter()
    .enumerate()
    {
        agree(&Problem::new("options", config, (128, 160), boxes.clone(), 40 + i as u64), &[Format::F32]);
    }
}

#[test]
fn other_exponents_and_numbers_of_claims_agree() {
    let mut random = Random(5);
    let boxes: Vec<_> = (0..3).map(|_| scattered(&mut random, 9, 0.1, 0.9)).collect();
    let base = LossConfig::new(5, vec![1.0]);
    for (i, config) in [
        LossConfig { topk: 1, ..base.clone() },
        LossConfig { topk: 13, alpha: 1.0, beta: 4.0, ..base.clone() },
        LossConfig { topk: 32, ..base.clone() },
    ]
    .into_iter()
    .enumerate()
    {
        agree(&Problem::new("claims", config, (160, 128), boxes.clone(), 50 + i as u64), &[Format::F32]);
    }
}

#[test]
fn four_branches_of_other_levels_agree() {
    let mut random = Random(6);
    let boxes: Vec<_> = (0..2).map(|_| scattered(&mut random, 6, 0.1, 0.9)).collect();
    let base = LossConfig::new(4, vec![0.25, 0.5, 0.75, 1.0]);
    let config = LossConfig { strides: vec![4, 8, 16, 32, 64], ..base.clone() };
    agree(&Problem::new("five levels", config, (128, 96), boxes.clone(), 61), &[Format::F32]);
    let config = LossConfig { strides: vec![12, 20], ..base };
    agree(&Problem::new("uneven strides", config, (120, 100), boxes, 62), &[Format::F32]);
}

#[test]
fn a_thousand_classes_agree() {
    let boxes = vec![scattered(&mut Random(7), 5, 0.1, 0.6)];
    agree(&Problem::new("thousand classes", LossConfig::new(1000, vec![1.0]), (64, 64), boxes, 71), &[Format::Bf16]);
}

/// Boxes of many candidates, which whole blocks walk, beside an image of very many and one of none.
#[test]
fn large_boxes_and_crowds_agree() {
    let mut random = Random(8);
    let boxes = vec![scattered(&mut random, 6, 0.5, 1.0), vec![], scattered(&mut random, 700, 0.01, 0.15)];
    let config = LossConfig::new(3, vec![0.25, 1.0]);
    agree(&Problem::new("crowds", config, (480, 640), boxes, 81), &[Format::Bf16]);
}

#[test]
fn pad_channels_of_boxes_are_zeroed_and_a_loss_scale_multiplies_gradients_alone() {
    let boxes = vec![scattered(&mut Random(9), 8, 0.1, 0.6), vec![]];
    let problem = Problem::new("scaled", LossConfig::new(6, vec![0.25, 1.0]), (96, 128), boxes, 91);
    let Some((gpu, loss)) = card::open() else { return };
    for gradients in EVERY.map(Some) {
        for loss_scale in [None, Some(64.0)] {
            let wanted = Wanted { gradients, loss_scale, box_channels: 72, ..Wanted::default() };
            check(&problem, wanted, &card::run(&gpu, &loss, &problem, wanted));
        }
    }
}
