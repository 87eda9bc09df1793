//! How a grid sums over the pixels of each channel in one launch: from the shape alone, so that sums have one order on
//! every card.

use super::Function;
use super::tiling::{Typed, expect};
use crate::device::{Buffer, Gpu};
use crate::error::Result;
use crate::view::Format;

/// Threads of a block: `SWEEP` of sums.cuh.
const THREADS: usize = 512;
/// Blocks of a launch, about: one for each multiprocessor of the largest cards, so that all run at once there.
const BLOCKS: usize = 132;
/// Channels a thread works on, and eights of channels of a group.
const EIGHT: usize = 8;
const TILE: usize = 8;
/// Groups of channels, at most.
const MOST_GROUPS: usize = 1024;

/// A launch over a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    tile: usize,
    rows: usize,
    chunks: usize,
    groups: usize,
}

/// `Sweep` of sums.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSweep {
    tile: u32,
    rows: u32,
    chunks: u32,
    groups: u32,
    partials: u64,
    counters: u64,
}

impl Sweep {
    /// Over so many pixels and physical channels.
    pub fn new(pixels: usize, channels: usize) -> Self {
        let eights = (channels / EIGHT).max(1);
        // Groups of one size, but for the last.
        let tile = eights.div_ceil(eights.div_ceil(TILE));
        let groups = eights.div_ceil(tile);
        let rows = THREADS / tile;
        // Each block has a pixel.
        let chunks = (BLOCKS / groups).clamp(1, pixels.div_ceil(rows).max(1));
        Self { tile, rows, chunks, groups }
    }

    /// Bytes of scratch for so many results of each channel.
    pub fn scratch(&self, results: usize) -> usize {
        self.groups * self.chunks * results * self.tile * EIGHT * 4
    }
}

/// Bytes of shared memory of a block that sums so many operands: `Ring::SIZE` of sums.cuh, in which all else fits.
fn shared(operands: usize) -> usize {
    let in_flight = if operands == 1 { 8 } else { 4 * operands };
    in_flight * THREADS * 16
}

/// What launches need beside the kernel: counters of blocks that are done, zero between launches. They are not in
/// scratch, because other ops write there; launches of one stream may share them.
#[derive(Debug)]
pub(crate) struct Sums {
    counters: Buffer,
}

impl Sums {
    /// # Errors
    /// No memory, or what the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { counters: gpu.allocate(MOST_GROUPS * 4)? })
    }

    /// Lets kernels have the shared memory that sums of so many operands need.
    ///
    /// # Errors
    /// More than the card has.
    pub fn allow(kernels: &Typed, operands: usize) -> Result<()> {
        [Format::F32, Format::Bf16, Format::F16]
            .into_iter()
            .try_for_each(|format| kernels.of(format).allow_shared(shared(operands) as u32))
    }

    /// The sweep as kernels take it, with its results in `scratch`.
    ///
    /// # Errors
    /// More channels than there are counters for.
    pub fn raw(&self, kernel: &'static str, sweep: &Sweep, scratch: u64) -> Result<RawSweep> {
        let Sweep { tile, rows, chunks, groups } = *sweep;
        expect(kernel, groups <= MOST_GROUPS, || format!("{} channels", groups * tile * EIGHT))?;
        let [tile, rows, chunks, groups] = [tile, rows, chunks, groups].map(|n| n as u32);
        Ok(RawSweep { tile, rows, chunks, groups, partials: scratch, counters: self.counters.address() })
    }

    /// Launches a kernel that sums so many operands. Of no pixels it launches nothing.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Function::launch`]; the argument has the sweep as [`Self::raw`] made it, and `scratch` the sweep's bytes.
    pub unsafe fn launch<P: Copy>(
        kernel: &Function,
        sweep: &Sweep,
        operands: usize,
        pixels: usize,
        argument: &P,
    ) -> Result<()> {
        let blocks = if pixels == 0 { 0 } else { sweep.groups * sweep.chunks };
        // SAFETY: the caller's promise.
        unsafe { kernel.launch([blocks as u32, 1, 1], [THREADS as u32, 1, 1], shared(operands) as u32, argument) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_hold_every_channel_once_and_each_block_has_a_pixel() {
        for channels in [8, 16, 24, 32, 48, 64, 72, 80, 96, 128, 184, 192, 224, 512, 1032, 2048, 8448, 65_536] {
            for pixels in [1, 7, 400, 5_000, 25_600, 102_400, 1_638_400] {
                let s = Sweep::new(pixels, channels);
                assert!(s.tile <= TILE && s.rows * s.tile <= THREADS && s.groups <= MOST_GROUPS);
                assert!(s.groups * s.tile * EIGHT >= channels && (s.groups - 1) * s.tile * EIGHT < channels);
                assert!((s.chunks - 1) * s.rows < pixels, "{channels} {pixels}: {s:?}");
                assert!(s.groups * s.chunks <= BLOCKS.max(s.groups));
            }
        }
    }

    #[test]
    fn sums_of_a_block_and_of_a_group_fit_where_the_ring_was() {
        for (operands, results) in [(1, 1), (1, 2), (2, 2), (3, 3)] {
            for tile in 1..=TILE {
                // Planes with their gaps and a word a thread; then float64 of 32 lanes with theirs.
                let block = (2 * results * (THREADS + 4)) * 16 + THREADS * 4;
                let group = (THREADS / (2 * tile)).min(32) * (results * tile * EIGHT + 4) * 8;
                assert!(block.max(group) <= shared(operands));
                // A lane at least sums a block's rows.
                assert!(results * tile * EIGHT <= THREADS);
            }
            // What every served card lets a block have.
            assert!(shared(operands) + 1024 <= 99 << 10);
        }
    }
}
