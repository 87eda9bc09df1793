//! Records a model's forward pass.

use crate::graph::{Category, Graph, Keep, Node, Tensor, TensorId};
use crate::ops::*;
use crate::params::{BnParams, Param, ParamGroup, ParamId, ParamShape};
use crate::{ChannelMap, DType, GraphError, Kind, Shape};
use std::collections::HashMap;
use std::sync::Arc;

/// Largest side of a convolution's kernel.
const MAX_KERNEL: usize = 11;

/// Records ops in execution order and infers shapes.
///
/// Scopes name the layer an op belongs to; parameters are declared first and handed to ops.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    scope: String,
    names: HashMap<String, ParamId>,
}

impl GraphBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the scope of the ops that follow, such as `model.4`.
    pub fn set_scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    /// Shape of a recorded tensor.
    pub fn shape(&self, id: TensorId) -> Shape {
        self.graph.tensor(id).shape
    }

    /// Declares a parameter. Names are unique.
    pub fn param(&mut self, name: &str, shape: ParamShape, group: ParamGroup) -> Result<ParamId, GraphError> {
        let id = ParamId(self.graph.params.len() as u32);
        if self.names.insert(name.to_owned(), id).is_some() {
            return Err(GraphError::DuplicateParam(name.to_owned()));
        }
        self.graph.params.push(Param { name: name.to_owned(), shape, group, trained: group != ParamGroup::Buffer });
        Ok(id)
    }

    /// Freezes every parameter whose name the predicate picks.
    pub fn freeze(&mut self, frozen: impl Fn(&str) -> bool) {
        for param in &mut self.graph.params {
            param.trained &= !frozen(&param.name);
        }
    }

    /// A tensor the host writes before each run, stored densely.
    pub fn input(&mut self, name: &str, shape: Shape, dtype: DType) -> TensorId {
        let id = self.tensor(name.to_owned(), shape, Kind::Raw(dtype), Category::Input);
        self.graph.inputs.push(id);
        id
    }

    /// `x / 255` of a u8 picture.
    pub fn normalize(&mut self, x: TensorId) -> TensorId {
        let y = self.activation_tensor("normalized", self.shape(x));
        self.push(Normalize { x, y });
        y
    }

    /// Convolution of `x` (N, H, W, C) to the weight's output channels.
    pub fn conv(
        &mut self,
        x: TensorId,
        w: ParamId,
        bias: Option<ParamId>,
        attrs: ConvAttrs,
    ) -> Result<TensorId, GraphError> {
        self.conv_to(x, w, bias, attrs, Kind::Activation)
    }

    /// [`Self::conv`] whose output is never stored in half precision. Logits leave a network this way: rounded ones
    /// would tie.
    pub fn conv_to_statistic(
        &mut self,
        x: TensorId,
        w: ParamId,
        bias: Option<ParamId>,
        attrs: ConvAttrs,
    ) -> Result<TensorId, GraphError> {
        self.conv_to(x, w, bias, attrs, Kind::Statistic)
    }

    fn conv_to(
        &mut self,
        x: TensorId,
        w: ParamId,
        bias: Option<ParamId>,
        attrs: ConvAttrs,
        kind: Kind,
    ) -> Result<TensorId, GraphError> {
        let shape = self.shape(x);
        if !(1..=MAX_KERNEL).contains(&attrs.kernel) || attrs.stride == 0 {
            let (scope, kernel, stride) = (self.scope.clone(), attrs.kernel, attrs.stride);
            return Err(GraphError::Kernel { scope, kernel, stride });
        }
        let ParamShape::Conv { out, in_per_group, .. } = self.graph.params[w.index()].shape else {
            return Err(self.mismatch("Conv2d", shape, Shape::vector(0)));
        };
        for channels in [shape.c, out] {
            if attrs.groups == 0 || channels % attrs.groups != 0 {
                let scope = self.scope.clone();
                return Err(GraphError::Groups { op: "Conv2d", scope, channels, groups: attrs.groups });
            }
        }
        if in_per_group * attrs.groups != shape.c {
            return Err(self.mismatch("Conv2d", shape, shape.with_channels(in_per_group * attrs.groups)));
        }
        self.window("Conv2d", shape, attrs.kernel, attrs.pad)?;
        let (h, w_out) = (attrs.output(shape.h), attrs.output(shape.w));
        let name = format!("{}.conv", self.scope);
        let y = self.tensor(name, Shape::new(shape.n, h, w_out, out), kind, Category::Transient);
        self.push(Conv2d { x, w, bias, act: Activation::Identity, y, attrs });
        Ok(y)
    }

    /// Batch norm over batch and picture.
    pub fn batch_norm(&mut self, x: TensorId, params: BnParams, eps: f64) -> TensorId {
        let y = self.activation_tensor("bn", self.shape(x));
        self.push(BatchNorm { x, params, eps, y });
        y
    }

    pub fn activation(&mut self, x: TensorId, act: Activation) -> TensorId {
        if act == Activation::Identity {
            return x;
        }
        let y = self.activation_tensor("act", self.shape(x));
        self.push(Activate { x, act, y });
        y
    }

    /// Sum of tensors of one shape.
    pub fn add(&mut self, xs: &[TensorId]) -> Result<TensorId, GraphError> {
        let shape = self.common_shape("Add", xs, |s| s)?;
        let y = self.activation_tensor("sum", shape);
        self.push(Add { xs: xs.to_vec(), y });
        Ok(y)
    }

    pub fn max_pool(&mut self, x: TensorId, attrs: PoolAttrs) -> Result<TensorId, GraphError> {
        let y = self.pooled("MaxPool", x, attrs)?;
        self.push(MaxPool { x, y, attrs });
        Ok(y)
    }

    pub fn avg_pool(&mut self, x: TensorId, attrs: PoolAttrs) -> Result<TensorId, GraphError> {
        let y = self.pooled("AvgPool", x, attrs)?;
        self.push(AvgPool { x, y, attrs });
        Ok(y)
    }

    /// Nearest-neighbour resizing to `h` x `w`.
    pub fn resize(&mut self, x: TensorId, h: usize, w: usize) -> TensorId {
        let shape = self.shape(x);
        if (shape.h, shape.w) == (h, w) {
            return x;
        }
        let y = self.activation_tensor("resized", Shape { h, w, ..shape });
        self.push(Resize { x, y });
        y
    }

    /// Channels of all inputs, one after the other.
    pub fn concat(&mut self, xs: &[TensorId]) -> Result<TensorId, GraphError> {
        if let [only] = xs {
            return Ok(*only);
        }
        let shape = self.common_shape("Concat", xs, |s| s.with_channels(0))?;
        let channels = xs.iter().map(|&x| self.shape(x).c).sum();
        let y = self.activation_tensor("concat", shape.with_channels(channels));
        self.push(Concat { xs: xs.to_vec(), y });
        Ok(y)
    }

    /// Channels `start..start + len`.
    pub fn slice(&mut self, x: TensorId, start: usize, len: usize) -> Result<TensorId, GraphError> {
        let shape = self.shape(x);
        if len == 0 || start + len > shape.c {
            let scope = self.scope.clone();
            return Err(GraphError::Range { op: "Slice", scope, start, end: start + len, channels: shape.c });
        }
        if len == shape.c {
            return Ok(x);
        }
        let y = self.activation_tensor("slice", shape.with_channels(len));
        self.push(Slice { x, start, y });
        Ok(y)
    }

    /// An op that another crate declares; returns its outputs.
    pub fn external(&mut self, spec: Arc<dyn ExternalSpec>, inputs: &[TensorId]) -> Vec<TensorId> {
        let shapes: Vec<Shape> = inputs.iter().map(|&x| self.shape(x)).collect();
        let outputs: Vec<TensorId> = spec
            .outputs(&shapes)
            .into_iter()
            .map(|(name, shape, kind)| self.tensor(name.to_owned(), shape, kind, Category::Output))
            .collect();
        let gradients = vec![None; inputs.len()];
        self.push(External { spec, inputs: inputs.to_vec(), outputs: outputs.clone(), gradients });
        outputs
    }

    /// Keeps a tensor readable after a run.
    pub fn output(&mut self, id: TensorId) {
        self.graph.outputs.push(id);
    }

    /// Marks the tensor that a block is recomputed from at the highest recomputation level.
    pub fn mark_boundary(&mut self, id: TensorId) {
        self.graph.tensors[id.index()].keep = Keep::Boundary;
    }

    pub fn finish(self) -> Graph {
        self.graph
    }

    fn push(&mut self, op: impl Into<Op>) {
        self.graph.nodes.push(Node { op: op.into(), scope: self.scope.clone() });
    }

    fn tensor(&mut self, name: String, shape: Shape, kind: Kind, category: Category) -> TensorId {
        let map = ChannelMap::default();
        self.graph.add_tensor(Tensor { name, shape, kind, category, keep: Keep::Interior, range: None, map })
    }

    fn activation_tensor(&mut self, what: &str, shape: Shape) -> TensorId {
        let name = format!("{}.{what}", self.scope);
        self.tensor(name, shape, Kind::Activation, Category::Transient)
    }

    fn pooled(&mut self, op: &'static str, x: TensorId, attrs: PoolAttrs) -> Result<TensorId, GraphError> {
        let shape = self.shape(x);
        self.window(op, shape, attrs.kernel, attrs.pad)?;
        let shape = Shape { h: attrs.output(shape.h), w: attrs.output(shape.w), ..shape };
        Ok(self.activation_tensor("pool", shape))
    }

    fn window(&self, op: &'static str, shape: Shape, kernel: usize, pad: usize) -> Result<(), GraphError> {
        if shape.h + 2 * pad < kernel || shape.w + 2 * pad < kernel {
            let scope = self.scope.clone();
            return Err(GraphError::Window { op, scope, height: shape.h, width: shape.w, kernel });
        }
        Ok(())
    }

    fn common_shape(
        &self,
        op: &'static str,
        xs: &[TensorId],
        part: impl Fn(Shape) -> Shape,
    ) -> Result<Shape, GraphError> {
        let Some(&first) = xs.first() else {
            return Err(GraphError::NoInput { op, scope: self.scope.clone() });
        };
        let shape = self.shape(first);
        match xs.iter().map(|&x| self.shape(x)).find(|&s| part(s) != part(shape)) {
            Some(other) => Err(self.mismatch(op, shape, other)),
            None => Ok(shape),
        }
    }

    fn mismatch(&self, op: &'static str, left: Shape, right: Shape) -> GraphError {
        GraphError::Shapes { op, scope: self.scope.clone(), left, right }
    }
}
