//! Reverse-mode differentiation, graph to graph.
//!
//! Walks the forward ops backwards and appends the ops that compute gradients. The gradient of a channel
//! range is the same range of its buffer's gradient; for each gradient buffer the pass keeps which channels
//! have been written, so that the first contribution writes and later ones add, and no buffer is cleared
//! first unless a part of it is never written. Loss ops write the gradients of their inputs themselves.

use crate::graph::{Category, Graph, Keep, Node, Tensor, TensorId, TensorRange};
use crate::ops::*;
use crate::{Kind, Shape};
use std::collections::HashMap;

/// Appends the backward pass.
pub(crate) fn run(graph: &mut Graph) {
    let forward = graph.nodes.len();
    let needs = needs_gradient(graph);
    let mut ranged = vec![false; graph.tensors.len()];
    for id in graph.tensor_ids() {
        ranged[graph.root(id).0.index()] |= graph.root(id).0 != id;
    }
    let mut tape = Tape { graph, gradient: HashMap::new(), written: HashMap::new(), scope: String::new(), ranged };
    for at in (0..forward).rev() {
        tape.scope.clone_from(&tape.graph.nodes[at].scope);
        let op = tape.graph.nodes[at].op.clone();
        tape.backward(at, op, &needs);
    }
}

/// Which tensors depend on a trained parameter.
fn needs_gradient(graph: &Graph) -> Vec<bool> {
    let mut needs = vec![false; graph.tensors.len()];
    // A range needs what any part of its buffer needs: contributions are tracked per buffer.
    let mut roots = vec![false; graph.tensors.len()];
    for node in &graph.nodes {
        let trained = match &node.op {
            Op::Conv2d(op) => [Some(op.w), op.bias].into_iter().flatten().any(|p| graph.params[p.index()].trained),
            Op::BnApply(op) => op
                .branches
                .iter()
                .any(|b| [b.params.weight, b.params.bias].into_iter().any(|p| graph.params[p.index()].trained)),
            Op::BnStats(_) | Op::RunningStats(_) => continue,
            _ => false,
        };
        let depends = |id: &TensorId| needs[id.index()] || roots[graph.root(*id).0.index()];
        if trained || node.op.reads().iter().any(depends) {
            for id in node.op.writes() {
                needs[id.index()] = true;
                roots[graph.root(id).0.index()] = true;
            }
        }
    }
    graph.tensor_ids().map(|id| needs[id.index()] || roots[graph.root(id).0.index()]).collect()
}

struct Tape<'g> {
    graph: &'g mut Graph,
    gradient: HashMap<TensorId, TensorId>,
    /// Written channels of each gradient buffer, as disjoint sorted `(start, end)`.
    written: HashMap<TensorId, Vec<(usize, usize)>>,
    scope: String,
    /// Forward buffers of which other tensors are ranges.
    ranged: Vec<bool>,
}

