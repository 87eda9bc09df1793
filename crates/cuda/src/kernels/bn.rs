//! What the kernels of a batch norm with its activation share.

use super::tiling::{Typed, expect, expect_equal};
use super::{Module, RawView};
use crate::error::Result;
use crate::view::View;
use graph::Activation;
use std::sync::Arc;

/// One normalised input. The addresses are of float32 vectors with one value for each physical channel, aligned to 16
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct Branch {
    /// The convolution's output.
    pub x: View,
    pub mean: u64,
    /// Biased variance.
    pub var: u64,
    pub gamma: u64,
    pub beta: u64,
}

/// `Branch` of bn.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RawBranch {
    x: RawView,
    mean: u64,
    var: u64,
    gamma: u64,
    beta: u64,
}

impl From<Branch> for RawBranch {
    fn from(b: Branch) -> Self {
        Self { x: b.x.into(), mean: b.mean, var: b.var, gamma: b.gamma, beta: b.beta }
    }
}

/// Both branches, the first twice where there is one.
pub(super) fn raw(branches: &[Branch]) -> [RawBranch; 2] {
    [branches[0].into(), branches[branches.len() - 1].into()]
}

/// An error unless there are one or two branches of the other operands' shape.
pub(super) fn expect_branches(
    kernel: &'static str,
    branches: &[Branch],
    others: impl IntoIterator<Item = View>,
) -> Result<()> {
    expect(kernel, matches!(branches.len(), 1 | 2), || format!("{} branches", branches.len()))?;
    expect_equal(kernel, branches.iter().map(|b| b.x).chain(others))?;
    let vectors = |b: &Branch| [b.mean, b.var, b.gamma, b.beta].iter().all(|v| v.is_multiple_of(16));
    expect(kernel, branches.iter().all(vectors), || "a vector that is not aligned to 16 bytes".into())
}

/// Family of an activation, and its slope: SiLU is 0, all others are 1 with the slope below zero.
pub(super) fn family(act: Activation) -> (usize, f32) {
    match act {
        Activation::Silu => (0, 0.0),
        Activation::Identity => (1, 1.0),
        Activation::Relu => (1, 0.0),
        Activation::LeakyRelu(slope) => (1, slope),
    }
}

/// A kernel for each activation family, number of branches and storage type.
#[derive(Debug)]
pub(super) struct Forms([[Typed; 2]; 2]);

impl Forms {
    pub fn load(module: &Arc<Module>, name: &str) -> Result<Self> {
        let form = |family: &str, branches: usize| Typed::load(module, &format!("{name}_{family}_{branches}"));
        Ok(Self([[form("silu", 1)?, form("silu", 2)?], [form("leaky", 1)?, form("leaky", 2)?]]))
    }

    pub fn of(&self, family: usize, branches: usize) -> &Typed {
        &self.0[family][branches - 1]
    }
}
