//! Scratch of each op on the CPU.

use crate::dispatch::kernel_attrs;
use crate::kernels::batch_norm as bn;
use crate::kernels::conv::{conv_data_grad_scratch, conv_forward_scratch, conv_weight_grad_scratch};
use graph::ops::ConvAttrs;
use graph::{Backend, Graph, Op, Precision, TensorId};

/// The CPU as plans are compiled for it. Scratch depends on shapes, never on the number of threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBackend;

impl Backend for CpuBackend {
    fn workspace(&self, op: &Op, graph: &Graph, precision: Precision) -> u64 {
        let shape = |id: TensorId| {
            let tensor = graph.tensor(id);
            [tensor.shape.n, tensor.shape.h, tensor.shape.w, tensor.map.physical()]
        };
        // Grouped convolutions run over logical channels.
        let channels = |id: TensorId, attrs: ConvAttrs| {
            if attrs.groups == 1 { shape(id)[3] } else { graph.tensor(id).shape.c }
        };
        let element = precision.activation.bytes();
        let elements = match op {
            Op::Conv2d(c) => {
                conv_forward_scratch(channels(c.x, c.attrs), channels(c.y, c.attrs), kernel_attrs(c.attrs))
            }
            Op::ConvDataGrad(c) => {
                conv_data_grad_scratch(channels(c.dx, c.attrs), channels(c.dy, c.attrs), kernel_attrs(c.attrs))
            }
            Op::ConvWeightGrad(c) => {
                let [n, h, w, _] = shape(c.x);
                let x = [n, h, w, channels(c.x, c.attrs)];
                conv_weight_grad_scratch(x, channels(c.dy, c.attrs), kernel_attrs(c.attrs))
            }
            Op::BnStats(s) => bn::bn_stats_scratch(shape(s.x)),
            Op::BnReduce(r) => bn::bn_reduce_scratch(shape(r.dy), r.branches.len()),
            Op::External(e) => {
                let shapes: Vec<_> = e.inputs.iter().map(|&id| graph.tensor(id).shape).collect();
                let scratch = e.spec.scratch(&shapes);
                return (scratch.statistics * precision.statistic.bytes() + scratch.words * 4) as u64;
            }
            _ => 0,
        };
        (elements * element) as u64
    }
}
