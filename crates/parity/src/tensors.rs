//! Whole tensors within a relative L2 distance: what every device owes in float32.
//!
//! The fixtures hold predictions as a whole, but of gradients, weights and statistics a norm, a sum and three values
//! each. What such a tensor is as a whole comes from a device that computes in float64, once that is found to agree with
//! these numbers to five digits.

use crate::training::{CASES, Case, Values, commit, norm};
use crate::{Device, Packed, SHAPE, Step, filled, load, pictures};
use graph::{Executor, OptimizerKind, Region};

/// Largest relative L2 distance of a tensor. The CPU's own float32 stays below 1.5e-4.
const BOUND: f64 = 1e-3;

/// Fails where a tensor is further than 1e-3 from what it should be, in relative L2.
pub fn assert_agrees(what: &str, got: &[f64], want: &[f64]) {
    let found = relative(got, want, norm(want));
    assert!(found <= BOUND, "{what}: {found:.2e} off in relative L2, {BOUND:.0e} allowed");
}

/// Distance over `size`; infinite where lengths differ or a value is not a number.
fn relative(got: &[f64], want: &[f64], size: f64) -> f64 {
    let distance = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f64>().sqrt();
    match distance / size {
        _ if got.len() != want.len() || distance.is_nan() => f64::INFINITY,
        _ if distance == 0.0 => 0.0,
        found => found,
    }
}

/// Holds every named tensor against the exact one and prints the worst.
///
/// A tensor that is zero but for float64's rounding (a bias whose channels a batch norm centres again) has no relative
/// error. What float32 makes of it is the rounding of terms that cancel: 1e-7 of a term, and no term is larger than all
/// tensors taken together. So 1e-7 of the norm of all of them may be left there; the CPU leaves 1e-9 of it, and a term
/// that is missing leaves a thousandth and more.
fn hold(what: &str, names: &[String], got: &Values, want: &Values) {
    const CANCELLED: f64 = 1e-14;
    const LEFT: f64 = 1e-7;
    let whole = names.iter().map(|n| norm(&want[n]).powi(2)).sum::<f64>().sqrt();
    let mut worst = (0.0, None);
    for name in names {
        let (got, want) = (&got[name], &want[name]);
        let size = norm(want);
        let size = if size <= CANCELLED * whole { LEFT * whole / BOUND } else { size };
        let found = relative(got, want, size);
        if found > worst.0 {
            worst = (found, Some(name));
        }
    }
    let (found, name) = worst;
    let name = name.map_or("", String::as_str);
    println!("{what}: {found:.1e} at most, {name}");
    assert!(found <= BOUND, "{what}: {name} is {found:.2e} off in relative L2, {BOUND:.0e} allowed");
}

/// A step of the recorded batch whose head maps can be read.
fn readable<D: Device>(device: D, case: &Case) -> Step<D> {
    let model = load(case.name);
    let mut step = Step::on(device, &model, &filled(&model, case.name), SHAPE, OptimizerKind::Sgd, true);
    let targets = Packed::of(&case.arrays["targets"].f32(), SHAPE[0]);
    step.upload(&pictures("train", SHAPE[0], SHAPE[1], SHAPE[2]), &targets);
    step
}

/// Raw head maps of the last run, whole, by name.
fn head_maps<D: Device>(step: &Step<D>) -> Values {
    let levels = step.heads.branches.iter().flat_map(|b| b.levels.iter().enumerate().map(move |(l, at)| (b, l, at)));
    let maps = levels.flat_map(|(branch, l, at)| {
        [("boxes", at.boxes), ("classes", at.classes)].map(|(what, map)| (format!("{} {l} {what}", branch.name), map))
    });
    maps.map(|(name, map)| (name, step.elements(map))).collect()
}

