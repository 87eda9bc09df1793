//! Max pooling.

use super::compiler::Source;
use super::max_pool_5::{FIVE, MaxPool5};
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, pool_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::ops::PoolAttrs;

pub(super) const SOURCE: Source = pool_source!("max_pool.cu");

/// Largest window side whose positions fit a byte.
const BYTE_SIDE: usize = 16;
/// Largest window side at all.
const MOST_SIDE: usize = 256;

/// `Window` of the pools' sources.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Window {
    kernel: u32,
    stride: u32,
    pad: u32,
}

impl From<PoolAttrs> for Window {
    fn from(p: PoolAttrs) -> Self {
        Self { kernel: p.kernel as u32, stride: p.stride as u32, pad: p.pad as u32 }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    y: RawView,
    tiling: Tiling,
    window: Window,
    unused: u32,
    places: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GradArgs {
    dy: RawView,
    dx: RawView,
    tiling: Tiling,
    window: Window,
    accumulate: u32,
    places: u64,
}

/// An error unless y is the pool of x.
pub(super) fn expect_pool(kernel: &'static str, x: View, y: View, pool: PoolAttrs) -> Result<()> {
    expect_views(kernel, &[x, y])?;
    expect(kernel, pool.kernel > 0 && pool.stride > 0, || format!("{pool:?}"))?;
    let output =
        |extent: usize| (extent + 2 * pool.pad).checked_sub(pool.kernel).map_or(0, |room| room / pool.stride + 1);
    let want = [x.n, output(x.h), output(x.w), x.c];
    expect(kernel, [y.n, y.h, y.w, y.c] == want, || format!("{pool:?} of {x:?} to {y:?}"))
}

/// Max pooling and its gradient.
#[derive(Debug)]
pub struct MaxPool {
    any: Typed,
    /// With places of one byte and of two.
    places: [Typed; 2],
    gradient: [Typed; 2],
    five: MaxPool5,
}

impl MaxPool {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let load = |name: &str| Typed::load(&module, name);
        Ok(Self {
            any: load("max_pool")?,
            places: [load("max_pool_places_u8")?, load("max_pool_places_u16")?],
            gradient: [load("max_pool_grad_u8")?, load("max_pool_grad_u16")?],
            five: MaxPool5::load(gpu)?,
        })
    }

    /// `y` = maximum of each window of x; padding is minus infinity, NaN wins.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of their extents.
    pub unsafe fn run(&self, x: View, y: View, pool: PoolAttrs) -> Result<()> {
        expect_pool("max_pool", x, y, pool)?;
        if pool == FIVE {
            // SAFETY: the caller's promise.
            return unsafe { self.five.run(x, y) };
        }
        // SAFETY: the caller's promise.
        unsafe { launch(&self.any, x, y, pool, 0) }
    }

    /// Bytes of scratch of [`Self::gradient`] for so many pixels and physical channels of dy.
    pub fn scratch(pixels: usize, channels: usize, pool: PoolAttrs) -> usize {
        match pool {
            FIVE => 0,
            _ => pixels * channels * if pool.kernel <= BYTE_SIDE { 1 } else { 2 },
        }
    }

    /// `dx (+)=` dy handed to the first maximum of each window of x, in row-major order.
    ///
    /// # Errors
    /// Operands that do not fit, windows larger than 256, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents; `scratch` has [`Self::scratch`] bytes and is aligned to 16.
    pub unsafe fn gradient(
        &self,
        x: View,
        dy: View,
        dx: View,
        pool: PoolAttrs,
        accumulate: bool,
        scratch: u64,
    ) -> Result<()> {
        expect_pool("max_pool_grad", x, dy, pool)?;
        expect_pool("max_pool_grad", dx, dy, pool)?;
        let same = [x.n, x.h, x.w, x.c] == [dx.n, dx.h, dx.w, dx.c];
        expect("max_pool_grad", same && pool.kernel <= MOST_SIDE, || format!("{pool:?}: {x:?} and {dx:?}"))?;
        if pool == FIVE {
            // SAFETY: the caller's promise.
            return unsafe { self.five.gradient(x, dy, dx, accumulate) };
        }
        let width = usize::from(pool.kernel > BYTE_SIDE);
        // SAFETY: the caller's promise; dy gives the shape only and is not touched.
        unsafe { launch(&self.places[width], x, dy, pool, scratch) }?;
        let cover = Cover::neighbours(dx.pixels(), dx.c);
        let args = GradArgs {
            dy: dy.into(),
            dx: dx.into(),
            tiling: cover.tiling,
            window: pool.into(),
            accumulate: accumulate.into(),
            places: scratch,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.gradient[width].of(dx.format).launch(cover.grid, cover.block, 0, &args) }
    }
}

/// # Safety
/// All operands are device memory of their extents, and fit.
unsafe fn launch(kernel: &Typed, x: View, y: View, pool: PoolAttrs, places: u64) -> Result<()> {
    let cover = Cover::neighbours(y.pixels(), y.c);
    let args = Args { x: x.into(), y: y.into(), tiling: cover.tiling, window: pool.into(), unused: 0, places };
    // SAFETY: the caller's promise; the struct is the kernel's.
    unsafe { kernel.of(x.format).launch(cover.grid, cover.block, 0, &args) }
}
