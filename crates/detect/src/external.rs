//! The ops this crate adds to a graph: the training loss, the decoding of head maps and non-maximum suppression. Only
//! shapes, scratch and constants are declared here; executors hold the bodies and find them by name.

pub mod body;
mod suppress;

pub use suppress::{DetectionTensors, Suppress, suppress};

use std::any::Any;
use std::sync::Arc;

use graph::{DType, ExternalSpec, GraphBuilder, Kind, ScratchSpec, Shape, TensorId};

use crate::anchors::MAX_LEVELS;
use crate::dfl::BOX_CHANNELS;
use crate::loss::{LossConfig, MAX_BRANCHES, scratch_len};

/// Values of the loss op's output: total, then box, class and DFL loss over all branches, then the five values of
/// each branch: box, class, DFL, foreground anchors, target score sum.
pub const LOSS_VALUES: usize = 4 + 5 * MAX_BRANCHES;

/// Box and class logits of one level, as tensors of a graph: (N, h, w, 64) and (N, h, w, nc).
#[derive(Clone, Copy, Debug)]
pub struct LevelTensors {
    pub boxes: TensorId,
    pub classes: TensorId,
}

/// The inputs of the loss that the host writes before each step, packed as [`crate::Targets`].
#[derive(Clone, Copy, Debug)]
pub struct TargetTensors {
    /// batch + 1 numbers.
    pub offsets: TensorId,
    /// Up to `max_boxes` classes.
    pub classes: TensorId,
    /// As many rows of centre x, centre y, width, height.
    pub boxes: TensorId,
}

/// Declares the loss over all branches; returns the values ([`LOSS_VALUES`]) and the target inputs.
///
/// `max_boxes` bounds the boxes of a whole batch; `input_hw` is the size of the network's input in pixels.
pub fn loss(
    b: &mut GraphBuilder,
    config: LossConfig,
    branches: &[Vec<LevelTensors>],
    max_boxes: usize,
    input_hw: (usize, usize),
) -> (TensorId, TargetTensors) {
    b.set_scope("loss");
    let batch = b.shape(branches[0][0].boxes).n;
    let max_boxes = max_boxes.max(1);
    let targets = TargetTensors {
        offsets: b.input("targets.offsets", Shape::vector(batch + 1), DType::U32),
        classes: b.input("targets.classes", Shape::vector(max_boxes), DType::U32),
        boxes: b.input("targets.boxes", Shape::vector(max_boxes * 4), DType::F32),
    };
    let mut inputs: Vec<TensorId> = branches.iter().flatten().flat_map(|l| [l.boxes, l.classes]).collect();
    inputs.extend([targets.offsets, targets.classes, targets.boxes]);
    let spec = DetectionLoss { config, branches: branches.len(), levels: branches[0].len(), max_boxes, input_hw };
    let values = b.external(Arc::new(spec), &inputs)[0];
    b.output(values);
    (values, targets)
}

/// Declares the decoding of one branch to (N, 1, anchors, 4 + nc): boxes as centre and size in network pixels, then
/// scores. An output of the graph.
pub fn decode(b: &mut GraphBuilder, levels: &[LevelTensors], strides: &[usize], nc: usize) -> TensorId {
    let predictions = predictions(b, levels, strides, nc);
    b.output(predictions);
    predictions
}

/// [`decode`] for an op that follows, such as [`suppress`]: the predictions are gone after the run.
pub fn predictions(b: &mut GraphBuilder, levels: &[LevelTensors], strides: &[usize], nc: usize) -> TensorId {
    b.set_scope("decode");
    let inputs: Vec<TensorId> = levels.iter().flat_map(|l| [l.boxes, l.classes]).collect();
    b.external(Arc::new(Decode { strides: strides.to_vec(), nc }), &inputs)[0]
}

/// The detection loss. Inputs: for each branch and level boxes and classes, then offsets, classes and boxes of the
/// targets.
#[derive(Clone, Debug)]
pub struct DetectionLoss {
    pub config: LossConfig,
    pub branches: usize,
    pub levels: usize,
    pub max_boxes: usize,
    /// Height and width of the network's input in pixels.
    pub input_hw: (usize, usize),
}

impl DetectionLoss {
    pub const NAME: &'static str = "detection_loss";
}

impl ExternalSpec for DetectionLoss {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(&self, _inputs: &[Shape]) -> Vec<(&'static str, Shape, Kind)> {
        vec![("loss", Shape::vector(LOSS_VALUES), Kind::Statistic)]
    }

    fn scratch(&self, inputs: &[Shape]) -> ScratchSpec {
        let anchors = (0..self.levels).map(|l| inputs[2 * l].h * inputs[2 * l].w).sum();
        let (statistics, words) = scratch_len(&self.config, inputs[0].n, anchors, self.max_boxes);
        ScratchSpec { statistics, words }
    }

    fn differentiates(&self, input: usize) -> bool {
        input < self.branches * self.levels * 2
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Evaluation decoding of one branch. Inputs: for each level boxes and classes.
#[derive(Clone, Debug)]
pub struct Decode {
    pub strides: Vec<usize>,
    pub nc: usize,
}

impl Decode {
    pub const NAME: &'static str = "decode";
}

impl ExternalSpec for Decode {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(&self, inputs: &[Shape]) -> Vec<(&'static str, Shape, Kind)> {
        debug_assert!(inputs.len() <= 2 * MAX_LEVELS && inputs[0].c == BOX_CHANNELS);
        let anchors = inputs.iter().step_by(2).map(|s| s.h * s.w).sum();
        vec![("predictions", Shape::new(inputs[0].n, 1, anchors, 4 + self.nc), Kind::Statistic)]
    }

    fn scratch(&self, _inputs: &[Shape]) -> ScratchSpec {
        ScratchSpec::default()
    }

    fn differentiates(&self, _input: usize) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
