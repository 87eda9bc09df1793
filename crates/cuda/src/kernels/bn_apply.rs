//! Normalise, sum the branches, activate, add the residual: one pass.

use super::bn::{Branch, Forms, RawBranch, expect_branches, family, raw};
use super::compiler::Source;
use super::sweep::Sweep;
use super::{Module, RawView, bn_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = bn_source!("bn_apply.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    branches: [RawBranch; 2],
    residual: RawView,
    y: RawView,
    sweep: Sweep,
    eps: f32,
    slope: f32,
}

/// Batch norm with its activation.
#[derive(Debug)]
pub struct BnApply(Forms);

impl BnApply {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Forms::load(&Module::load(gpu, SOURCE)?, "bn_apply")?))
    }

    /// `y = act(sum of the normalised branches) + residual`, one or two branches.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(
        &self,
        branches: &[Branch],
        eps: f32,
        act: Activation,
        residual: Option<View>,
        y: View,
    ) -> Result<()> {
        expect_branches("bn_apply", branches, residual.into_iter().chain([y]))?;
        // As many blocks as a multiprocessor has registers for.
        let sweep = Sweep::map(y.pixels(), y.c, 4 - branches.len());
        let (family, slope) = family(act);
        let args = Args {
            branches: raw(branches),
            residual: residual.map_or_else(RawView::default, Into::into),
            y: y.into(),
            sweep,
            eps,
            slope,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { sweep.launch(self.0.of(family, branches.len()).of(y.format), y.pixels(), branches.len() + 1, &args) }
    }
}
