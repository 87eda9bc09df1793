//! Activation functions.

use super::{Access, OpDef};
use crate::graph::TensorId;

/// An element-wise non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub enum Activation {
    #[default]
    Identity,
    /// `x * sigmoid(x)`.
    Silu,
    Relu,
    /// `x` above 0, `slope * x` below.
    LeakyRelu(f32),
}

/// `y = act(x)`.
#[derive(Clone, Debug)]
pub struct Activate {
    pub x: TensorId,
    pub act: Activation,
    pub y: TensorId,
}

impl OpDef for Activate {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![vec![self.x, self.y]]
    }
}

/// `dx (+)= dy * act'(x)`.
#[derive(Clone, Debug)]
pub struct ActivateGrad {
    pub x: TensorId,
    pub dy: TensorId,
    pub act: Activation,
    pub dx: TensorId,
    pub accumulate: bool,
}

impl OpDef for ActivateGrad {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.dy, Access::Read);
        f(&mut self.dx, Access::output(self.accumulate));
    }
}
