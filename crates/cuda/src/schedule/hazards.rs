//! Which ops must wait for which: from what each reads and writes.

use super::span::Span;

/// A use of memory by an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub span: Span,
    /// True where it writes, adding to what is there included.
    pub write: bool,
}

impl Access {
    /// True where the order of two uses matters: one of them writes, and they share bytes.
    pub fn conflicts(&self, other: &Self) -> bool {
        (self.write || other.write) && self.span.meets(&other.span)
    }
}

/// Sets of ops before each op.
#[derive(Clone, Debug)]
pub(super) struct Before {
    words: usize,
    bits: Vec<u64>,
}

impl Before {
    pub fn new(ops: usize) -> Self {
        let words = ops.div_ceil(64);
        Self { words, bits: vec![0; ops * words] }
    }

    pub fn contains(&self, op: usize, earlier: usize) -> bool {
        self.bits[op * self.words + earlier / 64] >> (earlier % 64) & 1 == 1
    }

    /// Puts `earlier`, and what is before it, before `op`.
    pub fn add(&mut self, op: usize, earlier: usize) {
        for word in 0..self.words {
            self.bits[op * self.words + word] |= self.bits[earlier * self.words + word];
        }
        self.bits[op * self.words + earlier / 64] |= 1 << (earlier % 64);
    }

    /// Keeps of `waits`, which are ops whose sets are complete, those that are not before another one of them, and puts
    /// them before `op`. `waits` has the later ones first.
    pub fn reduce(&mut self, op: usize, waits: &mut Vec<usize>) {
        waits.retain(|&wait| {
            let needed = !self.contains(op, wait);
            if needed {
                self.add(op, wait);
            }
            needed
        });
    }
}

/// For each op, the earlier ones that it waits for: a read for the writes before it, a write for the reads and writes
/// before it, where they share bytes. What follows from other waits is left out. Ops are in an order that is right.
pub fn waits(uses: &[Vec<Access>]) -> Vec<Vec<usize>> {
    // Uses that no later write has covered.
    let mut live: Vec<(usize, Access)> = Vec::new();
    let mut before = Before::new(uses.len());
    let mut all = Vec::with_capacity(uses.len());
    for (op, own) in uses.iter().enumerate() {
        let conflicting = live.iter().filter(|(_, old)| own.iter().any(|new| new.conflicts(old)));
        let mut waits: Vec<usize> = conflicting.map(|l| l.0).collect();
        waits.sort_unstable_by(|a, b| b.cmp(a));
        waits.dedup();
        before.reduce(op, &mut waits);
        live.retain(|(_, old)| !own.iter().any(|new| new.write && new.span.covers(&old.span)));
        live.extend(own.iter().filter(|a| !a.span.is_empty()).map(|&a| (op, a)));
        all.push(waits);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::random::{Random, conflict};
    use super::super::span::Space;
    use super::*;

    fn access(start: u64, bytes: u64, write: bool) -> Access {
        Access { span: Span::flat(Space::Arena, start, bytes), write }
    }

    #[test]
    fn reads_wait_for_writes_and_writes_for_both() {
        let (write, read) = (|at| access(at, 16, true), |at| access(at, 16, false));
        let uses = [
            vec![write(0)],
            vec![read(0), write(16)],
            vec![read(0), write(32)],
            // Overwrites what the two before have read.
            vec![read(48), write(0)],
            vec![read(16), read(32), write(64)],
            vec![read(0)],
        ];
        assert_eq!(waits(&uses), [vec![], vec![0], vec![0], vec![2, 1], vec![2, 1], vec![3]]);
    }

    #[test]
    fn what_follows_is_left_out() {
        let uses = [
            vec![access(0, 16, true)],
            vec![access(0, 16, false), access(16, 16, true)],
            vec![access(0, 32, false), access(32, 16, true)],
        ];
        assert_eq!(waits(&uses), [vec![], vec![0], vec![1]]);
    }

    #[test]
    fn additions_to_one_place_keep_their_order() {
        let uses: Vec<_> = (0..4).map(|_| vec![access(0, 64, true)]).collect();
        assert_eq!(waits(&uses), [vec![], vec![0], vec![1], vec![2]]);
    }

    #[test]
    fn waits_say_of_random_uses_what_all_pairs_say() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let uses: Vec<Vec<Access>> = (0..40).map(|_| random.uses()).collect();
            let waits = waits(&uses);
            let (mut found, mut want) = (Before::new(uses.len()), Before::new(uses.len()));
            for op in 0..uses.len() {
                waits[op].iter().for_each(|&wait| found.add(op, wait));
                for earlier in (0..op).filter(|&earlier| conflict(&uses[earlier], &uses[op])) {
                    want.add(op, earlier);
                }
            }
            assert_eq!(found.bits, want.bits, "seed {seed}");
        }
    }
}
