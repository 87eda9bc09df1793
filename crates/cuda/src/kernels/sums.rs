//! How a grid sums over the pixels of each channel in one launch: from the shape alone, so that sums have one order on
//! every card.

use super::Function;
use super::sweep::{EIGHT, Sweep, allow_shared, ring};
use super::tiling::{Typed, expect};
use crate::device::{Buffer, Gpu};
use crate::error::Result;

/// Threads of a block: `SUMMING` of sums.cuh.
const THREADS: usize = 512;
/// Groups of channels, at most.
const MOST_GROUPS: usize = 1024;

/// `Sums` of sums.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSums {
    sweep: Sweep,
    partials: u64,
    counters: u64,
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
        allow_shared(kernels, shared(operands))
    }

    /// Bytes of scratch for so many pixels, physical channels and results of each channel.
    pub fn scratch(pixels: usize, channels: usize, results: usize) -> usize {
        let s = Sweep::sum(pixels, channels, THREADS);
        [s.groups, s.chunks, s.tile].iter().map(|&n| n as usize).product::<usize>() * results * EIGHT * 4
    }

    /// The sums over so many pixels and physical channels as kernels take them, with their results in `scratch`.
    ///
    /// # Errors
    /// More channels than there are counters for.
    pub fn raw(&self, kernel: &'static str, pixels: usize, channels: usize, scratch: u64) -> Result<RawSums> {
        let sweep = Sweep::sum(pixels, channels, THREADS);
        expect(kernel, sweep.groups as usize <= MOST_GROUPS, || format!("{channels} channels"))?;
        Ok(RawSums { sweep, partials: scratch, counters: self.counters.address() })
    }
}

impl RawSums {
    /// Launches a kernel that sums so many operands. Of no pixels it launches nothing.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// As [`Function::launch`]; the argument has these sums, whose scratch has [`Sums::scratch`] bytes.
    pub unsafe fn launch<P: Copy>(
        &self,
        kernel: &Function,
        pixels: usize,
        operands: usize,
        argument: &P,
    ) -> Result<()> {
        let grid = [self.sweep.blocks(pixels) as u32, 1, 1];
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(grid, [THREADS as u32, 1, 1], shared(operands) as u32, argument) }
    }
}

/// Bytes of shared memory of a block that sums so many operands: those in flight, where all else fits too.
fn shared(operands: usize) -> usize {
    ring(operands, THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::sweep::SUM_TILE;

    #[test]
    fn sums_of_a_block_and_of_a_group_fit_where_the_ring_was() {
        for (operands, results) in [(1, 1), (1, 2), (2, 2), (3, 3)] {
            for tile in 1..=SUM_TILE {
                // Planes with their gaps and a word a thread; then float64 of 32 lanes with theirs.
                let block = (2 * results * (THREADS + 4)) * 16 + THREADS * 4;
                let group = (THREADS / (2 * tile)).min(32) * (results * tile * EIGHT + 4) * 8;
                assert!(block.max(group) <= shared(operands));
                // A lane at least sums a block's rows.
                assert!(results * tile * EIGHT <= THREADS);
            }
            // What every served card lets a block have.
            assert!(shared(operands) + 2048 <= 99 << 10);
        }
    }
}
