//! Lifetimes and offsets: every buffer gets a place in one arena.

use crate::graph::{Category, Graph, TensorId};
use crate::ops::Access;
use crate::{GraphError, Precision};
use std::collections::BTreeMap;

/// Buffers start at multiples of this many bytes.
pub(crate) const ARENA_ALIGN: u64 = 256;
/// Elements that one tensor may have.
const MAX_ELEMENTS: u64 = 1 << 31;

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

/// A slot that has its place; a list of them is kept in the order of their starts.
struct Placed {
    start: u64,
    end: u64,
    first: usize,
    last: usize,
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
    let mut placed: Vec<Placed> = Vec::with_capacity(slots.len());
    for slot in &mut slots {
        let mut offset = 0;
        for other in placed.iter().filter(|p| p.first <= slot.last && slot.first <= p.last) {
            if offset + slot.bytes <= other.start {
                break;
            }
            offset = offset.max(other.end);
        }
        slot.offset = offset;
        let (start, end) = (offset, offset + slot.bytes);
        arena = arena.max(end);
        let at = placed.partition_point(|p| p.start <= start);
        placed.insert(at, Placed { start, end, first: slot.first, last: slot.last });
    }
    let report = report(&slots, graph.nodes.len(), arena);
    Ok((slots, report))
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
