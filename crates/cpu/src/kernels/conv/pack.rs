//! Weights in the order the direct kernel reads them: per group, blocks of 1 to 3 vectors of output channels, each
//! `[tap][input channel][lanes]`, the last block padded with zeros.

use super::super::parallel::{Shared, for_each_index};
use crate::element::Element;

/// Packed channels are a multiple of this on every CPU, so that scratch lengths are too.
const ROUND: usize = 8;

/// Elements the packed weights of all groups take at most.
pub(super) fn packed_len(groups: usize, outputs: usize, taps: usize, depth: usize) -> usize {
    groups * outputs.next_multiple_of(ROUND) * taps * depth
}

/// How `outputs` channels are cut into blocks: `vectors` vectors of them. One block of three takes an odd count, the
/// others have two; a lone vector stays alone.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub lanes: usize,
    pub outputs: usize,
}

impl Blocks {
    pub fn vectors(&self) -> usize {
        self.outputs.div_ceil(self.lanes)
    }

    /// Number of blocks.
    pub fn count(&self) -> usize {
        (self.vectors() / 2).max(usize::from(self.outputs > 0))
    }

    /// First vector and number of vectors of block `b`.
    pub fn block(&self, b: usize) -> (usize, usize) {
        let total = self.vectors();
        match total {
            1 => (0, 1),
            _ if total.is_multiple_of(2) => (2 * b, 2),
            _ if b == 0 => (0, 3),
            _ => (2 * b + 1, 2),
        }
    }
}

/// Packs one convolution's weights. `at(group, output, tap, input)` gives the index of a weight.
pub(super) fn pack<T: Element>(
    weights: &[T],
    groups: usize,
    blocks: Blocks,
    taps: usize,
    depth: usize,
    packed: &mut [T],
    at: impl Fn(usize, usize, usize, usize) -> usize + Sync,
) {
    let group_len = blocks.vectors() * blocks.lanes * taps * depth;
    let packed = &mut packed[..groups * group_len];
    let base = Shared(packed.as_mut_ptr());
    for_each_index(groups * blocks.count(), |item| {
        let (g, b) = (item / blocks.count(), item % blocks.count());
        let (vector, vectors) = blocks.block(b);
        let width = vectors * blocks.lanes;
        let first = vector * blocks.lanes;
        let start = g * group_len + first * taps * depth;
        // SAFETY: blocks are disjoint ranges of `packed`.
        let block = unsafe { std::slice::from_raw_parts_mut(base.get().add(start), width * taps * depth) };
        for (row, lanes) in block.chunks_exact_mut(width).enumerate() {
            let (tap, input) = (row / depth, row % depth);
            for (lane, v) in lanes.iter_mut().enumerate() {
                let output = first + lane;
                *v = if output < blocks.outputs { weights[at(g, output, tap, input)] } else { T::zero() };
            }
        }
    });
}
