//! Nearest-neighbour resizing.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;

pub(super) const SOURCE: Source = channels_source!("resize.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    y: RawView,
    tiling: Tiling,
    accumulate: u32,
    unused: u32,
}

/// Resizing and its gradient.
#[derive(Debug)]
pub struct Resize {
    forward: Typed,
    gradient: Typed,
}

impl Resize {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        Ok(Self { forward: Typed::load(&module, "resize")?, gradient: Typed::load(&module, "resize_grad")? })
    }

    /// `y` is x at y's extent: `source = floor(target * in / out)`.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of their extents.
    pub unsafe fn run(&self, x: View, y: View) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { launch(&self.forward, Cover::pointwise(y.pixels(), y.c), x, y, false) }
    }

    /// `dx (+)=` the sum of dy over the pixels that took each value.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// dy and dx are device memory of their extents.
    pub unsafe fn gradient(&self, dy: View, dx: View, accumulate: bool) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { launch(&self.gradient, Cover::neighbours(dx.pixels(), dx.c), dy, dx, accumulate) }
    }
}

/// # Safety
/// x and y are device memory of their extents.
unsafe fn launch(kernel: &Typed, cover: Cover, x: View, y: View, accumulate: bool) -> Result<()> {
    expect_views("resize", &[x, y])?;
    let fits = (x.n, x.c) == (y.n, y.c) && (x.pixels() > 0 || y.pixels() == 0);
    expect("resize", fits, || format!("{x:?} to {y:?}"))?;
    let args = Args { x: x.into(), y: y.into(), tiling: cover.tiling, accumulate: accumulate.into(), unused: 0 };
    // SAFETY: the caller's promise; the struct is the kernel's.
    unsafe { kernel.of(y.format).launch(cover.grid, cover.block, 0, &args) }
}
