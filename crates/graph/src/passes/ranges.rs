//! Places concatenations and slices as channel ranges.
//!
//! A slice becomes a range of its source. Each part of a concatenation becomes a range of the whole, so
//! that its producer writes where the consumer reads; a part that already lies in another buffer, that
//! comes twice, or that is an input or an output of the graph, is copied.

use crate::Kind;
use crate::graph::{Graph, Node, TensorId, TensorRange};
use crate::ops::{Copy, Op};

pub(crate) fn run(graph: &mut Graph) {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node.op {
            Op::Slice(slice) => {
                graph.tensors[slice.y.index()].range = Some(TensorRange { of: slice.x, start: slice.start });
            }
            Op::Concat(concat) => {
                let mut start = 0;
                for x in concat.xs {
                    let range = Some(TensorRange { of: concat.y, start });
                    start += graph.tensor(x).shape.c;
                    if placeable(graph, x, concat.y) {
                        graph.tensors[x.index()].range = range;
                    } else {
                        let mut part = graph.tensor(x).clone();
                        part.range = range;
                        part.name.push_str(".copy");
                        let y = graph.add_tensor(part);
                        out.push(Node { op: Copy { x, y, accumulate: false }.into(), scope: node.scope.clone() });
                    }
                }
            }
            _ => out.push(node),
        }
    }
    graph.nodes = out;
}

fn placeable(graph: &Graph, x: TensorId, whole: TensorId) -> bool {
    let tensor = graph.tensor(x);
    tensor.range.is_none()
        && tensor.kind == Kind::Activation
        && graph.root(whole).0 != x
        && !graph.inputs.contains(&x)
        && !graph.outputs.contains(&x)
}
