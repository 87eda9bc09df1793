//! Sums of tensors.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect, expect_equal};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = channels_source!("add.cu");

/// Inputs of one launch.
const MOST: usize = 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    xs: [RawView; MOST],
    y: RawView,
    tiling: Tiling,
    count: u32,
    unused: u32,
}

/// `y = sum(xs)`.
#[derive(Debug)]
pub struct Add(Typed);

impl Add {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Typed::load(&Module::load(gpu, SOURCE)?, "add")?))
    }

    /// `y = sum(xs)` in their order, of one to eight inputs; y may be one of them.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(&self, xs: &[View], y: View) -> Result<()> {
        expect("add", (1..=MOST).contains(&xs.len()), || format!("{} inputs", xs.len()))?;
        expect_equal("add", xs.iter().copied().chain([y]))?;
        let cover = Cover::pointwise(y.pixels(), y.c);
        let mut inputs = [RawView::default(); MOST];
        inputs.iter_mut().zip(xs).for_each(|(raw, &x)| *raw = x.into());
        let args = Args { xs: inputs, y: y.into(), tiling: cover.tiling, count: xs.len() as u32, unused: 0 };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }
}
