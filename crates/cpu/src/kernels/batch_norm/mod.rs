//! Batch norm with its activation, for one branch or the sum of two (RepConv): statistics, apply, backward in two
//! passes (sums, then data gradients). z is recomputed in the backward pass from the stored input and the saved mean
//! and variance, so no activation has to be kept.
//!
//! Bytes an element of float32: statistics 4, apply 8 (12 with two branches or a residual), reduce 8, backward 12. For
//! 16x80x80x32 (13 MB a tensor) at 20 GB/s a core that bounds apply at 1.3 ms. Measured over all of yolov9-t's batch
//! norms at 320 pixels, batch 16, on one core of an AMD EPYC (Zen 3), 2026-11-30: statistics 7.2 GB/s, apply 6.3, reduce
//! 4.5, backward 6.6; twice that on two cores. The exponential, about 27 cycles for 8 values, is what holds them.
//!
//! All passes are bound by memory, or by the exponential when the tensor is in cache. Pixels go in chunks by shape;
//! sums over chunks are merged in chunk order in f64.

mod apply;
mod backward;
mod stats;

pub use apply::bn_apply;
pub use backward::{BnGrads, BnSums, bn_backward, bn_reduce, bn_reduce_scratch};
pub use stats::{bn_stats, bn_stats_scratch};

use super::View;
use super::activation::load_piece;
use super::simd::Simd;
use crate::element::Element;

/// One normalised input of a (sum of) batch norm(s). The slices have one element per channel.
#[derive(Clone, Copy, Debug)]
pub struct BnBranch<'a, T> {
    /// The convolution's output.
    pub x: View<'a, T>,
    /// Mean to subtract: the batch's in training, the running one in evaluation.
    pub mean: &'a [T],
    /// Biased variance of the batch, or the running variance.
    pub var: &'a [T],
    /// Scale.
    pub gamma: &'a [T],
    /// Shift.
    pub beta: &'a [T],
}

/// Panics unless there are one or two branches of this shape.
fn check<T>(branches: &[BnBranch<T>], shape: [usize; 4]) {
    assert!((1..=2).contains(&branches.len()), "batch norm of {} branches", branches.len());
    for b in branches {
        assert_eq!(b.x.shape(), shape);
        assert!([b.mean, b.var, b.gamma, b.beta].iter().all(|v| v.len() == shape[3]), "parameters of {shape:?}");
    }
}

/// A branch's parameters for one vector of channels.
#[derive(Clone, Copy)]
struct Params<V> {
    mean: V,
    rstd: V,
    scale: V,
    beta: V,
}

impl<V: Copy> Params<V> {
    /// Parameters of channels c..c+len; unused lanes are harmless.
    #[inline(always)]
    fn load<T: Element, S: Simd<T, V = V>>(s: S, branch: &BnBranch<T>, eps: T, c: usize, len: usize) -> Self {
        let mut rstd = [T::one(); 8];
        for (r, v) in rstd.iter_mut().zip(&branch.var[c..c + len]) {
            *r = T::one() / (*v + eps).sqrt();
        }
        // SAFETY: the slices have the view's channels (see `check`), LANES <= 8.
        unsafe {
            let rstd = s.load(rstd.as_ptr());
            let gamma = load_piece(s, branch.gamma.as_ptr().add(c), len);
            let mean = load_piece(s, branch.mean.as_ptr().add(c), len);
            let beta = load_piece(s, branch.beta.as_ptr().add(c), len);
            Self { mean, rstd, scale: s.mul(gamma, rstd), beta }
        }
    }
}
