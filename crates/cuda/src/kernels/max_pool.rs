//! Max pooling.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::ops::PoolAttrs;

pub(super) const SOURCE: Source = channels_source!("max_pool.cu");

/// Largest window side whose positions fit a byte.
const BYTE_SIDE: usize = 16;
/// Largest window side at all.
const MOST_SIDE: usize = 256;
/// Rows of results that a thread of the 5x5 kernel makes.
const ROWS: usize = 5;
/// The models' pool, which has kernels of its own.
const FIVE: PoolAttrs = PoolAttrs { kernel: 5, stride: 1, pad: 2 };

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
    five: Typed,
    /// With places of one byte and of two.
    places: [Typed; 2],
    gradient: [Typed; 2],
    five_places: Typed,
    five_gradient: Typed,
}

impl MaxPool {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let load = |name: &str| Typed::load(&module, name);
        Ok(Self {
            any: load("max_pool")?,
            five: load("max_pool_5")?,
            places: [load("max_pool_places_u8")?, load("max_pool_places_u16")?],
            gradient: [load("max_pool_grad_u8")?, load("max_pool_grad_u16")?],
            five_places: load("max_pool_places_5")?,
            five_gradient: load("max_pool_grad_5")?,
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
        let (kernel, cover) = match pool == FIVE {
            true => (&self.five, columns(y)),
            false => (&self.any, Cover::neighbours(y.pixels(), y.c)),
        };
        // SAFETY: the caller's promise.
        unsafe { launch(kernel, x, y, pool, cover, 0) }
    }

    /// Bytes of scratch of [`Self::gradient`] for so many pixels and physical channels of dy.
    pub fn scratch(pixels: usize, channels: usize, pool: PoolAttrs) -> usize {
        pixels * channels * if pool.kernel <= BYTE_SIDE { 1 } else { 2 }
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
        let width = usize::from(pool.kernel > BYTE_SIDE);
        let (places, gradient, covers) = match pool == FIVE {
            true => (&self.five_places, &self.five_gradient, [columns(dy), columns(dx)]),
            false => (&self.places[width], &self.gradient[width], [dy, dx].map(|v| Cover::neighbours(v.pixels(), v.c))),
        };
        // SAFETY: the caller's promise; dy gives the shape only and is not touched.
        unsafe { launch(places, x, dy, pool, covers[0], scratch) }?;
        let cover = covers[1];
        let args = GradArgs {
            dy: dy.into(),
            dx: dx.into(),
            tiling: cover.tiling,
            window: pool.into(),
            accumulate: accumulate.into(),
            places: scratch,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { gradient.of(dx.format).launch(cover.grid, cover.block, 0, &args) }
    }
}

/// Columns of [`ROWS`] results, one a thread: few and slow, so that each card has blocks enough.
fn columns(y: View) -> Cover {
    Cover::columns(y.n * y.h.div_ceil(ROWS) * y.w, y.c)
}

/// # Safety
/// All operands are device memory of their extents, and fit.
unsafe fn launch(kernel: &Typed, x: View, y: View, pool: PoolAttrs, cover: Cover, places: u64) -> Result<()> {
    let args = Args { x: x.into(), y: y.into(), tiling: cover.tiling, window: pool.into(), unused: 0, places };
    // SAFETY: the caller's promise; the struct is the kernel's.
    unsafe { kernel.of(x.format).launch(cover.grid, cover.block, 0, &args) }
}
