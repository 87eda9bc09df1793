//! The gradients of a batch norm's inputs.

use super::bn::{Branch, Forms, RawBranch, expect_branches, family, raw};
use super::compiler::Source;
use super::sweep::Sweep;
use super::tiling::expect;
use super::{Module, RawView, bn_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = bn_source!("bn_backward.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    dy: RawView,
    branches: [RawBranch; 2],
    dx: [RawView; 2],
    s1: u64,
    s2: [u64; 2],
    accumulate: [u32; 2],
    sweep: Sweep,
    eps: f32,
    slope: f32,
    inverse: f32,
    unused: u32,
}

/// Where a branch's gradient goes.
#[derive(Clone, Copy, Debug)]
pub struct BranchGrad {
    /// [`super::BnReduce`]'s sum.
    pub s2: u64,
    pub dx: View,
    /// Added to what is there instead of written.
    pub accumulate: bool,
}

/// The gradients of the normalised inputs.
#[derive(Debug)]
pub struct BnBackward(Forms);

impl BnBackward {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Forms::load(&Module::load(gpu, SOURCE)?, "bn_backward")?))
    }

    /// Each branch's `dx (+)= gamma / sqrt(var + eps) * (dz - s1 / count - xhat * s2 / count)`; `count` is the number
    /// of pixels behind the statistics.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(
        &self,
        dy: View,
        branches: &[Branch],
        eps: f32,
        act: Activation,
        s1: u64,
        count: usize,
        grads: &[BranchGrad],
    ) -> Result<()> {
        expect_branches("bn_backward", branches, grads.iter().map(|g| g.dx).chain([dy]))?;
        expect("bn_backward", grads.len() == branches.len(), || format!("{} gradients", grads.len()))?;
        let aligned = [s1].into_iter().chain(grads.iter().map(|g| g.s2)).all(|v| v.is_multiple_of(16));
        expect("bn_backward", aligned, || "a sum that is not aligned to 16 bytes".into())?;
        let sweep = Sweep::map(dy.pixels(), dy.c, 2);
        let (family, slope) = family(act);
        let (first, last) = (&grads[0], &grads[grads.len() - 1]);
        let args = Args {
            dy: dy.into(),
            branches: raw(branches),
            dx: [first.dx.into(), last.dx.into()],
            s1,
            s2: [first.s2, last.s2],
            accumulate: [first.accumulate.into(), last.accumulate.into()],
            sweep,
            eps,
            slope,
            inverse: 1.0 / count.max(1) as f32,
            unused: 0,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { sweep.launch(self.0.of(family, branches.len()).of(dy.format), dy.pixels(), 1 + branches.len(), &args) }
    }
}
