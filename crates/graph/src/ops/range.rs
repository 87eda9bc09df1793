//! Concatenation and channel ranges. Both vanish when ranges are placed: parts are written where the
//! whole is read.

use super::{Access, OpDef};
use crate::graph::TensorId;

/// `y` holds the channels of `xs` one after the other.
#[derive(Clone, Debug)]
pub struct Concat {
    pub xs: Vec<TensorId>,
    pub y: TensorId,
}

impl OpDef for Concat {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        self.xs.iter_mut().for_each(|x| f(x, Access::Read));
        f(&mut self.y, Access::Write);
    }
}

/// `y` is channels `start..` of `x`, as many as `y` has.
#[derive(Clone, Debug)]
pub struct Slice {
    pub x: TensorId,
    pub start: usize,
    pub y: TensorId,
}

impl OpDef for Slice {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }
}
