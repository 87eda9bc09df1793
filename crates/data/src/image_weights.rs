//! Images drawn by the classes that they hold (`--image-weights`): rare and badly found classes more often.

use rand::RngExt;

use crate::recipe::{FOR_WEIGHTS, keyed_rng};
use crate::scan::Sample;

/// Inverse frequencies of the classes of a set, with a sum of 1. A class without a label counts as if it had one.
pub fn class_weights(samples: &[Sample], classes: usize) -> Vec<f64> {
    let mut counts = vec![0u64; classes];
    for label in samples.iter().flat_map(|s| &s.labels) {
        if let Some(count) = counts.get_mut(label.class as usize) {
            *count += 1;
        }
    }
    let inverse: Vec<f64> = counts.iter().map(|&count| 1.0 / count.max(1) as f64).collect();
    let sum: f64 = inverse.iter().sum();
    inverse.iter().map(|v| v / sum).collect()
}

/// The weight of each image: the sum over its labels of their classes' weights.
pub fn image_weights(samples: &[Sample], classes: &[f64]) -> Vec<f64> {
    let of = |sample: &Sample| sample.labels.iter().filter_map(|l| classes.get(l.class as usize)).sum();
    samples.iter().map(of).collect()
}

/// An epoch of as many draws with replacement as there are weights, each image with a probability proportional to its
/// weight (0 or more, finite). Weights that are all 0 are taken as equal.
pub fn weighted_order(seed: u64, epoch: u64, weights: &[f64]) -> Vec<usize> {
    let mut rng = keyed_rng(seed, epoch, 0, FOR_WEIGHTS);
    let up_to: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, w| {
            *sum += w;
            Some(*sum)
        })
        .collect();
    let total = up_to.last().copied().unwrap_or(0.0);
    // Rounding may put a draw on the total itself; the last image with a weight is then meant.
    let last = weights.iter().rposition(|&w| w > 0.0);
    (0..weights.len())
        .map(|_| {
            let at: f64 = rng.random();
            match last {
                Some(last) => up_to.partition_point(|&sum| sum <= at * total).min(last),
                None => ((at * weights.len() as f64) as usize).min(weights.len() - 1),
            }
        })
        .collect()
}
