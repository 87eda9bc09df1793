//! Mean and variance of each channel.

use super::compiler::Source;
use super::sums::{RawSums, Sums};
use super::tiling::{Typed, expect_views};
use super::{Module, RawView, sums_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = sums_source!("bn_stats.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    sums: RawSums,
    mean: u64,
    var: u64,
}

/// Batch statistics.
#[derive(Debug)]
pub struct BnStats {
    kernel: Typed,
    sums: Sums,
}

impl BnStats {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let kernel = Typed::load(&Module::load(gpu, SOURCE)?, "bn_stats")?;
        Sums::allow(&kernel, 1)?;
        Ok(Self { kernel, sums: Sums::new(gpu)? })
    }

    /// Bytes of scratch for so many pixels and physical channels.
    pub fn scratch(pixels: usize, channels: usize) -> usize {
        Sums::scratch(pixels, channels, 2)
    }

    /// Writes mean and biased variance of each of x's channels, float32 at `mean` and `var`.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x is device memory, `mean` and `var` have room for its channels, `scratch` for [`Self::scratch`] bytes and is
    /// aligned to 16.
    pub unsafe fn run(&self, x: View, mean: u64, var: u64, scratch: u64) -> Result<()> {
        expect_views("bn_stats", &[x])?;
        let sums = self.sums.raw("bn_stats", x.pixels(), x.c, scratch)?;
        let args = Args { x: x.into(), sums, mean, var };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { sums.launch(self.kernel.of(x.format), x.pixels(), 1, &args) }
    }
}
