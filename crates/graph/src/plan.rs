//! A compiled graph: ops in order, and the place of everything they touch.

use crate::compile::Level;
use crate::graph::{Graph, TensorId};
use crate::memory::{MemoryReport, Slot};
use crate::params::ParamLayout;
use crate::{Precision, Shape};

/// Where a tensor lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Placement {
    /// Byte of the first element.
    pub offset: u64,
    /// Elements between the starts of neighbouring pixels.
    pub pitch: usize,
    /// Physical channels of the tensor itself, padding included; at most `pitch`.
    pub channels: usize,
}

/// Everything an executor needs to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) graph: Graph,
    pub(crate) forward: usize,
    pub(crate) params: ParamLayout,
    pub(crate) placements: Vec<Placement>,
    /// Byte offset and size of each op's workspace.
    pub(crate) workspace: Vec<(u64, u64)>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) memory: MemoryReport,
    pub(crate) precision: Precision,
    pub(crate) level: Level,
}

impl Plan {
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of ops of the forward pass, loss included; the backward pass follows.
    pub fn forward_ops(&self) -> usize {
        self.forward
    }

    pub fn params(&self) -> &ParamLayout {
        &self.params
    }

    /// Placement of a tensor that an op touches or the host reads or writes.
    pub fn placement(&self, id: TensorId) -> Placement {
        self.placements[id.index()]
    }

    /// Byte offset and size of the workspace of op `at`.
    pub fn workspace(&self, at: usize) -> (u64, u64) {
        self.workspace[at]
    }

    /// Every buffer with its lifetime.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    pub fn memory(&self) -> &MemoryReport {
        &self.memory
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// Logical shape of a tensor.
    pub fn shape(&self, id: TensorId) -> Shape {
        self.graph.tensor(id).shape
    }
}
