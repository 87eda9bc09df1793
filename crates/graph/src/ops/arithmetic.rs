//! Sums, copies, fills, and the conversion of pictures.

use super::{Access, OpDef};
use crate::graph::TensorId;

/// `y = x / 255` for u8 pictures.
#[derive(Clone, Debug)]
pub struct Normalize {
    pub x: TensorId,
    pub y: TensorId,
}

impl OpDef for Normalize {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }
}

/// `y = sum(xs)`, in the order given.
#[derive(Clone, Debug)]
pub struct Add {
    pub xs: Vec<TensorId>,
    pub y: TensorId,
}

impl OpDef for Add {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        self.xs.iter_mut().for_each(|x| f(x, Access::Read));
        f(&mut self.y, Access::Write);
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![self.xs.iter().copied().chain([self.y]).collect()]
    }
}

/// `y (+)= x`.
#[derive(Clone, Debug)]
pub struct Copy {
    pub x: TensorId,
    pub y: TensorId,
    pub accumulate: bool,
}

impl OpDef for Copy {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::output(self.accumulate));
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![vec![self.x, self.y]]
    }
}

/// `y = 0`.
#[derive(Clone, Debug)]
pub struct Fill {
    pub y: TensorId,
}

impl OpDef for Fill {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.y, Access::Write);
    }
}
