//! Random uses of memory, for tests.

use super::hazards::Access;
use super::span::{Space, Span};

/// True where the order of two ops matters.
pub(super) fn conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.conflicts(b)))
}

/// Numbers from a seed.
pub(super) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    /// Of an op that reads up to three places and writes one: whole buffers of a small arena, and channel ranges of them.
    pub fn uses(&mut self) -> Vec<Access> {
        let reads = self.below(4);
        let mut one = |write| {
            let (start, rows, pitch) = (64 * self.below(12), 1 + self.below(3), 64);
            let first = [0, 0, 16, 32][self.below(4) as usize];
            let width = [64 - first, 16][self.below(2) as usize];
            let space = [Space::Arena, Space::Arena, Space::Gradients][self.below(3) as usize];
            Access { span: Span { space, start: start + first, rows, width, pitch }, write }
        };
        let mut uses: Vec<Access> = (0..reads).map(|_| one(false)).collect();
        uses.push(one(true));
        uses
    }
}
