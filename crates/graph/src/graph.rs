//! The graph: tensors, parameters, and a list of ops in execution order.

use crate::params::Param;
use crate::{ChannelMap, Kind, Op, Shape};

/// A tensor of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub(crate) u32);

impl TensorId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Channels `start..` of another tensor's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRange {
    pub of: TensorId,
    /// First logical channel of the range.
    pub start: usize,
}

/// What a buffer is for, in the memory report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Pictures and targets.
    Input,
    /// Forward results that the backward pass still reads.
    Kept,
    /// Forward results that live only as long as the forward pass needs them.
    Transient,
    /// Forward results computed a second time for the backward pass.
    Recomputed,
    /// Gradients of feature maps.
    Gradient,
    /// Batch statistics and their sums.
    Statistic,
    /// Loss values and predictions.
    Output,
    /// Scratch of single ops.
    Workspace,
}

impl Category {
    pub const ALL: [Category; 8] = [
        Category::Input,
        Category::Kept,
        Category::Transient,
        Category::Recomputed,
        Category::Gradient,
        Category::Statistic,
        Category::Output,
        Category::Workspace,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Category::Input => "inputs",
            Category::Kept => "activations kept",
            Category::Transient => "activations transient",
            Category::Recomputed => "activations recomputed",
            Category::Gradient => "gradients of activations",
            Category::Statistic => "batch statistics",
            Category::Output => "loss and predictions",
            Category::Workspace => "workspace",
        }
    }
}

/// How far the recomputation levels may go with a forward tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Dropped from the second level on: inside of a block.
    Interior,
    /// Kept at every level: what a block is recomputed from.
    Boundary,
}

/// One tensor. `shape` is logical; `map` says where its channels lie.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub shape: Shape,
    pub kind: Kind,
    pub category: Category,
    pub keep: Keep,
    /// Set where the tensor is a channel range of another one.
    pub range: Option<TensorRange>,
    pub map: ChannelMap,
}

/// An op with the model layer it belongs to.
#[derive(Clone, Debug)]
pub struct Node {
    pub op: Op,
    /// Such as `model.4.cv2`.
    pub scope: String,
}

/// Tensors, parameters, ops. Built by [`crate::GraphBuilder`], rewritten by the passes.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) params: Vec<Param>,
    pub(crate) nodes: Vec<Node>,
    /// Tensors that stay readable after a run.
    pub(crate) outputs: Vec<TensorId>,
    /// Tensors that the host writes before a run.
    pub(crate) inputs: Vec<TensorId>,
}

impl Graph {
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    pub fn tensor_ids(&self) -> impl Iterator<Item = TensorId> + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn params(&self) -> &[Param] {
        &self.params
    }

    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// The first tensor of this name, if any.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().position(|t| t.name == name).map(|i| TensorId(i as u32))
    }

    /// The tensor that owns the buffer of `id`, and the first logical channel of `id` in it.
    pub fn root(&self, id: TensorId) -> (TensorId, usize) {
        let (mut at, mut start) = (id, 0);
        while let Some(range) = self.tensor(at).range {
            start += range.start;
            at = range.of;
        }
        (at, start)
    }

    pub(crate) fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.tensors.push(tensor);
        TensorId(self.tensors.len() as u32 - 1)
    }
}
