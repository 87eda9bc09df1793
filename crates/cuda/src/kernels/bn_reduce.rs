//! The sums of a batch norm's gradient.

use super::bn::{Branch, Forms, RawBranch, expect_branches, family, raw};
use super::compiler::Source;
use super::sums::{RawSums, Sums};
use super::tiling::expect;
use super::{Module, RawView, bn_sums_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = bn_sums_source!("bn_reduce.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    dy: RawView,
    branches: [RawBranch; 2],
    sums: RawSums,
    s1: u64,
    s2: [u64; 2],
    gamma_grad: [u64; 2],
    beta_grad: [u64; 2],
    eps: f32,
    slope: f32,
}

/// Where a branch's sums go: float32 vectors with one value for each physical channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct BranchSums {
    /// Written: the sum of dz * xhat.
    pub s2: u64,
    /// Added to: the gradients of gamma (s2) and beta (s1) in the flat gradient.
    pub gamma_grad: Option<u64>,
    pub beta_grad: Option<u64>,
}

/// The sums of the gradient.
#[derive(Debug)]
pub struct BnReduce {
    kernels: Forms,
    sums: Sums,
}

impl BnReduce {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let kernels = Forms::load(&Module::load(gpu, SOURCE)?, "bn_reduce")?;
        for branches in [1, 2] {
            for family in [0, 1] {
                Sums::allow(kernels.of(family, branches), 1 + branches)?;
            }
        }
        Ok(Self { kernels, sums: Sums::new(gpu)? })
    }

    /// Bytes of scratch for so many pixels, physical channels and branches.
    pub fn scratch(pixels: usize, channels: usize, branches: usize) -> usize {
        Sums::scratch(pixels, channels, 1 + branches)
    }

    /// Writes `s1 = sum dz` and each branch's sums, with `dz = dy * act'(z)`.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents; `scratch` has [`Self::scratch`] bytes and is aligned to 16.
    pub unsafe fn run(
        &self,
        dy: View,
        branches: &[Branch],
        eps: f32,
        act: Activation,
        s1: u64,
        sums: &[BranchSums],
        scratch: u64,
    ) -> Result<()> {
        expect_branches("bn_reduce", branches, [dy])?;
        expect("bn_reduce", sums.len() == branches.len(), || format!("{} sums", sums.len()))?;
        let raw_sums = self.sums.raw("bn_reduce", dy.pixels(), dy.c, scratch)?;
        let (family, slope) = family(act);
        let of = |f: &dyn Fn(usize) -> u64| [f(0), f(branches.len() - 1)];
        let args = Args {
            dy: dy.into(),
            branches: raw(branches),
            sums: raw_sums,
            s1,
            s2: of(&|b| sums[b].s2),
            gamma_grad: of(&|b| sums[b].gamma_grad.unwrap_or(0)),
            beta_grad: of(&|b| sums[b].beta_grad.unwrap_or(0)),
            eps,
            slope,
        };
        let kernel = self.kernels.of(family, branches.len()).of(dy.format);
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { raw_sums.launch(kernel, dy.pixels(), 1 + branches.len(), &args) }
    }
}
