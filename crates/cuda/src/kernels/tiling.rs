//! How a grid covers an NHWC tensor: from its shape alone.

use super::Function;
use crate::error::{CudaError, Result};
use crate::view::{Format, View};

/// Threads of a block, at most.
const THREADS: usize = 256;
/// Channels a thread works on.
const EIGHT: usize = 8;

/// `Tiling` of tiles.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    pub tile: u32,
    pub rows: u32,
    pub chunk: u32,
    pub unused: u32,
}

/// A tiling with the launch that belongs to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cover {
    pub tiling: Tiling,
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

impl Cover {
    /// For kernels that only map values: a thread takes eight pixels.
    pub fn pointwise(pixels: usize, channels: usize) -> Self {
        Self::new(pixels, channels, THREADS, |_| 8)
    }

    /// For kernels that first load constants of their channels: more pixels for each thread where few threads share
    /// the constants.
    pub fn constants(pixels: usize, channels: usize) -> Self {
        Self::new(pixels, channels, THREADS, |rows| (64 / rows).max(8))
    }

    /// For kernels that read a neighbourhood of each pixel: blocks of few channels and many pixels share more of it.
    pub fn neighbours(pixels: usize, channels: usize) -> Self {
        Self::new(pixels, channels, 8, |_| 2)
    }

    fn new(pixels: usize, channels: usize, most: usize, per_thread: impl Fn(usize) -> usize) -> Self {
        let eights = (channels / EIGHT).max(1);
        let across = eights.div_ceil(most);
        let tile = eights.div_ceil(across);
        let rows = THREADS / tile;
        let chunk = rows * per_thread(rows);
        let tiling = Tiling { tile: tile as u32, rows: rows as u32, chunk: chunk as u32, unused: 0 };
        let grid = [pixels.div_ceil(chunk) as u32, across as u32, 1];
        Self { tiling, grid, block: [(tile * rows) as u32, 1, 1] }
    }
}

/// A kernel for each storage type.
#[derive(Clone, Debug)]
pub(crate) struct Typed([Function; 3]);

/// The types in the order of [`Typed`].
const FORMATS: [Format; 3] = [Format::F32, Format::Bf16, Format::F16];

impl Typed {
    /// Kernels `name_f32`, `name_bf16` and `name_f16`.
    pub fn load(module: &std::sync::Arc<super::Module>, name: &str) -> Result<Self> {
        let [a, b, c] = FORMATS.map(|format| module.function(&format!("{name}_{}", format.name())));
        Ok(Self([a?, b?, c?]))
    }

    pub fn of(&self, format: Format) -> &Function {
        match format {
            Format::F32 => &self.0[0],
            Format::Bf16 => &self.0[1],
            Format::F16 => &self.0[2],
        }
    }
}

/// An error unless operands fit together.
pub(crate) fn expect(kernel: &'static str, fits: bool, what: impl FnOnce() -> String) -> Result<()> {
    if fits { Ok(()) } else { Err(CudaError::Operands { kernel, what: what() }) }
}

/// An error unless all views are aligned for reads of eight channels, below 2^32 pixels and of one type.
pub(crate) fn expect_views(kernel: &'static str, views: &[View]) -> Result<()> {
    views.iter().try_for_each(|v| expect_beside(kernel, v, &views[0]))
}

/// [`expect_views`], and all of one shape.
pub(crate) fn expect_equal(kernel: &'static str, views: impl IntoIterator<Item = View>) -> Result<()> {
    let mut views = views.into_iter();
    let Some(first) = views.next() else { return Ok(()) };
    let shape = |v: &View| [v.n, v.h, v.w, v.c];
    expect_beside(kernel, &first, &first)?;
    views.try_for_each(|v| {
        expect_beside(kernel, &v, &first)?;
        expect(kernel, shape(&v) == shape(&first), || format!("shapes {:?} and {:?}", shape(&v), shape(&first)))
    })
}

/// An error unless a view is as [`expect_views`] asks for beside another.
fn expect_beside(kernel: &'static str, v: &View, other: &View) -> Result<()> {
    let aligned = v.c.is_multiple_of(EIGHT) && v.pitch.is_multiple_of(EIGHT) && v.at.is_multiple_of(16);
    let extents = [v.n, v.h, v.w, v.c, v.pitch].iter().all(|&e| u32::try_from(e).is_ok());
    let pixels = v.n.checked_mul(v.h).and_then(|p| p.checked_mul(v.w)).is_some_and(|p| p < u32::MAX as usize / 2);
    let fits = aligned && extents && pixels && v.c > 0 && v.c <= v.pitch;
    expect(kernel, fits && v.format == other.format, || format!("{v:?} beside {other:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covers_hold_every_pixel_and_channel_once() {
        for channels in [8, 16, 24, 64, 96, 192, 512, 1032, 2048, 2056, 4096] {
            for pixels in [1, 7, 400, 102_400, 1_638_400] {
                for cover in [
                    Cover::pointwise(pixels, channels),
                    Cover::constants(pixels, channels),
                    Cover::neighbours(pixels, channels),
                ] {
                    let t = cover.tiling;
                    assert!(cover.block[0] <= 256 && cover.block[0] == t.tile * t.rows);
                    assert!((t.tile * cover.grid[1]) as usize * 8 >= channels);
                    assert!(((t.tile * (cover.grid[1] - 1)) as usize) * 8 < channels);
                    assert!(t.chunk.is_multiple_of(t.rows));
                    assert!(cover.grid[0] as usize * t.chunk as usize >= pixels);
                    assert!((cover.grid[0] as usize - 1) * (t.chunk as usize) < pixels);
                }
            }
        }
    }
}
