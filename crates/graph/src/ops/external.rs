//! Ops that other crates declare: loss, decoding and suppression. Executors find their bodies by name.

use super::{Access, OpDef};
use crate::graph::TensorId;
use crate::{Kind, Shape};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Scratch that an external op needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ScratchSpec {
    /// Elements of the statistics type.
    pub statistics: usize,
    /// 32-bit words.
    pub words: usize,
}

/// Declaration of an external op: shapes, scratch, and which inputs it differentiates.
pub trait ExternalSpec: Debug + Send + Sync {
    /// The name under which executors register the body.
    fn name(&self) -> &'static str;

    /// Shape and kind of each output, for inputs of the given shapes.
    fn outputs(&self, inputs: &[Shape]) -> Vec<(&'static str, Shape, Kind)>;

    /// Scratch for inputs of the given shapes.
    fn scratch(&self, inputs: &[Shape]) -> ScratchSpec;

    /// True where the op itself writes the gradient of this input (of the loss, with weight 1).
    fn differentiates(&self, input: usize) -> bool;

    /// For the body's downcast.
    fn as_any(&self) -> &dyn Any;
}

/// A declared op with its operands.
#[derive(Clone, Debug)]
pub struct External {
    pub spec: Arc<dyn ExternalSpec>,
    pub inputs: Vec<TensorId>,
    pub outputs: Vec<TensorId>,
    /// Gradient of each input, where the spec differentiates it and the graph asks for it.
    pub gradients: Vec<Option<TensorId>>,
}

impl OpDef for External {
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
        self.inputs.iter_mut().for_each(|x| f(x, Access::Read));
        self.outputs.iter_mut().for_each(|y| f(y, Access::Write));
        self.gradients.iter_mut().flatten().for_each(|d| f(d, Access::Write));
    }

    fn unsegmented(&self) -> Vec<TensorId> {
        self.inputs.iter().chain(&self.outputs).copied().collect()
    }
}
