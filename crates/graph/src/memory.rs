//! Lifetimes and offsets: every buffer gets a place in one arena.

use crate::graph::{Category, Graph, TensorId};
use crate::ops::Access;
use crate::{GraphError, Precision};
use std::collections::BTreeMap;

/// Buffers start at multiples of this many bytes.
pub(crate) const ARENA_ALIGN: u64 = 256;
/// Elements that one tensor may have.
const MAX_ELEMENTS: u64 = 1 << 31;
/// Ops that a place is to rest between two buffers, where there is room: the most first. On a card, the way from the
/// first op of yolov9-s to its last is 27 % shorter with these, 26 % with 4 and 2 alone, and 28 % from 128 on.
const RESTS: [usize; 4] = [16, 8, 4, 2];

/// A buffer's place and lifetime.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// The tensor that owns the buffer, or `None` for an op's workspace.
    pub tensor: Option<TensorId>,
    pub category: Category,
    pub bytes: u64,
    pub offset: u64,
    /// First and last op (inclusive) during which the buffer holds something.
    pub first: usize,
    pub last: usize,
}

/// Slots that have their places, in the order of their starts.
#[derive(Default)]
struct Placed(Vec<Place>);

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    start: u64,
    end: u64,
    first: usize,
    last: usize,
}

impl Place {
    fn of(slot: &Slot) -> Self {
        Self { start: slot.offset, end: slot.offset + slot.bytes, first: slot.first, last: slot.last }
    }
}

impl Placed {
    fn insert(&mut self, slot: &Slot) {
        let place = Place::of(slot);
        self.0.insert(self.0.partition_point(|p| p.start <= place.start), place);
    }

    fn remove(&mut self, slot: &Slot) {
        let place = Place::of(slot);
        let from = self.0.partition_point(|p| p.start < place.start);
        if let Some(at) = self.0[from..].iter().position(|p| *p == place) {
            self.0.remove(from + at);
        }
    }

    /// The lowest offset at which so many bytes are free from the first of these ops to the last.
    fn lowest(&self, bytes: u64, (first, last): (usize, usize)) -> u64 {
        let mut offset = 0;
        for other in self.0.iter().filter(|p| p.first <= last && first <= p.last) {
            if offset + bytes <= other.start {
                break;
            }
            offset = offset.max(other.end);
        }
        offset
    }
}

/// What the arena is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryReport {
    /// Bytes of the arena.
    pub arena: u64,
    /// Most bytes alive at once: no placement can do with less.
    pub lower_bound: u64,
    /// Op at which the most bytes are alive.
    pub peak_op: usize,
    /// Sum of the buffers of each category, were none to share memory.
    pub total: Vec<(Category, u64)>,
    /// Bytes of each category at the peak.
    pub at_peak: Vec<(Category, u64)>,
}

impl MemoryReport {
    /// Sum of all buffers of a category.
    pub fn total_of(&self, category: Category) -> u64 {
        self.total.iter().find(|t| t.0 == category).map_or(0, |t| t.1)
    }

    /// Bytes of the forward results that the backward pass waits for.
    pub fn activation_bytes(&self) -> u64 {
        self.total_of(Category::Kept)
    }
}

/// Finds lifetimes over the list order and places every buffer.
///
/// Inputs live from the start, outputs to the end. `workspace[i]` is the scratch of op `i`.
pub(crate) fn place(
    graph: &Graph,
    precision: Precision,
    workspace: &[u64],
) -> Result<(Vec<Slot>, MemoryReport), GraphError> {
    let end = graph.nodes.len().saturating_sub(1);
    let mut lives: BTreeMap<TensorId, (usize, usize)> = BTreeMap::new();
    let mut touch = |id: TensorId, at: usize| {
        let life = lives.entry(graph.root(id).0).or_insert((at, at));
        *life = (life.0.min(at), life.1.max(at));
    };
    for (at, node) in graph.nodes.iter().enumerate() {
        node.op.operands().into_iter().for_each(|(id, _)| touch(id, at));
    }
    graph.inputs.iter().for_each(|&id| touch(id, 0));
    graph.outputs.iter().for_each(|&id| touch(id, end));
    let mut slots = Vec::with_capacity(lives.len() + workspace.len());
    let mut too_large: Option<(TensorId, u64)> = None;
    for (id, (first, last)) in lives {
        let tensor = graph.tensor(id);
        let elements = tensor.shape.pixels() as u64 * tensor.map.physical() as u64;
        if elements > MAX_ELEMENTS && too_large.is_none_or(|(_, most)| elements > most) {
            too_large = Some((id, elements));
        }
        let bytes = (elements * precision.of(tensor.kind).bytes() as u64).next_multiple_of(ARENA_ALIGN);
        slots.push(Slot { tensor: Some(id), category: tensor.category, bytes, offset: 0, first, last });
    }
    if let Some((id, elements)) = too_large {
        return Err(GraphError::TooLarge { tensor: graph.tensor(id).name.clone(), elements });
    }
    for (at, &bytes) in workspace.iter().enumerate().filter(|w| *w.1 > 0) {
        let bytes = bytes.next_multiple_of(ARENA_ALIGN);
        slots.push(Slot { tensor: None, category: Category::Workspace, bytes, offset: 0, first: at, last: at });
    }
    // Large buffers first, each at the lowest offset that is free over its whole life.
    slots.sort_by_key(|s| (std::cmp::Reverse(s.bytes), s.first, s.tensor));
    let mut arena = 0;
    let mut placed = Placed::default();
    for slot in &mut slots {
        slot.offset = placed.lowest(slot.bytes, (slot.first, slot.last));
        arena = arena.max(slot.offset + slot.bytes);
        placed.insert(slot);
    }
    let report = report(&slots, graph.nodes.len(), arena);
    Ok((slots, report))
}