/// Head maps, gradients, running statistics, and weights, statistics and their averages after one and two SGD steps:
/// each tensor within 1e-3 of `exact`, a device in float64, which is held against the fixtures on the way.
///
/// Gradients are those of the first step, and the third step is left out: steps in a row amplify rounding, so that the
/// CPU's own float32 is off by 15 % in single gradients of the third.
pub fn every_tensor_agrees<D: Device + Clone, E: Device + Clone>(device: &D, exact: &E) {
    for name in CASES {
        let case = Case::load(name);
        let (mut step, mut truth) = (readable(device.clone(), &case), readable(exact.clone(), &case));
        let start = truth.named(Region::Weights, Region::Buffers);
        for index in 0..2u64 {
            step.run();
            truth.run();
            if index == 0 {
                let maps = head_maps(&truth);
                hold(&format!("{name} head maps"), &maps.keys().cloned().collect::<Vec<_>>(), &head_maps(&step), &maps);
                let gradients = truth.named(Region::Gradients, Region::Buffers);
                case.check_gradients(&gradients);
                hold(
                    &format!("{name} gradients"),
                    &case.params,
                    &step.named(Region::Gradients, Region::Buffers),
                    &gradients,
                );
            }
            let commit = commit(OptimizerKind::Sgd, 0.01, index + 1);
            step.executor.commit(&commit).expect("commits");
            truth.executor.commit(&commit).expect("commits");
            let regions = [
                ("", Region::Weights, Region::Buffers, ["sgd1", "stat1"]),
                (" average", Region::EmaWeights, Region::EmaBuffers, ["ema1", "statema1"]),
            ];
            for (what, weights, buffers, [of_weights, of_statistics]) in regions {
                let (got, want) = (step.named(weights, buffers), truth.named(weights, buffers));
                if index == 0 {
                    case.check_rows(of_weights, &case.params, "param.idx", &want, &start, 2e-3);
                    case.check_statistics(of_statistics, &want, &start, 1e-5);
                }
                let after = format!("{name} after {} of{what}", index + 1);
                hold(&format!("{after} weights"), &case.params, &got, &want);
                hold(&format!("{after} statistics"), &case.stats, &got, &want);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(rows: &[(&str, &[f64])]) -> Values {
        rows.iter().map(|(name, v)| ((*name).to_owned(), v.to_vec())).collect()
    }

    fn held(got: &[(&str, &[f64])], want: &[(&str, &[f64])]) -> bool {
        let names: Vec<String> = want.iter().map(|w| w.0.to_owned()).collect();
        std::panic::catch_unwind(|| hold("test", &names, &values(got), &values(want))).is_ok()
    }

    #[test]
    fn a_tensor_passes_by_its_own_norm_however_small() {
        let want: [(&str, &[f64]); 2] = [("a", &[1e3, 0.0]), ("b", &[1e-6, 0.0])];
        assert!(held(&[("a", &[1e3, 0.9]), ("b", &[1e-6, 0.9e-9])], &want));
        assert!(!held(&[("a", &[1e3, 1.1]), ("b", &[1e-6, 0.0])], &want));
        assert!(!held(&[("a", &[1e3, 0.0]), ("b", &[1e-6, 1.1e-9])], &want));
        assert!(!held(&[("a", &[1e3, 0.0]), ("b", &[1e-6, f64::NAN])], &want));
        assert!(!held(&[("a", &[1e3, 0.0]), ("b", &[1e-6])], &want));
    }

    #[test]
    fn what_cancels_passes_by_the_norm_of_all() {
        let want: [(&str, &[f64]); 2] = [("a", &[1e3]), ("b", &[1e-13])];
        assert!(held(&[("a", &[1e3]), ("b", &[0.9e-4])], &want));
        assert!(!held(&[("a", &[1e3]), ("b", &[1.1e-4])], &want));
        assert!(held(&[("a", &[0.0]), ("b", &[0.0])], &[("a", &[0.0]), ("b", &[0.0])]));
        assert!(!held(&[("a", &[1e-30]), ("b", &[0.0])], &[("a", &[0.0]), ("b", &[0.0])]));
    }
}
