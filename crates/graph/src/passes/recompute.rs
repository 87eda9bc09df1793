//! Drops forward tensors and computes them again where the backward pass reads them.
//!
//! What is kept depends on the level; everything else that a backward op reads is rebuilt just before that
//! op by clones of the forward ops, recursively down to kept tensors. Clones run the same op on the same
//! values, so results are identical to the bit. Batch statistics are always kept: a rebuilt batch norm
//! uses the saved mean and variance and never touches running statistics.

use crate::compile::Level;
use crate::graph::{Category, Graph, Keep, Node, TensorId, TensorRange};
use crate::ops::{Access, Op};
use std::collections::{HashMap, HashSet};

/// Rewrites the backward part (`forward..`) of the graph for a level.
pub(crate) fn run(graph: &mut Graph, forward: usize, level: Level) {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut writers: HashMap<TensorId, Vec<usize>> = HashMap::new();
    for (at, node) in nodes[..forward].iter().enumerate() {
        for id in node.op.writes() {
            writers.entry(graph.root(id).0).or_default().push(at);
        }
    }
    let mut kept = HashSet::new();
    for (&root, at) in &writers {
        if at.iter().any(|&at| keeps(graph, &nodes[at], level)) {
            kept.insert(root);
        }
    }
    let mut pass = Recompute {
        graph,
        forward: &nodes[..forward],
        writers,
        kept,
        clones: HashMap::new(),
        done: HashSet::new(),
        out: nodes[..forward].to_vec(),
    };
    for node in &nodes[forward..] {
        let mut op = node.op.clone();
        op.visit(&mut |id, access| {
            if access == Access::Read {
                *id = pass.available(*id);
            }
        });
        pass.out.push(Node { op, scope: node.scope.clone() });
    }
    let out = std::mem::take(&mut pass.out);
    graph.nodes = out;
}

/// True where a forward op's result stays until the backward pass.
fn keeps(graph: &Graph, node: &Node, level: Level) -> bool {
    let boundary = |id: TensorId| graph.tensor(id).keep == Keep::Boundary;
    match (&node.op, level) {
        (_, Level::KeepAll) => true,
        (Op::BnStats(_) | Op::External(_), _) => true,
        (Op::Conv2d(_), Level::DropActivations) => true,
        (Op::Conv2d(conv), Level::DropInteriors) => boundary(conv.y),
        _ => false,
    }
}

struct Recompute<'a> {
    graph: &'a mut Graph,
    forward: &'a [Node],
    /// Forward ops that write to a buffer.
    writers: HashMap<TensorId, Vec<usize>>,
    kept: HashSet<TensorId>,
    /// Rebuilt twin of a forward tensor.
    clones: HashMap<TensorId, TensorId>,
    /// Forward ops that have been cloned.
    done: HashSet<usize>,
    out: Vec<Node>,
}

impl Recompute<'_> {
    /// The tensor to read for forward tensor `id`: itself, or its twin after the ops that rebuild it.
    fn available(&mut self, id: TensorId) -> TensorId {
        let (root, start) = self.graph.root(id);
        let Some(writers) = self.writers.get(&root).cloned() else { return id };
        if self.kept.contains(&root) {
            return id;
        }
        let end = start + self.graph.tensor(id).shape.c;
        for at in writers {
            let overlaps = self.forward[at].op.writes().into_iter().any(|w| {
                let (r, s) = self.graph.root(w);
                r == root && s < end && s + self.graph.tensor(w).shape.c > start
            });
            if overlaps && self.done.insert(at) {
                let mut op = self.forward[at].op.clone();
                op.visit(&mut |operand, access| {
                    *operand = if access == Access::Read { self.available(*operand) } else { self.twin(*operand) };
                });
                self.out.push(Node { op, scope: self.forward[at].scope.clone() });
            }
        }
        self.twin(id)
    }

    fn twin(&mut self, id: TensorId) -> TensorId {
        if let Some(&twin) = self.clones.get(&id) {
            return twin;
        }
        let mut tensor = self.graph.tensor(id).clone();
        tensor.category = Category::Recomputed;
        tensor.name.push_str(".again");
        tensor.range = tensor.range.map(|r| TensorRange { of: self.twin(r.of), start: r.start });
        let twin = self.graph.add_tensor(tensor);
        self.clones.insert(id, twin);
        twin
    }
}
