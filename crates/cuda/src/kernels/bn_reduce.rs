//! The sums of a batch norm's gradient.

use super::bn::{Branch, Forms, RawBranch, expect_branches, family, raw};
use super::compiler::Source;
use super::tiling::{Cover, Tiling, expect};
use super::{Function, Module, RawView, bn_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = bn_source!("bn_reduce.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    dy: RawView,
    branches: [RawBranch; 2],
    tiling: Tiling,
    eps: f32,
    slope: f32,
    partials: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FinishArgs {
    partials: u64,
    s1: u64,
    s2: [u64; 2],
    var: [u64; 2],
    gamma_grad: [u64; 2],
    beta_grad: [u64; 2],
    chunks: u32,
    channels: u32,
    branches: u32,
    eps: f32,
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
    chunks: Forms,
    finish: Function,
}

impl BnReduce {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        Ok(Self { chunks: Forms::load(&module, "bn_reduce")?, finish: module.function("bn_reduce_finish")? })
    }

    /// Bytes of scratch for so many pixels, physical channels and branches.
    pub fn scratch(pixels: usize, channels: usize, branches: usize) -> usize {
        (1 + branches) * 4 * channels * Cover::reduction(pixels, channels).chunks()
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
        let cover = Cover::reduction(dy.pixels(), dy.c);
        let (family, slope) = family(act);
        let args = Args { dy: dy.into(), branches: raw(branches), tiling: cover.tiling, eps, slope, partials: scratch };
        let kernel = self.chunks.of(family, branches.len()).of(dy.format);
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { kernel.launch(cover.grid, cover.block, 0, &args) }?;
        let of = |f: &dyn Fn(usize) -> u64| [f(0), f(branches.len() - 1)];
        let finish = FinishArgs {
            partials: scratch,
            s1,
            s2: of(&|b| sums[b].s2),
            var: of(&|b| branches[b].var),
            gamma_grad: of(&|b| sums[b].gamma_grad.unwrap_or(0)),
            beta_grad: of(&|b| sums[b].beta_grad.unwrap_or(0)),
            chunks: cover.grid[0],
            channels: dy.c as u32,
            branches: branches.len() as u32,
            eps,
        };
        let grid = if dy.pixels() == 0 { 0 } else { (dy.c / 8) as u32 };
        // SAFETY: as above.
        unsafe { self.finish.launch([grid, 1, 1], [1024, 1, 1], 0, &finish) }
    }
}
