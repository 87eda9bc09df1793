//! What an op costs: multiply-accumulates and bytes moved.

use crate::graph::Graph;
use crate::ops::Op;
use crate::{Plan, Precision, Shape};

/// Arithmetic and traffic of one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpCost {
    /// Multiply-accumulates of convolutions, over logical channels.
    pub macs: u64,
    /// Bytes read and written, each operand once, padding included.
    pub bytes: u64,
}

/// Cost of an op in a graph.
pub fn cost(op: &Op, graph: &Graph, precision: Precision) -> OpCost {
    let shape = |id| -> Shape { graph.tensor(id).shape };
    let macs = match op {
        Op::Conv2d(c) => conv_macs(shape(c.x), shape(c.y), c.attrs.kernel, c.attrs.groups),
        Op::ConvDataGrad(c) => conv_macs(shape(c.dx), shape(c.dy), c.attrs.kernel, c.attrs.groups),
        Op::ConvWeightGrad(c) => conv_macs(shape(c.x), shape(c.dy), c.attrs.kernel, c.attrs.groups),
        _ => 0,
    };
    let bytes = op
        .operands()
        .into_iter()
        .map(|(id, _)| {
            let tensor = graph.tensor(id);
            // Before channels are laid out, the logical count stands in for the padded one.
            let channels = tensor.map.physical().max(tensor.shape.c);
            (tensor.shape.pixels() * channels * precision.of(tensor.kind).bytes()) as u64
        })
        .sum();
    OpCost { macs, bytes }
}

/// Floating-point operations of a plan's convolutions, a multiply-accumulate counting as two: forward, gradients of
/// feature maps and of weights, as far as the plan computes them. What it computes a second time is not in it.
pub fn model_flops(plan: &Plan) -> u64 {
    let macs = |(at, node): (usize, &crate::Node)| match node.op {
        // Behind the forward pass: a clone that spares memory.
        Op::Conv2d(_) if at >= plan.forward_ops() => 0,
        _ => cost(&node.op, plan.graph(), plan.precision()).macs,
    };
    2 * plan.graph().nodes().iter().enumerate().map(macs).sum::<u64>()
}

fn conv_macs(x: Shape, y: Shape, kernel: usize, groups: usize) -> u64 {
    (y.elements() * kernel * kernel) as u64 * (x.c / groups) as u64
}
