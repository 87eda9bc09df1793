//! What a device computed, held against what the reference computed.

use graph::{ParamGroup, ParamLayout};
use std::collections::HashMap;
use std::sync::Arc;

/// Named tensors of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Shared, so that a part of an outcome costs nothing: the gradients of a large model are 200 megabytes.
    pub tensors: Vec<(String, Arc<Vec<f32>>)>,
}

impl Outcome {
    pub fn push(&mut self, name: impl Into<String>, values: Vec<f32>) {
        self.tensors.push((name.into(), Arc::new(values)));
    }

    /// The tensors whose names start with `kind`.
    pub fn only(&self, kind: &str) -> Self {
        Self { tensors: self.tensors.iter().filter(|t| t.0.starts_with(kind)).cloned().collect() }
    }

    /// A flat buffer by parameter, and what its padding, which devices lay out differently, adds up to: it must stay
    /// zero.
    pub fn push_region(&mut self, what: &str, layout: &ParamLayout, flat: &[f32], buffers: bool) {
        let mut padding = 0.0;
        for slot in layout.slots().iter().filter(|s| (s.param.group == ParamGroup::Buffer) == buffers) {
            self.push(format!("{what} of {}", slot.param.name), slot.gather(flat));
            let mut physical = vec![true; flat.len().min(slot.len)];
            slot.for_each(|_, at| physical[at - slot.offset] = false);
            let pads = flat[slot.range()].iter().zip(physical).filter(|p| p.1);
            padding += pads.map(|p| p.0.abs()).sum::<f32>();
        }
        self.push(format!("padding of {what}"), vec![padding]);
    }
}

/// The largest error of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Worst {
    /// Relative L2; infinite where a value is not finite, NaN never.
    pub error: f64,
    pub tensor: String,
}

impl Worst {
    pub fn none() -> Self {
        Self { error: 0.0, tensor: String::new() }
    }

    /// The larger of both.
    pub fn max(self, other: Self) -> Self {
        if other.error > self.error { other } else { self }
    }
}

/// The largest relative L2 error over all tensors.
///
/// Tensors of one kind (the first word of their names) are measured against at least `floor` times the largest of
/// them: what is zero in exact arithmetic has no relative error.
pub(crate) fn worst(got: &Outcome, want: &Outcome, floor: f64) -> Worst {
    let kind = |name: &str| name.split(' ').next().unwrap_or_default().to_owned();
    let norms: Vec<f64> = want.tensors.iter().map(|t| norm(&t.1)).collect();
    let mut largest: HashMap<String, f64> = HashMap::new();
    for ((name, _), &norm) in want.tensors.iter().zip(&norms) {
        let of_kind = largest.entry(kind(name)).or_default();
        *of_kind = of_kind.max(norm);
    }
    let errors = got.tensors.iter().zip(&want.tensors).zip(norms).map(|(((name, got), (known, want)), norm)| {
        let against = norm.max(floor * largest[&kind(known)]);
        Worst { error: over(distance(got, want), against), tensor: name.clone() }
    });
    let missing = Worst { error: f64::INFINITY, tensor: "the number of tensors".to_owned() };
    let start = if got.tensors.len() == want.tensors.len() { Worst::none() } else { missing };
    errors.fold(start, Worst::max)
}

/// Relative error of all tensors of a kind taken together.
pub(crate) fn together(got: &Outcome, want: &Outcome, kind: &str) -> Worst {
    let (got, want) = (got.only(kind), want.only(kind));
    let alike = got.tensors.len() == want.tensors.len();
    let mut sums = if alike { (0.0, 0.0) } else { (f64::NAN, 0.0) };
    for ((_, got), (_, want)) in got.tensors.iter().zip(&want.tensors) {
        sums = (sums.0 + distance(got, want).powi(2), sums.1 + norm(want).powi(2));
    }
    Worst { error: over(sums.0.sqrt(), sums.1.sqrt()), tensor: format!("{kind} as a whole") }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// L2 distance; NaN where lengths differ or a value is not a number.
fn distance(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() {
        return f64::NAN;
    }
    got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - f64::from(w)).powi(2)).sum::<f64>().sqrt()
}

/// A distance as an error against a size: infinite instead of NaN.
fn over(distance: f64, size: f64) -> f64 {
    match distance / size {
        _ if distance == 0.0 => 0.0,
        error if error.is_nan() => f64::INFINITY,
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(tensors: &[(&str, &[f32])]) -> Outcome {
        Outcome { tensors: tensors.iter().map(|(n, v)| ((*n).to_owned(), Arc::new(v.to_vec()))).collect() }
    }

    #[test]
    fn the_worst_tensor_is_named() {
        let want = outcome(&[("output a", &[3.0, 4.0]), ("gradient of w", &[0.0, 10.0])]);
        let got = outcome(&[("output a", &[3.0, 4.0]), ("gradient of w", &[1.0, 10.0])]);
        assert_eq!(worst(&got, &want, 0.0), Worst { error: 0.1, tensor: "gradient of w".to_owned() });
        assert_eq!(worst(&want, &want, 0.0), Worst::none());
    }

    #[test]
    fn what_is_zero_is_measured_against_its_kind() {
        let want = outcome(&[("gradient of a", &[0.0]), ("gradient of b", &[100.0])]);
        let got = outcome(&[("gradient of a", &[1e-3]), ("gradient of b", &[100.0])]);
        assert!((worst(&got, &want, 1e-3).error - 1e-2).abs() < 1e-6);
        assert_eq!(worst(&got, &want, 0.0).error, f64::INFINITY);
    }

    #[test]
    fn values_that_are_not_numbers_and_missing_tensors_are_errors() {
        let want = outcome(&[("output", &[1.0])]);
        assert_eq!(worst(&outcome(&[("output", &[f32::NAN])]), &want, 0.0).error, f64::INFINITY);
        assert_eq!(worst(&outcome(&[]), &want, 0.0).error, f64::INFINITY);
        assert_eq!(together(&outcome(&[("output", &[1.5])]), &want, "output").error, 0.5);
        for wrong in [outcome(&[("output", &[1.0, 1.0])]), outcome(&[("output", &[f32::NAN])]), outcome(&[])] {
            assert_eq!(together(&wrong, &want, "output").error, f64::INFINITY);
        }
    }
}
