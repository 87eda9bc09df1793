//! Distances from an anchor to the four sides as softmax expectations over 16 bins, and the distribution
//! focal loss (Li et al. 2020) that trains them.

use crate::Real;
use crate::boxes::Corners;

/// Bins of one side; distances lie in [0, 15] cells.
pub const BINS: usize = 16;
/// Box logits of one anchor: sides left, top, right, bottom by 16 bins.
pub const BOX_CHANNELS: usize = 4 * BINS;
/// Largest distance a target may have: just below the last bin, so that a bin lies on either side of it.
const MAX_DISTANCE: f64 = (BINS - 1) as f64 - 0.01;

/// Softmax of one side: probabilities, expectation and the log of the normaliser.
pub struct Side<T> {
    pub probability: [T; BINS],
    /// Expected bin = distance in cells.
    pub distance: T,
    /// ln(sum exp(logit)), so that ln p = logit - this.
    pub log_sum: T,
}

/// Exponentials relative to the largest logit, their sum and that logit.
#[inline(always)]
fn exponentials<T: Real>(logits: &[T; BINS]) -> ([T; BINS], T, T) {
    let mut max = logits[0];
    for &x in &logits[1..] {
        if x > max {
            max = x;
        }
    }
    let mut e = [T::zero(); BINS];
    for (e, &x) in e.iter_mut().zip(logits) {
        *e = (x - max).exp_nonpositive();
    }
    let sum = e.iter().fold(T::zero(), |a, &b| a + b);
    (e, sum, max)
}

/// Expected distance of one side, in cells.
#[inline(always)]
pub fn expected_distance<T: Real>(logits: &[T; BINS]) -> T {
    let (e, sum, _) = exponentials(logits);
    let mut weighted = T::zero();
    for (i, &e) in e.iter().enumerate() {
        weighted = weighted + T::of(i as f64) * e;
    }
    weighted / sum
}

/// Softmax of one side with everything the gradients need.
pub fn side<T: Real>(logits: &[T; BINS]) -> Side<T> {
    let (e, sum, max) = exponentials(logits);
    let mut weighted = T::zero();
    let mut probability = e;
    for (i, p) in probability.iter_mut().enumerate() {
        weighted = weighted + T::of(i as f64) * *p;
        *p = *p / sum;
    }
    Side { probability, distance: weighted / sum, log_sum: max + sum.ln() }
}

/// Corners in cells around the anchor point (x, y) from the four distances.
#[inline(always)]
pub fn corners_around<T: Real>(centre: (T, T), ltrb: &[T; 4]) -> Corners<T> {
    [centre.0 - ltrb[0], centre.1 - ltrb[1], centre.0 + ltrb[2], centre.1 + ltrb[3]]
}

/// Decodes the 64 box logits of an anchor (side-major) to corners in cells.
#[inline(always)]
pub fn decode_corners<T: Real>(logits: &[T; BOX_CHANNELS], centre: (T, T)) -> Corners<T> {
    let sides = logits.as_chunks::<BINS>().0;
    let ltrb = [
        expected_distance(&sides[0]),
        expected_distance(&sides[1]),
        expected_distance(&sides[2]),
        expected_distance(&sides[3]),
    ];
    corners_around(centre, &ltrb)
}

/// Distances in cells from an anchor point to the sides of a target box, clamped to [0, 14.99].
/// NaN becomes 0.
#[inline]
pub fn target_distances<T: Real>(centre: (T, T), target: &Corners<T>) -> [T; 4] {
    let at = |v: T| v.max(T::zero()).min(T::of(MAX_DISTANCE));
    [at(centre.0 - target[0]), at(centre.1 - target[1]), at(target[2] - centre.0), at(target[3] - centre.1)]
}

/// The two bins around a target distance and their weights: (lower bin, weight of it, weight of the next).
#[inline]
fn two_bins<T: Real>(distance: T) -> (usize, T, T) {
    let lower = distance.floor();
    let bin = lower.to_usize().unwrap_or(0).min(BINS - 2);
    let left = lower + T::one() - distance;
    (bin, left, T::one() - left)
}

/// Cross entropy of one side against the two bins around `distance` (cells, in [0, 14.99]).
pub fn side_loss<T: Real>(logits: &[T; BINS], side: &Side<T>, distance: T) -> T {
    let (bin, left, right) = two_bins(distance);
    (side.log_sum - logits[bin]) * left + (side.log_sum - logits[bin + 1]) * right
}

/// Adds `scale` times the gradient of [`side_loss`] for the logits.
pub fn add_side_loss_gradient<T: Real>(side: &Side<T>, distance: T, scale: T, gradient: &mut [T; BINS]) {
    let (bin, left, right) = two_bins(distance);
    for (g, &p) in gradient.iter_mut().zip(&side.probability) {
        *g = *g + scale * p;
    }
    gradient[bin] = gradient[bin] - scale * left;
    gradient[bin + 1] = gradient[bin + 1] - scale * right;
}

/// Adds `scale` times the gradient of the expected distance for the logits.
pub fn add_distance_gradient<T: Real>(side: &Side<T>, scale: T, gradient: &mut [T; BINS]) {
    for (i, (g, &p)) in gradient.iter_mut().zip(&side.probability).enumerate() {
        *g = *g + scale * p * (T::of(i as f64) - side.distance);
    }
}
