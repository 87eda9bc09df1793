//! Zeros.

use super::compiler::Source;
use super::tiling::expect_views;
use super::{Function, Module, RawView};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = Source { name: "fill.cu", text: include_str!("fill.cu") };

/// Blocks of a launch, at most; a thread takes what is left.
const BLOCKS: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    y: RawView,
    bytes_per_element: u32,
    unused: u32,
}

/// `y = 0`.
#[derive(Debug)]
pub struct Fill(Function);

impl Fill {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Module::load(gpu, SOURCE)?.function("fill_zero")?))
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
        let args = Args { y: y.into(), bytes_per_element: y.format.bytes() as u32, unused: 0 };
        let blocks = (y.bytes() / 16).div_ceil(256).min(BLOCKS);
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.launch([blocks as u32, 1, 1], [256, 1, 1], 0, &args) }
    }
}
