//! What plans must know about a card before there is one: scratch of each op, by shapes alone.

use crate::conv::{self, Pass, Request, Shape};
use crate::executor::CudaOptions;
use crate::kernels::loss::Loss;
use crate::kernels::{Bias, BnReduce, BnStats, MaxPool, Nms, Predictions};
use crate::view::Format;
use detect::external::{DetectionLoss, Suppress};
use graph::ops::{Conv2d, ConvAttrs, External};
use graph::{Backend, DType, Graph, Kind, Op, Precision, TensorId};

/// NVIDIA GPUs as plans are compiled for them. Needs no card and no driver.
#[derive(Clone, Copy, Debug)]
pub struct CudaBackend {
    options: CudaOptions,
}

impl CudaBackend {
    pub fn new(options: CudaOptions) -> Self {
        Self { options }
    }

    /// What a convolution asks of the card; `None` for other ops.
    pub fn request(&self, op: &Op, graph: &Graph, precision: Precision) -> Option<Request> {
        request(op, graph, precision, self.options.tf32)
    }
}

impl Backend for CudaBackend {
    fn padded(&self, channels: usize) -> usize {
        conv::padded(channels)
    }

    fn reads_bytes(&self, conv: &Conv2d, graph: &Graph, precision: Precision) -> bool {
        // Asked for before channels are laid out.
        let outputs = self.padded(graph.tensor(conv.y).shape.c);
        let shape = Shape { outputs, output_pitch: outputs, ..shape(graph, conv.x, conv.y, conv.attrs) };
        format(Kind::Activation, precision).is_some_and(|format| conv::reads_bytes(shape.over_bytes(), format))
    }

    fn runs_side_by_side(&self) -> bool {
        true
    }

    fn workspace(&self, op: &Op, graph: &Graph, precision: Precision) -> u64 {
        let extent = |id: TensorId| (graph.tensor(id).shape.pixels(), graph.tensor(id).map.physical());
        let own = match op {
            Op::BnStats(s) => {
                let (pixels, channels) = extent(s.x);
                BnStats::scratch(pixels, channels)
            }
            Op::BnReduce(r) => {
                let (pixels, channels) = extent(r.dy);
                BnReduce::scratch(pixels, channels, r.branches.len())
            }
            Op::ConvWeightGrad(c) if c.bias.is_some() => {
                let (pixels, channels) = extent(c.dy);
                Bias::scratch(pixels, channels)
            }
            Op::MaxPoolGrad(p) => {
                let (pixels, channels) = extent(p.dy);
                MaxPool::scratch(pixels, channels, p.attrs)
            }
            Op::External(e) => external(e, graph),
            _ => 0,
        };
        // A convolution's weight gradient is done with its scratch before the bias's begins.
        let library = self.request(op, graph, precision).map_or(0, |r| conv::workspace(&r));
        library.max(own as u64)
    }
}

/// Scratch bytes of kernels that serve an external op.
fn external(op: &External, graph: &Graph) -> usize {
    let shape = |input: usize| graph.tensor(op.inputs[input]).shape;
    let spec = op.spec.as_any();
    if let Some(spec) = spec.downcast_ref::<DetectionLoss>() {
        let anchors = (0..spec.levels).map(|level| shape(2 * level).h * shape(2 * level).w).sum();
        return Loss::scratch(spec.branches, spec.levels, shape(0).n, anchors, spec.max_boxes) as usize;
    }
    if let Some(spec) = spec.downcast_ref::<Suppress>() {
        return Nms::scratch(predictions(shape(0), graph.tensor(op.inputs[0]).map.physical(), spec), &spec.config);
    }
    0
}

/// The predictions that are suppressed, with so many elements from one to the next.
pub(crate) fn predictions(shape: graph::Shape, pitch: usize, spec: &Suppress) -> Predictions {
    Predictions { images: shape.n, rows: shape.w, pitch, nc: spec.nc }
}

/// Number format of a tensor of this kind; `None` for raw inputs and for float64, which no kernel takes.
pub(crate) fn format(kind: Kind, precision: Precision) -> Option<Format> {
    match precision.of(kind) {
        DType::F32 => Some(Format::F32),
        DType::F16 => Some(Format::F16),
        DType::BF16 => Some(Format::Bf16),
        _ => None,
    }
}

/// As [`CudaBackend::request`], where TF32 is known and the backend is not.
pub(crate) fn request(op: &Op, graph: &Graph, precision: Precision, tf32: bool) -> Option<Request> {
    let (x, y, attrs, pass, add) = match op {
        Op::Conv2d(c) => (c.x, c.y, c.attrs, Pass::Forward, false),
        Op::ConvDataGrad(c) => (c.dx, c.dy, c.attrs, Pass::Data, c.accumulate),
        Op::ConvWeightGrad(c) => (c.x, c.dy, c.attrs, Pass::Weight, true),
        _ => return None,
    };
    let output = match pass {
        Pass::Forward => format(graph.tensor(y).kind, precision)?,
        _ => format(Kind::Activation, precision)?,
    };
    let format = format(Kind::Activation, precision)?;
    let bytes = graph.tensor(x).kind == Kind::Raw(DType::U8);
    let shape = shape(graph, x, y, attrs);
    let shape = if bytes { shape.over_bytes() } else { shape };
    Some(Request { shape, pass, format, output, tf32, add, bytes })
}

/// Extents of a convolution. Groups are counted over logical channels, which lie in one segment.
fn shape(graph: &Graph, x: TensorId, y: TensorId, attrs: ConvAttrs) -> Shape {
    let channels = |id: TensorId| {
        let tensor = graph.tensor(id);
        if attrs.groups == 1 { tensor.map.physical() } else { tensor.shape.c }
    };
    let pitch = |id: TensorId| graph.tensor(graph.root(id).0).map.physical();
    let picture = graph.tensor(x).shape;
    Shape {
        images: picture.n,
        height: picture.h,
        width: picture.w,
        inputs: channels(x),
        outputs: channels(y),
        kernel: attrs.kernel,
        stride: attrs.stride,
        pad: attrs.pad,
        groups: attrs.groups,
        input_pitch: pitch(x),
        output_pitch: pitch(y),
    }
}
