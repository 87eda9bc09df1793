//! Mean and variance of each channel.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect_views};
use super::{Function, Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = channels_source!("bn_stats.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    tiling: Tiling,
    partials: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct FinishArgs {
    partials: u64,
    mean: u64,
    var: u64,
    pixels: u32,
    chunk: u32,
    chunks: u32,
    channels: u32,
}

/// Batch statistics.
#[derive(Debug)]
pub struct BnStats {
    chunks: Typed,
    finish: Function,
}

impl BnStats {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        Ok(Self { chunks: Typed::load(&module, "bn_stats")?, finish: module.function("bn_stats_finish")? })
    }

    /// Bytes of scratch for so many pixels and physical channels.
    pub fn scratch(pixels: usize, channels: usize) -> usize {
        2 * 4 * channels * Cover::reduction(pixels, channels).chunks()
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
        let cover = Cover::reduction(x.pixels(), x.c);
        let args = Args { x: x.into(), tiling: cover.tiling, partials: scratch };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.chunks.of(x.format).launch(cover.grid, cover.block, 0, &args) }?;
        let finish = FinishArgs {
            partials: scratch,
            mean,
            var,
            pixels: x.pixels() as u32,
            chunk: cover.tiling.chunk,
            chunks: cover.grid[0],
            channels: x.c as u32,
        };
        let grid = if x.pixels() == 0 { 0 } else { (x.c / 8) as u32 };
        // SAFETY: as above.
        unsafe { self.finish.launch([grid, 1, 1], [1024, 1, 1], 0, &finish) }
    }
}
