//! Logits that are not finite, targets that do not fit, heads that are refused, and the same bits twice.

use crate::agreement::check_values;
use crate::card::{self, Computed, Placed, Wanted};
use crate::problem::{BOX_PITCH, Problem, Random, awkward, scattered};
use crate::reference;
use cuda::{CudaError, Format};
use detect::LossConfig;

fn small() -> Problem {
    let mut random = Random(20);
    let boxes = vec![scattered(&mut random, 9, 0.1, 0.7), vec![], awkward()];
    Problem::new("small", LossConfig::new(3, vec![0.25, 1.0]), (96, 96), boxes, 21)
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

fn assert_same(a: &Computed, b: &Computed) {
    assert_eq!(bits(&a.values), bits(&b.values));
    assert_eq!(a.owner, b.owner);
    for (a, b) in a.gradients.iter().flatten().zip(b.gradients.iter().flatten()) {
        assert!(bits(&a.0) == bits(&b.0) && bits(&a.1) == bits(&b.1), "gradients differ");
    }
}

#[test]
fn two_runs_give_the_same_bits_whatever_the_scratch_held() {
    let mut random = Random(22);
    let boxes = vec![scattered(&mut random, 300, 0.02, 0.3), scattered(&mut random, 5, 0.4, 1.0)];
    let problem = Problem::new("twice", LossConfig::new(80, vec![0.25, 1.0]), (320, 320), boxes, 23);
    let Some((gpu, loss)) = card::open() else { return };
    for format in [Format::F32, Format::F16, Format::Bf16] {
        let wanted = |poison| Wanted { gradients: Some(format), poison, ..Wanted::default() };
        let placed = Placed::new(&gpu, &problem, wanted(0xFF));
        placed.run(&loss);
        let first = placed.read();
        placed.run(&loss);
        assert_same(&first, &placed.read());
        assert_same(&first, &card::run(&gpu, &loss, &problem, wanted(0x00)));
        assert_same(&first, &card::run(&gpu, &loss, &problem, wanted(0x3F)));
    }
}

#[test]
fn a_batch_without_boxes_has_only_class_loss() {
    let config = LossConfig::new(3, vec![0.25, 1.0]);
    let problem = Problem::new("no boxes", config, (64, 64), vec![vec![]; 3], 24);
    let Some((gpu, loss)) = card::open() else { return };
    let got = card::run(&gpu, &loss, &problem, Wanted::default());
    check_values("no boxes", &got.values, &reference::loss(&problem, 64), 1e-5);
    assert_eq!(got.values[1], 0.0);
    assert!(got.values[2] > 1.0);
    for (boxes, classes) in got.gradients.iter().flatten() {
        assert!(boxes.chunks(BOX_PITCH).all(|row| row[..64].iter().all(|&v| v == 0.0)));
        assert!(classes.chunks(problem.class_pitch()).all(|row| row[..3].iter().all(|&v| v > 0.0)));
        assert!(classes.chunks(problem.class_pitch()).all(|row| row[3..8].iter().all(|&v| v == 0.0)));
    }
}

#[test]
fn a_box_logit_that_is_not_a_number_shows_in_the_loss_even_on_a_background_anchor() {
    let mut problem = small();
    // Image 1 has no box, so all of its anchors are background.
    problem.heads[1][0].boxes[(12 * 12 + 5) * BOX_PITCH + 7] = f32::NAN;
    let Some((gpu, loss)) = card::open() else { return };
    let got = card::run(&gpu, &loss, &problem, Wanted::default());
    assert!(got.values[0].is_nan() && got.values[1].is_nan(), "{:?}", got.values);
    assert!(got.values[2].is_finite() && got.values[3].is_finite(), "{:?}", got.values);
    let box_gradients = got.gradients[1][0].0.chunks(BOX_PITCH);
    assert!(box_gradients.flat_map(|row| &row[..64]).all(|v| v.is_finite()));
}

#[test]
fn a_class_logit_that_is_not_a_number_shows_and_infinite_ones_keep_their_meaning() {
    let Some((gpu, loss)) = card::open() else { return };
    let mut problem = small();
    let at = (12 * 12 + 5) * problem.class_pitch() + 1;
    problem.heads[0][0].classes[at] = f32::NAN;
    let got = card::run(&gpu, &loss, &problem, Wanted::default());
    assert!(got.values[0].is_nan() && got.values[2].is_nan() && got.values[1].is_finite(), "{:?}", got.values);
    assert!(got.gradients[0][0].1[at].is_nan());
    problem.heads[0][0].classes[at] = f32::NEG_INFINITY;
    let got = card::run(&gpu, &loss, &problem, Wanted::default());
    check_values("no chance", &got.values, &reference::loss(&problem, 64), 1e-5);
    assert!(got.gradients[0][0].1[at].abs() < 1e-37);
    problem.heads[0][0].classes[at] = f32::INFINITY;
    let got = card::run(&gpu, &loss, &problem, Wanted::default());
    assert_eq!(got.values[2], f32::INFINITY);
    assert!(got.gradients[0][0].1[at].is_finite() && got.gradients[0][0].1[at] > 0.0);
}

#[test]
fn targets_that_do_not_fit_together_make_every_loss_not_a_number() {
    let Some((gpu, loss)) = card::open() else { return };
    let spoil: [fn(&mut Problem); 5] = [
        |p| p.classes[2] = 3,
        |p| p.classes[0] = u32::MAX,
        |p| p.offsets[1] = 4000,
        |p| p.offsets[3] = u32::MAX,
        |p| p.offsets[0] = 1,
    ];
    for (i, spoil) in spoil.into_iter().enumerate() {
        let mut problem = small();
        spoil(&mut problem);
        let got = card::run(&gpu, &loss, &problem, Wanted::default());
        assert!(got.values[..4].iter().all(|v| v.is_nan()), "case {i}: {:?}", got.values);
    }
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let Some((gpu, loss)) = card::open() else { return };
    let problem = small();
    let placed = Placed::new(&gpu, &problem, Wanted::default());
    let head = placed.head();
    let refused = |head: &cuda::kernels::loss::Head<'_>| {
        // SAFETY: a head that is refused reaches no kernel; the unchanged parts are buffers that live on.
        let result = unsafe { loss.run(head) };
        assert!(matches!(result, Err(CudaError::Head(_))), "{result:?}");
    };
    let mut levels = head.levels.to_vec();
    refused(&cuda::kernels::loss::Head { levels: &levels[1..], ..head });
    levels[2].classes.h += 1;
    refused(&cuda::kernels::loss::Head { levels: &levels, ..head });
    levels = head.levels.to_vec();
    levels[4].gradients = None;
    refused(&cuda::kernels::loss::Head { levels: &levels, ..head });
    levels = head.levels.to_vec();
    levels[1].boxes.pitch = 68;
    refused(&cuda::kernels::loss::Head { levels: &levels, ..head });
    let config = LossConfig { topk: 33, ..problem.config.clone() };
    refused(&cuda::kernels::loss::Head { config: &config, ..head });
    let config = LossConfig { nc: 4000, ..problem.config.clone() };
    refused(&cuda::kernels::loss::Head { config: &config, ..head });
    refused(&cuda::kernels::loss::Head { batch: 4, ..head });
}
