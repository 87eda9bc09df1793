//! Two-dimensional convolution on NHWC views: forward, data gradient, weight gradient.
//!
//! Weights are OHWI, dense: `[cout][kh][kw][cin / groups]`. Group g reads channels g*cin/groups.. and writes channels
//! g*cout/groups... No im2col: forward and data gradient share one direct kernel (`engine.rs`) over packed
//! weights, the weight gradient has its own.

mod data_grad;
mod engine;
mod forward;
mod pack;
mod weight_grad;

pub use data_grad::{conv_data_grad, conv_data_grad_scratch};
pub use forward::{conv_forward, conv_forward_scratch};
pub use weight_grad::{conv_weight_grad, conv_weight_grad_scratch};

use super::window_count;

/// The largest number of kernel taps (kh * kw) the kernels take: 11 x 11.
pub const MAX_TAPS: usize = 121;

/// A convolution's geometry; `[y, x]` order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvAttrs {
    /// Kernel height and width, at most [`MAX_TAPS`] taps.
    pub kernel: [usize; 2],
    /// Step.
    pub stride: [usize; 2],
    /// Zeros added on each side.
    pub pad: [usize; 2],
    /// Channel groups; divides both channel counts.
    pub groups: usize,
}

impl ConvAttrs {
    /// A square convolution.
    pub fn square(kernel: usize, stride: usize, pad: usize, groups: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], pad: [pad; 2], groups }
    }

    /// Height and width of the output: floor((len + 2*pad - kernel) / stride) + 1 each.
    pub fn output_size(&self, input: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|i| window_count(input[i], self.kernel[i], self.stride[i], self.pad[i]))
    }

    /// kh * kw.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Elements of the weights.
    pub fn weight_len(&self, cin: usize, cout: usize) -> usize {
        cout * self.taps() * (cin / self.groups)
    }

    /// Panics unless input `x` (n, h, w, cin) and output `y` fit this convolution.
    fn check(&self, x: [usize; 4], y: [usize; 4], weights: usize) {
        assert!(
            self.groups > 0 && x[3].is_multiple_of(self.groups) && y[3].is_multiple_of(self.groups),
            "{self:?} on {x:?} -> {y:?}"
        );
        assert!((1..=MAX_TAPS).contains(&self.taps()), "{self:?}");
        let [h, w] = self.output_size([x[1], x[2]]);
        assert_eq!([x[0], h, w], [y[0], y[1], y[2]], "{self:?} on {x:?}");
        assert_eq!(weights, self.weight_len(x[3], y[3]), "{self:?} on {x:?} -> {y:?}");
    }
}
