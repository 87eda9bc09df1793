//! Max pooling with the models' windows: 5x5, stride 1, padding 2.

use super::compiler::Source;
use super::tiling::{Typed, expect};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::{Format, View};
use graph::ops::PoolAttrs;

pub(super) const SOURCE: Source = channels_source!("max_pool_5.cu");

/// The windows.
pub(super) const FIVE: PoolAttrs = PoolAttrs { kernel: 5, stride: 1, pad: 2 };
/// Rows and columns of a tile, at most: whole pictures of the models' pools at 640 pixels.
const MOST: usize = 20;
/// 32-bit words of channels of a block: `SLICE` and `GRAD_SLICE` of the source.
const SLICE: usize = 16;
const GRAD_SLICE: usize = 8;
/// Blocks of a launch, at most.
const MOST_BLOCKS: usize = i32::MAX as usize;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    y: RawView,
    dx: RawView,
    rows: u32,
    columns: u32,
    down: u32,
    across: u32,
    slices: u32,
    accumulate: u32,
    x_pitch: u32,
    x_size: u32,
    dy_pitch: u32,
    dy_size: u32,
}

/// One direction of a picture, cut into tiles.
#[derive(Clone, Copy, Debug)]
struct Cut {
    extent: usize,
    /// Pixels of a tile, at most.
    each: usize,
    tiles: usize,
}

impl Cut {
    fn new(extent: usize) -> Self {
        let tiles = extent.div_ceil(MOST).max(1);
        Self { extent, each: extent.div_ceil(tiles), tiles }
    }

    /// Pixels of the largest tile with those `around` it, of which at most `before` and `after` lie outside of the
    /// picture.
    fn room(self, around: usize, before: usize, after: usize) -> usize {
        let of = |tile: usize| {
            let (first, end) = (tile * self.each, ((tile + 1) * self.each).min(self.extent));
            (end + around).min(self.extent + after) + before - (first + before).saturating_sub(around)
        };
        (0..self.tiles).map(of).max().unwrap_or(0)
    }
}

/// A launch: shapes of its argument, and what it takes of the card.
#[derive(Clone, Copy, Debug)]
struct Cover {
    down: Cut,
    across: Cut,
    slices: usize,
    /// Room for x and dy: pixels from row to row, and in all.
    x: [usize; 2],
    dy: [usize; 2],
    blocks: usize,
    threads: usize,
    /// Bytes of shared memory.
    shared: usize,
}

impl Cover {
    fn new(x: View, gradient: bool) -> Self {
        let (down, across) = (Cut::new(x.h), Cut::new(x.w));
        let words = if gradient { GRAD_SLICE } else { SLICE };
        let slices = (x.c * x.format.bytes()).div_ceil(4 * words);
        // Pictures without pixels take no block.
        let blocks = x.n.min(x.pixels()) * down.tiles * across.tiles * slices;
        let (x_room, dy_room, threads) = match gradient {
            // Two threads a column of 16 bytes, each for a part of the rows.
            false => {
                let room = [across.room(2, 2, 2), down.room(2, 0, 2)];
                (room, [0, 0], (2 * across.each).max(room[0]) * words / 4)
            }
            // An odd number of pixels from row to row keeps the threads of a column out of each other's banks.
            true => {
                let x_room = [across.room(4, 2, 2) | 1, down.room(4, 0, 2)];
                let columns = across.room(2, 0, 0);
                let threads = columns.max(down.each) * words / 2;
                (x_room, [columns | 1, down.room(2, 0, 0)], threads.max(across.room(4, 2, 2) * words / 4))
            }
        };
        let [x_size, dy_size] = [x_room, dy_room].map(|[pitch, rows]| pitch * rows);
        // Sums of dy are float32: of two halves in a word, one lies where dy was.
        let halves = if x.format == Format::F32 { 1 } else { 2 };
        Self {
            down,
            across,
            slices,
            x: [x_room[0], x_size],
            dy: [dy_room[0], dy_size],
            blocks,
            threads: threads.next_multiple_of(32),
            shared: (x_size + halves * dy_size) * words * 4,
        }
    }
}

