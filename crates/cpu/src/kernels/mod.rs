//! The CPU kernels of a training step, generic over f32 and f64, on NHWC [`View`]s.
//!
//! Rules all of them keep:
//! - nothing is allocated; scratch is passed in, its length comes from a companion function of the shapes;
//! - work is split over rayon's current pool by shape only, and every sum has one fixed order, so results do not depend
//!   on the number of threads;
//! - an output is written (`out = v`) or, with `accumulate`, added to (`out += v`);
//! - shapes that do not fit together are a caller's mistake and panic.
//!
//! `unsafe fn`s here are small and say what they need; their bodies are not wrapped in a second `unsafe` block.
#![allow(unsafe_op_in_unsafe_fn)]

mod activation;
mod average_pool;
pub mod batch_norm;
pub mod conv;
mod max_pool;
mod normalize;
mod parallel;
mod pointwise;
mod resize;
pub mod simd;
mod view;

pub use activation::{Activation, activation, activation_grad};
pub use average_pool::{average_pool, average_pool_grad};
pub use max_pool::{max_pool, max_pool_grad};
pub use normalize::normalize;
pub use pointwise::{add, copy, fill};
pub use resize::{resize_nearest, resize_nearest_grad};
pub use view::{View, ViewMut};

/// Window of a pooling operation, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolAttrs {
    /// Side of the window.
    pub kernel: usize,
    /// Step between windows.
    pub stride: usize,
    /// Rows and columns added on each side.
    pub pad: usize,
}

impl PoolAttrs {
    /// Output length for an input length: floor((len + 2*pad - kernel) / stride) + 1; 0 if the window does not fit.
    pub fn output_len(&self, len: usize) -> usize {
        window_count(len, self.kernel, self.stride, self.pad)
    }
}

/// floor((len + 2*pad - kernel) / stride) + 1; 0 if the window does not fit.
pub(crate) fn window_count(len: usize, kernel: usize, stride: usize, pad: usize) -> usize {
    assert!(kernel > 0 && stride > 0, "kernel and stride are at least 1");
    match (len + 2 * pad).checked_sub(kernel) {
        Some(room) if len > 0 => room / stride + 1,
        _ => 0,
    }
}
