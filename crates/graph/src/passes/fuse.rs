//! Fusion: batch norms are lowered to statistics + apply, and what follows them moves into the apply.
//!
//! `act(bn(a) + bn(b))` becomes one apply over two branches (RepConv), `act(bn(a))` one over one, and a
//! sum with a tensor that is already there becomes the apply's residual. In inference graphs, where
//! batch norms are folded, an activation moves into its convolution.

use crate::graph::{Category, Graph, Keep, Node, Tensor, TensorId};
use crate::ops::*;
use crate::{ChannelMap, Kind, Shape};
use std::collections::HashMap;

/// Lowers and fuses. `training` graphs keep activations out of convolutions, whose backward pass needs
/// the value before the activation.
pub(crate) fn run(graph: &mut Graph, training: bool) {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut uses: HashMap<TensorId, usize> = HashMap::new();
    for node in &nodes {
        node.op.reads().into_iter().for_each(|id| *uses.entry(id).or_default() += 1);
    }
    graph.outputs.iter().for_each(|&id| *uses.entry(id).or_default() += 1);
    let single = |id: TensorId| uses.get(&id) == Some(&1);

    let mut fuser = Fuser { graph, out: Vec::with_capacity(nodes.len()), pending: HashMap::new(), at: HashMap::new() };
    for node in nodes {
        match node.op {
            Op::BatchNorm(bn) => fuser.batch_norm(bn, &node.scope),
            Op::Activate(ref act) if single(act.x) && fuser.pending.contains_key(&act.x) => {
                let pending = fuser.pending.remove(&act.x).expect("checked by the guard");
                fuser.apply(pending, act.act, act.y, node.scope);
            }
            Op::Activate(ref act) if !training && single(act.x) && fuser.absorbs_activation(act.x) => {
                let (at, act) = (fuser.at[&act.x], act.clone());
                let Op::Conv2d(conv) = &mut fuser.out[at].op else { unreachable!("absorbs_activation checked") };
                conv.act = act.act;
                conv.y = act.y;
                fuser.at.insert(act.y, at);
            }
            Op::Add(ref add) => {
                let [a, b] = add.xs[..] else {
                    fuser.flush(&node);
                    fuser.push(node.op, node.scope);
                    continue;
                };
                let both = single(a) && single(b) && fuser.pending.get(&a).is_some_and(|p| p.branches.len() == 1);
                if both
                    && fuser.pending.get(&b).is_some_and(|p| p.branches.len() == 1 && p.eps == fuser.pending[&a].eps)
                {
                    let mut first = fuser.pending.remove(&a).expect("checked above");
                    let second = fuser.pending.remove(&b).expect("checked above");
                    first.branches.extend(second.branches);
                    first.y = add.y;
                    fuser.pending.insert(add.y, first);
                } else {
                    let y = add.y;
                    fuser.flush(&node);
                    let into = [(b, a), (a, b)].into_iter().find(|&(x, r)| single(x) && fuser.takes_residual(x, r));
                    match into {
                        Some((x, residual)) => {
                            let at = fuser.at[&x];
                            let Op::BnApply(apply) = &mut fuser.out[at].op else {
                                unreachable!("takes_residual checked")
                            };
                            apply.residual = Some(residual);
                            apply.y = y;
                            fuser.at.insert(y, at);
                        }
                        None => fuser.push(node.op, node.scope),
                    }
                }
            }
            _ => {
                fuser.flush(&node);
                fuser.push(node.op, node.scope);
            }
        }
    }
    let mut left: Vec<Pending> = fuser.pending.drain().map(|p| p.1).collect();
    left.sort_by_key(|p| p.y);
    for pending in left {
        let y = pending.y;
        let scope = pending.scope.clone();
        fuser.apply(pending, Activation::Identity, y, scope);
    }
    graph.nodes = std::mem::take(&mut fuser.out);
}

/// A lowered batch norm whose apply waits for what follows it.
struct Pending {
    branches: Vec<BnBranch>,
    eps: f64,
    y: TensorId,
    scope: String,
}

struct Fuser<'g> {
    graph: &'g mut Graph,
    out: Vec<Node>,
    pending: HashMap<TensorId, Pending>,
    /// Position in `out` of the op that writes a tensor.
    at: HashMap<TensorId, usize>,
}

impl Fuser<'_> {
    fn push(&mut self, op: Op, scope: String) {
        op.writes().into_iter().for_each(|id| {
            self.at.insert(id, self.out.len());
        });
        self.out.push(Node { op, scope });
    }

    fn batch_norm(&mut self, bn: BatchNorm, scope: &str) {
        let channels = self.graph.tensor(bn.x).shape.c;
        let mut statistic = |what: &str| {
            self.graph.add_tensor(Tensor {
                name: format!("{scope}.{what}"),
                shape: Shape::vector(channels),
                kind: Kind::Statistic,
                category: Category::Statistic,
                keep: Keep::Boundary,
                range: None,
                map: ChannelMap::default(),
            })
        };
        let (mean, var) = (statistic("mean"), statistic("var"));
        self.push(BnStats { x: bn.x, mean, var }.into(), scope.to_owned());
        let branch = BnBranch { x: bn.x, mean, var, params: bn.params };
        self.pending.insert(bn.y, Pending { branches: vec![branch], eps: bn.eps, y: bn.y, scope: scope.to_owned() });
    }

    fn apply(&mut self, pending: Pending, act: Activation, y: TensorId, scope: String) {
        let Pending { branches, eps, .. } = pending;
        self.push(BnApply { branches, eps, act, residual: None, y }.into(), scope);
    }

    /// Applies the pending batch norms that a node reads as they are.
    fn flush(&mut self, node: &Node) {
        for id in node.op.reads() {
            if let Some(pending) = self.pending.remove(&id) {
                self.apply(pending, Activation::Identity, id, node.scope.clone());
            }
        }
    }

    fn absorbs_activation(&self, x: TensorId) -> bool {
        let op = self.at.get(&x).map(|&at| &self.out[at].op);
        matches!(op, Some(Op::Conv2d(conv)) if conv.act == Activation::Identity)
    }

    /// True where `x` comes from an apply without a residual, and `residual` is there before it.
    fn takes_residual(&self, x: TensorId, residual: TensorId) -> bool {
        let Some(&at) = self.at.get(&x) else { return false };
        let Op::BnApply(apply) = &self.out[at].op else { return false };
        // What no op writes is an input.
        apply.residual.is_none() && self.at.get(&residual).is_none_or(|&r| r < at)
    }
}
