//! Zeros.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect_views};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = channels_source!("fill.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    y: RawView,
    tiling: Tiling,
}

/// `y = 0`.
#[derive(Debug)]
pub struct Fill(Typed);

impl Fill {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Typed::load(&Module::load(gpu, SOURCE)?, "fill_zero")?))
    }

    /// `y = 0`.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// y is device memory of its extent.
    pub unsafe fn zero(&self, y: View) -> Result<()> {
        expect_views("fill", &[y])?;
        let cover = Cover::pointwise(y.pixels(), y.c);
        let args = Args { y: y.into(), tiling: cover.tiling };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }
}