/// Moves buffers within the arena so that a place rests for some ops between one buffer and the next.
///
/// A device that runs ops side by side need not wait then for the last readers of a buffer that is over. Each buffer in
/// turn goes to the lowest offset whose neighbours in time are as far away as [`RESTS`] says, and stays where it is if there
/// is none, as around the peak: the arena does not grow.
pub(crate) fn spread(slots: &mut [Slot], arena: u64) {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&at| (slots[at].first, std::cmp::Reverse(slots[at].bytes), slots[at].tensor));
    let mut placed = Placed::default();
    slots.iter().for_each(|slot| placed.insert(slot));
    for at in order {
        let slot = &mut slots[at];
        placed.remove(slot);
        let free = RESTS.iter().find_map(|&rest| {
            let offset = placed.lowest(slot.bytes, (slot.first.saturating_sub(rest), slot.last + rest));
            Some(offset).filter(|offset| offset + slot.bytes <= arena)
        });
        slot.offset = free.unwrap_or(slot.offset);
        placed.insert(slot);
    }
}

fn report(slots: &[Slot], ops: usize, arena: u64) -> MemoryReport {
    let mut change = vec![0i64; ops + 2];
    for slot in slots {
        change[slot.first] += slot.bytes as i64;
        change[slot.last + 1] -= slot.bytes as i64;
    }
    let (mut live, mut lower_bound, mut peak_op) = (0, 0, 0);
    for (at, delta) in change.iter().enumerate() {
        live += delta;
        if live > lower_bound {
            (lower_bound, peak_op) = (live, at);
        }
    }
    let sum = |keep: &dyn Fn(&Slot) -> bool| {
        Category::ALL.map(|c| (c, slots.iter().filter(|s| s.category == c && keep(s)).map(|s| s.bytes).sum())).to_vec()
    };
    MemoryReport {
        arena,
        lower_bound: lower_bound as u64,
        peak_op,
        total: sum(&|_| true),
        at_peak: sum(&|s| s.first <= peak_op && peak_op <= s.last),
    }
}

/// Forward results that a later op than `forward` reads are kept, the others are transient.
pub(crate) fn mark_kept(graph: &mut Graph, forward: usize) {
    let mut read = vec![false; graph.tensors.len()];
    for node in &graph.nodes[forward..] {
        for (id, access) in node.op.operands() {
            read[graph.root(id).0.index()] |= access == Access::Read;
        }
    }
    for (tensor, read) in graph.tensors.iter_mut().zip(read) {
        if tensor.category == Category::Transient && read {
            tensor.category = Category::Kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(bytes: u64, offset: u64, first: usize, last: usize) -> Slot {
        Slot { tensor: None, category: Category::Workspace, bytes, offset, first, last }
    }

    #[test]
    fn a_place_rests_where_the_arena_has_room() {
        let (kept, peak) = (slot(4, 0, 0, 30), slot(12, 4, 8, 9));
        let scratch = |at| slot(4, 4, at, at);
        let mut slots = vec![kept.clone(), scratch(1), scratch(2), scratch(3), peak.clone(), scratch(20)];
        spread(&mut slots, 16);
        let offsets: Vec<u64> = slots.iter().map(|s| s.offset).collect();
        // Three places beside what is kept; the peak has the only one that it fits in.
        assert_eq!((offsets[0], offsets[4], offsets[5]), (0, 4, 4));
        let mut three = offsets[1..4].to_vec();
        three.sort_unstable();
        assert_eq!(three, [4, 8, 12]);
    }

    #[test]
    fn moved_buffers_do_not_meet_and_stay_inside() {
        let (ops, mut state) = (60, 7u64);
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let lives: Vec<(u64, usize, usize)> = (0..200)
            .map(|_| {
                let first = next(ops) as usize;
                (8 * (1 + next(9)), first, (first + next(6) as usize).min(ops as usize - 1))
            })
            .collect();
        let (mut slots, mut placed): (Vec<Slot>, _) = (Vec::new(), Placed::default());
        for &(bytes, first, last) in &lives {
            slots.push(slot(bytes, placed.lowest(bytes, (first, last)), first, last));
            placed.insert(&slots[slots.len() - 1]);
        }
        let arena = slots.iter().map(|s| s.offset + s.bytes).max().unwrap_or(0);
        let before = slots.clone();
        spread(&mut slots, arena);
        assert_ne!(slots, before);
        for (at, a) in slots.iter().enumerate() {
            assert!(a.offset + a.bytes <= arena);
            for b in &slots[..at] {
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(apart || a.last < b.first || b.last < a.first, "{a:?} {b:?}");
            }
        }
    }
}