impl Tape<'_> {
    fn push(&mut self, op: impl Into<Op>) {
        self.graph.nodes.push(Node { op: op.into(), scope: self.scope.clone() });
    }

    fn backward(&mut self, at: usize, op: Op, needs: &[bool]) {
        let wants = |id: TensorId| needs[id.index()];
        match op {
            Op::Conv2d(op) => {
                let Some(dy) = self.complete(op.y) else { return };
                let trained = |p: crate::ParamId| self.graph.params[p.index()].trained;
                if trained(op.w) || op.bias.is_some_and(trained) {
                    self.push(ConvWeightGrad { x: op.x, dy, w: op.w, bias: op.bias, attrs: op.attrs });
                }
                if wants(op.x) {
                    let (dx, accumulate) = self.contribute(op.x);
                    self.push(ConvDataGrad { dy, w: op.w, dx, attrs: op.attrs, accumulate });
                }
            }
            Op::BnApply(op) => self.batch_norm(op, &wants),
            Op::Activate(op) => {
                if let Some(dy) = self.complete(op.y).filter(|_| wants(op.x)) {
                    let (dx, accumulate) = self.contribute(op.x);
                    self.push(ActivateGrad { x: op.x, dy, act: op.act, dx, accumulate });
                }
            }
            Op::Add(op) => {
                if let Some(dy) = self.complete(op.y) {
                    let wanted: Vec<TensorId> = op.xs.into_iter().filter(|&x| wants(x)).collect();
                    if let Some((&last, rest)) = wanted.split_last() {
                        rest.iter().for_each(|&x| self.hand_on(dy, x));
                        self.adopt(dy, last);
                    }
                }
            }
            Op::Copy(op) => {
                if let Some(dy) = self.complete(op.y).filter(|_| wants(op.x)) {
                    self.adopt(dy, op.x);
                }
            }
            Op::MaxPool(op) => {
                if let Some(dy) = self.complete(op.y).filter(|_| wants(op.x)) {
                    let (dx, accumulate) = self.contribute(op.x);
                    self.push(MaxPoolGrad { x: op.x, dy, dx, attrs: op.attrs, accumulate });
                }
            }
            Op::AvgPool(op) => {
                if let Some(dy) = self.complete(op.y).filter(|_| wants(op.x)) {
                    let (dx, accumulate) = self.contribute(op.x);
                    self.push(AvgPoolGrad { x: op.x, dy, dx, attrs: op.attrs, accumulate });
                }
            }
            Op::Resize(op) => {
                if let Some(dy) = self.complete(op.y).filter(|_| wants(op.x)) {
                    let (dx, accumulate) = self.contribute(op.x);
                    self.push(ResizeGrad { dy, dx, accumulate });
                }
            }
            Op::External(op) => {
                let gradients: Vec<Option<TensorId>> = (0..op.inputs.len())
                    .map(|i| {
                        let differentiated = op.spec.differentiates(i) && wants(op.inputs[i]);
                        differentiated.then(|| {
                            let (gradient, accumulate) = self.contribute(op.inputs[i]);
                            debug_assert!(!accumulate, "a loss input feeds the loss once");
                            gradient
                        })
                    })
                    .collect();
                let Op::External(op) = &mut self.graph.nodes[at].op else { unreachable!("same node") };
                op.gradients = gradients;
            }
            // Their gradient is part of BnApply's, or they have none.
            Op::BnStats(_) | Op::RunningStats(_) | Op::Normalize(_) | Op::Fill(_) => {}
            Op::BatchNorm(_) | Op::Concat(_) | Op::Slice(_) => unreachable!("lowered before differentiation"),
            Op::ConvDataGrad(_)
            | Op::ConvWeightGrad(_)
            | Op::BnReduce(_)
            | Op::BnBackward(_)
            | Op::ActivateGrad(_)
            | Op::MaxPoolGrad(_)
            | Op::AvgPoolGrad(_)
            | Op::ResizeGrad(_) => unreachable!("backward ops are not differentiated"),
        }
    }

    fn batch_norm(&mut self, op: BnApply, wants: &impl Fn(TensorId) -> bool) {
        let Some(dy) = self.complete(op.y) else { return };
        let map = self.graph.tensor(op.y).map.clone();
        let mut sum = |what: &str| {
            let tensor = Tensor {
                name: format!("{}.{what}", self.scope),
                shape: Shape::vector(map.logical()),
                kind: Kind::Statistic,
                category: Category::Statistic,
                keep: Keep::Boundary,
                range: None,
                map: map.clone(),
            };
            self.graph.add_tensor(tensor)
        };
        let s1 = sum("s1");
        let s2: Vec<TensorId> = op.branches.iter().map(|_| sum("s2")).collect();
        let (branches, eps, act) = (op.branches, op.eps, op.act);
        self.push(BnReduce { dy, branches: branches.clone(), eps, act, s1, s2: s2.clone() });
        if branches.iter().any(|b| wants(b.x)) {
            let dx = branches.iter().map(|b| self.contribute(b.x)).collect();
            self.push(BnBackward { dy, branches, eps, act, s1, s2, dx });
        }
        if let Some(residual) = op.residual.filter(|&r| wants(r)) {
            self.adopt(dy, residual);
        }
    }

    /// Adds the finished `dy` to the gradient of `x`.
    fn hand_on(&mut self, dy: TensorId, x: TensorId) {
        let (dx, accumulate) = self.contribute(x);
        self.push(Copy { x: dy, y: dx, accumulate });
    }

    /// As [`Self::hand_on`] for the last reader of `dy`: where `x` has no gradient yet, and none of its
    /// channels can get one by another name, `dy` itself becomes it and later contributions add in place.
    fn adopt(&mut self, dy: TensorId, x: TensorId) {
        let untouched = !self.gradient.contains_key(&x) && !self.ranged[x.index()];
        if untouched && self.graph.tensor(x).range.is_none() {
            self.gradient.insert(x, dy);
        } else {
            self.hand_on(dy, x);
        }
    }

    /// The gradient of `x` if any channel of it has been written; channels that were not are cleared.
    fn complete(&mut self, x: TensorId) -> Option<TensorId> {
        let gradient = self.gradient_of(x);
        let (root, start) = self.graph.root(gradient);
        let end = start + self.graph.tensor(x).shape.c;
        let missing = self.missing(root, start, end);
        if missing == [(start, end)] {
            return None;
        }
        self.clear(root, &missing);
        Some(gradient)
    }

    /// Where to put a contribution to the gradient of `x`, and whether to add it.
    fn contribute(&mut self, x: TensorId) -> (TensorId, bool) {
        let gradient = self.gradient_of(x);
        let (root, start) = self.graph.root(gradient);
        let end = start + self.graph.tensor(x).shape.c;
        let missing = self.missing(root, start, end);
        if missing == [(start, end)] {
            self.mark(root, start, end);
            return (gradient, false);
        }
        self.clear(root, &missing);
        (gradient, true)
    }

    fn gradient_of(&mut self, x: TensorId) -> TensorId {
        if let Some(&gradient) = self.gradient.get(&x) {
            return gradient;
        }
        let range = self.graph.tensor(x).range.map(|r| TensorRange { of: self.gradient_of(r.of), start: r.start });
        let tensor = self.graph.tensor(x);
        let gradient = Tensor {
            name: format!("{}.grad", tensor.name),
            // Gradients are operands of convolutions, also those of logits that are stored wider.
            kind: Kind::Activation,
            category: Category::Gradient,
            keep: Keep::Interior,
            range,
            ..tensor.clone()
        };
        let id = self.graph.add_tensor(gradient);
        self.gradient.insert(x, id);
        id
    }

    fn missing(&self, root: TensorId, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut missing = Vec::new();
        let mut at = start;
        for &(s, e) in self.written.get(&root).map_or(&[][..], |w| w) {
            if s >= end || e <= at {
                continue;
            }
            if s > at {
                missing.push((at, s));
            }
            at = at.max(e);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    fn mark(&mut self, root: TensorId, start: usize, end: usize) {
        let written = self.written.entry(root).or_default();
        written.push((start, end));
        written.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(written.len());
        for &(s, e) in written.iter() {
            match merged.last_mut() {
                Some(last) if last.1 >= s => last.1 = last.1.max(e),
                _ => merged.push((s, e)),
            }
        }
        *written = merged;
    }

    fn clear(&mut self, root: TensorId, missing: &[(usize, usize)]) {
        for &(start, end) in missing {
            let whole = self.graph.tensor(root).clone();
            let y = if (start, end) == (0, whole.shape.c) {
                root
            } else {
                let name = format!("{}[{start}..{end}]", whole.name);
                let shape = whole.shape.with_channels(end - start);
                let map = whole.map.sub_range(start, end - start);
                self.graph.add_tensor(Tensor {
                    name,
                    shape,
                    map,
                    range: Some(TensorRange { of: root, start }),
                    ..whole
                })
            };
            self.push(Fill { y });
            self.mark(root, start, end);
        }
    }
}
