//! Convolution and its two gradients. Weights are (out, kernel, kernel, in / groups).

use super::{Access, Activation, OpDef};
use crate::graph::TensorId;
use crate::params::ParamId;

/// Geometry of a square convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvAttrs {
    pub kernel: usize,
    pub stride: usize,
    pub pad: usize,
    pub groups: usize,
}

impl ConvAttrs {
    /// `pad = kernel / 2`, one group.
    pub fn new(kernel: usize, stride: usize) -> Self {
        Self { kernel, stride, pad: kernel / 2, groups: 1 }
    }

    /// Output extent for an input extent.
    pub fn output(&self, extent: usize) -> usize {
        (extent + 2 * self.pad - self.kernel) / self.stride + 1
    }

    /// Input channels that one output channel sees.
    pub fn in_per_group(&self, channels: usize) -> usize {
        channels / self.groups
    }
}

/// `y = act(conv(x, w) + bias)`. The activation is an epilogue for inference only.
#[derive(Clone, Debug)]
pub struct Conv2d {
    pub x: TensorId,
    pub w: ParamId,
    pub bias: Option<ParamId>,
    pub act: Activation,
    pub y: TensorId,
    pub attrs: ConvAttrs,
}

impl OpDef for Conv2d {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }

    fn unsegmented(&self) -> Vec<TensorId> {
        if self.attrs.groups == 1 { Vec::new() } else { vec![self.x, self.y] }
    }
}

/// `dx (+)= conv_transposed(dy, w)`.
#[derive(Clone, Debug)]
pub struct ConvDataGrad {
    pub dy: TensorId,
    pub w: ParamId,
    pub dx: TensorId,
    pub attrs: ConvAttrs,
    pub accumulate: bool,
}

impl OpDef for ConvDataGrad {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.dy, Access::Read);
        f(&mut self.dx, Access::output(self.accumulate));
    }
}

/// Adds the gradients of weight and bias to the flat gradient.
#[derive(Clone, Debug)]
pub struct ConvWeightGrad {
    pub x: TensorId,
    pub dy: TensorId,
    pub w: ParamId,
    pub bias: Option<ParamId>,
    pub attrs: ConvAttrs,
}

impl OpDef for ConvWeightGrad {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.dy, Access::Read);
    }
}
