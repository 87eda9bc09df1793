//! Batch normalisation: the op a model records, and the four it is lowered to.
//!
//! With `xhat_i = (x_i - mean_i) / sqrt(var_i + eps)` and `z = sum_i(gamma_i * xhat_i + beta_i)` over one
//! branch, or the two of a RepConv, [`BnApply`] computes `y = act(z) + residual`. Backward is
//! [`BnReduce`] (`s1 = sum dz`, `s2_i = sum dz * xhat_i`, `dz = dy * act'(z)`) and [`BnBackward`]
//! (`dx_i = gamma_i / sqrt(var_i + eps) * (dz - s1 / N - xhat_i * s2_i / N)`). Both read the stored `x_i`
//! and recompute `z`, so that `y` need not be kept for them.

use super::{Access, Activation, OpDef};
use crate::graph::TensorId;
use crate::params::{BnParams, ParamId};

/// Batch norm as recorded by a model; always lowered by the fusion pass.
#[derive(Clone, Debug)]
pub struct BatchNorm {
    pub x: TensorId,
    pub params: BnParams,
    pub eps: f64,
    pub y: TensorId,
}

impl OpDef for BatchNorm {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.y, Access::Write);
    }
}

/// Mean and biased variance of each channel over batch and picture.
#[derive(Clone, Debug)]
pub struct BnStats {
    pub x: TensorId,
    pub mean: TensorId,
    pub var: TensorId,
}

impl OpDef for BnStats {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.mean, Access::Write);
        f(&mut self.var, Access::Write);
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![vec![self.x, self.mean, self.var]]
    }
}

/// One normalised input of [`BnApply`].
#[derive(Clone, Debug)]
pub struct BnBranch {
    pub x: TensorId,
    pub mean: TensorId,
    pub var: TensorId,
    pub params: BnParams,
}

impl BnBranch {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.x, Access::Read);
        f(&mut self.mean, Access::Read);
        f(&mut self.var, Access::Read);
    }
}

/// `y = act(sum of normalised branches) + residual`.
#[derive(Clone, Debug)]
pub struct BnApply {
    /// One or two.
    pub branches: Vec<BnBranch>,
    pub eps: f64,
    pub act: Activation,
    pub residual: Option<TensorId>,
    pub y: TensorId,
}

impl OpDef for BnApply {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        self.branches.iter_mut().for_each(|b| b.visit(f));
        if let Some(residual) = &mut self.residual {
            f(residual, Access::Read);
        }
        f(&mut self.y, Access::Write);
    }

    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        vec![self.branches.iter().map(|b| b.x).chain(self.residual).chain([self.y]).collect()]
    }
}

/// The sums of the batch norm's gradient; adds the gradients of gamma and beta to the flat gradient.
#[derive(Clone, Debug)]
pub struct BnReduce {
    pub dy: TensorId,
    pub branches: Vec<BnBranch>,
    pub eps: f64,
    pub act: Activation,
    pub s1: TensorId,
    /// One a branch.
    pub s2: Vec<TensorId>,
}

impl OpDef for BnReduce {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.dy, Access::Read);
        self.branches.iter_mut().for_each(|b| b.visit(f));
        f(&mut self.s1, Access::Write);
        self.s2.iter_mut().for_each(|s| f(s, Access::Write));
    }
}

/// The gradients of the normalised inputs.
#[derive(Clone, Debug)]
pub struct BnBackward {
    pub dy: TensorId,
    pub branches: Vec<BnBranch>,
    pub eps: f64,
    pub act: Activation,
    pub s1: TensorId,
    pub s2: Vec<TensorId>,
    /// Gradient of each branch's input and whether it is added to.
    pub dx: Vec<(TensorId, bool)>,
}

impl OpDef for BnBackward {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        f(&mut self.dy, Access::Read);
        self.branches.iter_mut().for_each(|b| b.visit(f));
        f(&mut self.s1, Access::Read);
        self.s2.iter_mut().for_each(|s| f(s, Access::Read));
        self.dx.iter_mut().for_each(|(dx, accumulate)| f(dx, Access::output(*accumulate)));
    }
}

/// One batch norm's running statistics.
#[derive(Clone, Debug)]
pub struct RunningEntry {
    pub mean: TensorId,
    pub var: TensorId,
    pub running_mean: ParamId,
    pub running_var: ParamId,
    /// Values a channel's statistics were taken over.
    pub count: usize,
}

/// `running = (1 - momentum) * running + momentum * batch` for every batch norm, with the unbiased
/// variance (count 1 is left biased). Skipped when the first element of `guard` is not finite.
#[derive(Clone, Debug)]
pub struct RunningStats {
    pub entries: Vec<RunningEntry>,
    pub momentum: f64,
    pub guard: Option<TensorId>,
}

impl OpDef for RunningStats {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        for entry in &mut self.entries {
            f(&mut entry.mean, Access::Read);
            f(&mut entry.var, Access::Read);
        }
        if let Some(guard) = &mut self.guard {
            f(guard, Access::Read);
        }
    }
}