/// The pool and its gradient.
#[derive(Debug)]
pub(super) struct MaxPool5 {
    forward: Typed,
    gradient: Typed,
}

impl MaxPool5 {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let (forward, gradient) = (Typed::load(&module, "max_pool_5")?, Typed::load(&module, "max_pool_5_grad")?);
        for format in [Format::F32, Format::Bf16, Format::F16] {
            gradient.of(format).allow_shared(MOST_SHARED as u32)?;
        }
        Ok(Self { forward, gradient })
    }

    /// # Errors
    /// More blocks than a launch has, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of their extents, aligned as `expect_views` asks for and of one shape.
    pub unsafe fn run(&self, x: View, y: View) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { launch(&self.forward, Cover::new(x, false), x, y, None, false) }
    }

    /// # Errors
    /// As [`Self::run`].
    ///
    /// # Safety
    /// As [`Self::run`], of x, dy and dx.
    pub unsafe fn gradient(&self, x: View, dy: View, dx: View, accumulate: bool) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { launch(&self.gradient, Cover::new(x, true), x, dy, Some(dx), accumulate) }
    }
}

/// Bytes of shared memory of a block of the gradient, at most.
const MOST_SHARED: usize = ((MOST + 8) * ((MOST + 8) | 1) + 2 * (MOST + 4) * ((MOST + 4) | 1)) * GRAD_SLICE * 4;

/// # Safety
/// As [`MaxPool5::run`].
unsafe fn launch(kernel: &Typed, cover: Cover, x: View, y: View, dx: Option<View>, accumulate: bool) -> Result<()> {
    expect("max_pool", cover.blocks <= MOST_BLOCKS, || format!("{} blocks for {x:?}", cover.blocks))?;
    let args = Args {
        x: x.into(),
        y: y.into(),
        dx: dx.map_or_else(RawView::default, Into::into),
        rows: cover.down.each as u32,
        columns: cover.across.each as u32,
        down: cover.down.tiles as u32,
        across: cover.across.tiles as u32,
        slices: cover.slices as u32,
        accumulate: accumulate.into(),
        x_pitch: cover.x[0] as u32,
        x_size: cover.x[1] as u32,
        dy_pitch: cover.dy[0] as u32,
        dy_size: cover.dy[1] as u32,
    };
    let (grid, block) = ([cover.blocks as u32, 1, 1], [cover.threads as u32, 1, 1]);
    // SAFETY: the caller's promise; the struct is the kernel's.
    unsafe { kernel.of(x.format).launch(grid, block, cover.shared as u32, &args) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_each_picture_and_blocks_fit_what_kernels_were_compiled_for() {
        for format in [Format::F32, Format::Bf16] {
            for extent in [1, 2, 3, 7, 19, 20, 21, 39, 40, 41, 61, 80, 160, 641] {
                let cut = Cut::new(extent);
                assert!(cut.each <= MOST && cut.each * cut.tiles >= extent && cut.each * (cut.tiles - 1) < extent);
                // Of the first tile, and of one inside, if there is one.
                assert!(cut.room(4, 2, 2) >= (extent + 4).min(cut.each + 6) && cut.room(4, 2, 2) <= cut.each + 8);
                for other in [1, 5, 20, 40, 640] {
                    let x = View { at: 0, format, n: 3, h: extent, w: other, c: 24, pitch: 64 };
                    let (forward, gradient) = (Cover::new(x, false), Cover::new(x, true));
                    assert!(forward.threads <= 256 && forward.shared <= 48 << 10, "{forward:?}");
                    assert!(gradient.threads <= 128 && gradient.shared <= MOST_SHARED, "{gradient:?}");
                    // A thread for every 16 bytes of a row, and for all columns and rows that are walked.
                    assert!(forward.threads >= forward.x[0] * SLICE / 4 && gradient.dy[0] % 2 == 1);
                    assert!(gradient.threads >= gradient.down.each * GRAD_SLICE / 2);
                    assert!(4 * forward.slices * SLICE >= 24 * format.bytes());
                }
            }
        }
    }
}
