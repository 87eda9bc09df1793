//! Nearest-neighbour resizing: `source = floor(target * in / out)`.

use super::{Access, OpDef};
use crate::graph::TensorId;

/// `y` is `x` at `y`'s extent.
#[derive(Clone, Debug)]
pub struct Resize {
    pub x: TensorId,
    pub y: TensorId,
}

impl OpDef for Resize {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![vec![self.x, self.y]]
    }
}

/// Sums the gradients of all outputs that took an input's value.
#[derive(Clone, Debug)]
pub struct ResizeGrad {
    pub dy: TensorId,
    pub dx: TensorId,
    pub accumulate: bool,
}

impl OpDef for ResizeGrad {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.dy, Access::Read);
        f(&mut self.dx, Access::output(self.accumulate));
    }
}
