//! How the blocks of a launch sweep over the pixels of a tensor: from the shape alone.

use super::Function;
use super::tiling::Typed;
use crate::error::Result;
use crate::view::Format;

/// Threads of a block that maps values: `SWEEPING` of sweep.cuh.
const THREADS: usize = 256;
/// Multiprocessors of the largest cards, on which all blocks of a sweep run at once.
const MULTIPROCESSORS: usize = 132;
/// Channels a thread works on.
pub(super) const EIGHT: usize = 8;
/// Eights of channels of a group, at most: where sums are taken, few results are left to combine; elsewhere pixels are
/// read in long pieces.
pub(super) const SUM_TILE: usize = 8;
const MAP_TILE: usize = 64;
/// Turns of a block that maps values, at most. Later blocks go where there is room, which evens out what some
/// multiprocessors take longer.
const TURNS: usize = 32;

/// `Sweep` of sweep.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub tile: u32,
    pub rows: u32,
    pub chunks: u32,
    pub groups: u32,
    pub turns: u32,
    unused: u32,
}

impl Sweep {
    /// For kernels that map values, of which so many blocks run on a multiprocessor.
    pub fn map(pixels: usize, channels: usize, resident: usize) -> Self {
        Self::new(pixels, channels, THREADS, MAP_TILE, resident * MULTIPROCESSORS, TURNS)
    }

    /// For sums, with blocks of so many threads, one on a multiprocessor.
    pub fn sum(pixels: usize, channels: usize, threads: usize) -> Self {
        Self::new(pixels, channels, threads, SUM_TILE, MULTIPROCESSORS, usize::MAX)
    }

    fn new(pixels: usize, channels: usize, threads: usize, most: usize, blocks: usize, most_turns: usize) -> Self {
        let eights = (channels / EIGHT).max(1);
        // Groups of one size, but for the last.
        let tile = eights.div_ceil(eights.div_ceil(most));
        let groups = eights.div_ceil(tile);
        let rows = threads / tile;
        // Each block has a pixel.
        let chunks = (blocks / groups).clamp(1, pixels.div_ceil(rows).max(1));
        // As many turns in each round of blocks, but for the last.
        let turns = pixels.div_ceil(rows * chunks).max(1);
        let turns = turns.div_ceil(turns.div_ceil(most_turns));
        let [tile, rows, chunks, groups, turns] = [tile, rows, chunks, groups, turns].map(|n| n as u32);
        Self { tile, rows, chunks, groups, turns, unused: 0 }
    }

    /// Blocks of a launch; none where there are no pixels.
    pub fn blocks(&self, pixels: usize) -> usize {
        let [rows, chunks, groups, turns] = [self.rows, self.chunks, self.groups, self.turns].map(|n| n as usize);
        groups * chunks * pixels.div_ceil(rows * chunks * turns)
    }

    /// Launches a kernel that maps values and has so many operands in flight.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Function::launch`]; the argument has this sweep.
    pub unsafe fn launch<P: Copy>(
        &self,
        kernel: &Function,
        pixels: usize,
        operands: usize,
        argument: &P,
    ) -> Result<()> {
        let grid = [self.blocks(pixels) as u32, 1, 1];
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(grid, [THREADS as u32, 1, 1], ring(operands, THREADS) as u32, argument) }
    }
}

/// Bytes of shared memory of a block of so many threads that has so many operands in flight: `Ring` of sweep.cuh.
pub(super) fn ring(operands: usize, threads: usize) -> usize {
    let in_flight = if operands == 1 { 8 } else { 4 * operands };
    in_flight * threads * 16
}

/// Lets kernels have so many bytes of shared memory.
///
/// # Errors
/// More than the card has.
pub(super) fn allow_shared(kernels: &Typed, bytes: usize) -> Result<()> {
    [Format::F32, Format::Bf16, Format::F16]
        .into_iter()
        .try_for_each(|format| kernels.of(format).allow_shared(bytes as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_hold_every_channel_and_pixel_once_and_each_block_has_a_pixel() {
        for channels in [8, 16, 24, 32, 48, 64, 72, 80, 96, 128, 184, 192, 224, 512, 1032, 2048, 8448, 65_536] {
            for pixels in [1, 7, 400, 5_000, 25_600, 102_400, 1_638_400, 6_553_600] {
                for (s, threads, most) in [
                    (Sweep::sum(pixels, channels, 512), 512, 8),
                    (Sweep::map(pixels, channels, 2), 256, 64),
                    (Sweep::map(pixels, channels, 3), 256, 64),
                ] {
                    let [tile, rows, chunks, groups, turns] =
                        [s.tile, s.rows, s.chunks, s.groups, s.turns].map(|n| n as usize);
                    assert!(tile <= most && rows > 0 && rows * tile <= threads);
                    assert!(groups * tile * EIGHT >= channels && (groups - 1) * tile * EIGHT < channels);
                    let round = rows * chunks * turns;
                    let rounds = s.blocks(pixels) / (groups * chunks);
                    assert!(rounds * round >= pixels && (rounds - 1) * round < pixels);
                    assert!((chunks - 1) * rows < pixels, "{channels} {pixels}: {s:?}");
                    assert!(threads == 256 || rounds == 1);
                }
            }
        }
        assert_eq!(Sweep::map(0, 64, 2).blocks(0), 0);
    }

    #[test]
    fn blocks_that_map_fit_without_asking_for_shared_memory() {
        assert!((1..=3).all(|operands| ring(operands, THREADS) <= 48 << 10));
    }
}
