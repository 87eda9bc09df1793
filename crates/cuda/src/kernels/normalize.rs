//! Pictures of bytes to values between 0 and 1.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = channels_source!("normalize.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: u64,
    y: RawView,
    tiling: Tiling,
    channels: u32,
    unused: u32,
}

/// `y = x / 255`.
#[derive(Debug)]
pub struct Normalize(Typed);

impl Normalize {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Typed::load(&Module::load(gpu, SOURCE)?, "normalize")?))
    }

    /// `y = x / 255`; x is packed (n, h, w, `channels`) bytes of y's pixels. Channels of y that x lacks become zero.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of that extent.
    pub unsafe fn run(&self, x: u64, channels: usize, y: View) -> Result<()> {
        expect_views("normalize", &[y])?;
        expect("normalize", channels <= y.c, || format!("{channels} channels into {}", y.c))?;
        let cover = Cover::pointwise(y.pixels(), y.c);
        let args = Args { x, y: y.into(), tiling: cover.tiling, channels: channels as u32, unused: 0 };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }
}
