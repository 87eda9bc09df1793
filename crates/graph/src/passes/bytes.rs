//! Convolutions that read pictures of bytes: where the device can, a picture is normalised on its way into them and
//! never written.

use crate::Kind;
use crate::executor::Backend;
use crate::graph::{Graph, TensorId};
use crate::ops::{Normalize, Op};
use crate::{DType, Precision};

/// Drops every `Normalize` whose readers all are convolutions that the backend runs on bytes.
pub(crate) fn run(graph: &mut Graph, backend: &dyn Backend, precision: Precision) {
    let pictures: Vec<Normalize> = graph
        .nodes
        .iter()
        .filter_map(|node| if let Op::Normalize(op) = &node.op { Some(op.clone()) } else { None })
        .filter(|op| serves(graph, backend, precision, op))
        .collect();
    for picture in pictures {
        graph.nodes.retain(|node| !matches!(&node.op, Op::Normalize(op) if op.y == picture.y));
        for node in &mut graph.nodes {
            if let Op::Conv2d(conv) = &mut node.op
                && conv.x == picture.y
            {
                conv.x = picture.x;
            }
        }
    }
}

fn serves(graph: &Graph, backend: &dyn Backend, precision: Precision, op: &Normalize) -> bool {
    let ranged = |id: TensorId| graph.tensor_ids().any(|other| graph.tensor(other).range.is_some_and(|r| r.of == id));
    let picture = graph.tensor(op.x);
    let readable = picture.kind == Kind::Raw(DType::U8) && picture.shape.c == 3;
    if !readable || graph.outputs.contains(&op.y) || ranged(op.y) {
        return false;
    }
    let mut readers = graph.nodes.iter().filter(|node| node.op.reads().contains(&op.y)).peekable();
    readers.peek().is_some()
        && readers.all(|node| match &node.op {
            // The op as it would be: over the bytes.
            Op::Conv2d(conv) if conv.attrs.groups == 1 => {
                let mut over = conv.clone();
                over.x = op.x;
                backend.reads_bytes(&over, graph, precision)
            }
            _ => false,
        })
}
