//! Average pooling.

use super::compiler::Source;
use super::max_pool::{Window, expect_pool};
use super::tiling::{Cover, Tiling, Typed};
use super::{Module, RawView, pool_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::ops::PoolAttrs;

pub(super) const SOURCE: Source = pool_source!("average_pool.cu");

/// Rows of results that a thread of the 2x2 kernel makes.
const ROWS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    y: RawView,
    tiling: Tiling,
    window: Window,
    accumulate: u32,
    scale: f32,
    shift: i32,
}

/// Average pooling and its gradient.
#[derive(Debug)]
pub struct AveragePool {
    any: Typed,
    gradient: Typed,
    /// 2x2 windows of stride 1, both ways.
    two: Typed,
}

impl AveragePool {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let load = |name: &str| Typed::load(&module, name);
        Ok(Self { any: load("average_pool")?, gradient: load("average_pool_grad")?, two: load("average_pool_2")? })
    }

    /// `y` = mean of each window of x; padding counts as zero.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of their extents.
    pub unsafe fn run(&self, x: View, y: View, pool: PoolAttrs) -> Result<()> {
        expect_pool("average_pool", x, y, pool)?;
        // SAFETY: the caller's promise.
        unsafe { self.launch(&self.any, x, y, pool, false, -(pool.pad as i32)) }
    }

    /// `dx (+)=` dy spread evenly over each window.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// dy and dx are device memory of their extents.
    pub unsafe fn gradient(&self, dy: View, dx: View, pool: PoolAttrs, accumulate: bool) -> Result<()> {
        expect_pool("average_pool_grad", dx, dy, pool)?;
        // Row i of dx is in the windows i + pad - 1 and i + pad.
        // SAFETY: the caller's promise.
        unsafe { self.launch(&self.gradient, dy, dx, pool, accumulate, pool.pad as i32 - 1) }
    }

    /// # Safety
    /// x and y are device memory of their extents, and fit.
    unsafe fn launch(
        &self,
        any: &Typed,
        x: View,
        y: View,
        pool: PoolAttrs,
        accumulate: bool,
        shift: i32,
    ) -> Result<()> {
        let two = pool.kernel == 2 && pool.stride == 1;
        let (kernel, items) = if two { (&self.two, y.n * y.h.div_ceil(ROWS) * y.w) } else { (any, y.pixels()) };
        let cover = Cover::neighbours(items, y.c);
        let args = Args {
            x: x.into(),
            y: y.into(),
            tiling: cover.tiling,
            window: pool.into(),
            accumulate: accumulate.into(),
            scale: 1.0 / (pool.kernel * pool.kernel) as f32,
            shift,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { kernel.of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }
}
