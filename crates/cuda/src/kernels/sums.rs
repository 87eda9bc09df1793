//! How a grid sums over the pixels of each channel in one launch: from the shape alone, so that sums have one order on
//! every card.

use super::Function;
use super::sweep::{EIGHT, Sweep, allow_shared, ring};
use super::tiling::{Typed, expect};
use crate::device::{Buffer, Gpu};
use crate::error::Result;
use std::cell::Cell;

/// Threads of a block: `SUMMING` of sums.cuh.
const THREADS: usize = 512;
/// Groups of channels, at most.
const MOST_GROUPS: usize = 1024;
/// Counters of all groups of the launches that may be under way: thousands of launches of some 16 groups each, far more
/// than a plan has, so that no two launches that run side by side share one.
const COUNTERS: usize = 1 << 16;

/// `Sums` of sums.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSums {
    sweep: Sweep,
    partials: u64,
    counters: u64,
}

/// What launches need beside the kernel: counters of blocks that are done, zero between launches. They are not in
/// scratch, because other ops write there. Each launch takes the next ones.
#[derive(Debug)]
pub(crate) struct Sums {
    counters: Buffer,
    next: Cell<usize>,
}

impl Sums {
    /// # Errors
    /// No memory, or what the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { counters: gpu.allocate(COUNTERS * 4)?, next: Cell::new(0) })
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
        let groups = sweep.groups as usize;
        expect(kernel, groups <= MOST_GROUPS, || format!("{channels} channels"))?;
        let first = if self.next.get() + groups <= COUNTERS { self.next.get() } else { 0 };
        self.next.set(first + groups);
        Ok(RawSums { sweep, partials: scratch, counters: self.counters.address() + 4 * first as u64 })
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
