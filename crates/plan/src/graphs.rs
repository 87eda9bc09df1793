//! The graphs of a run: the training step and the evaluation, recorded and compiled for one batch and size each.

use crate::PlanError;
use detect::LossConfig;
use detect::external::{self, DetectionTensors, LevelTensors, TargetTensors};
use detect::nms::NmsConfig;
use graph::{Backend, CompileOptions, DType, GraphBuilder, Plan, Precision, Recompute, Shape, TensorId};
use model::{Branches, BuildOptions, Heads, Mode, Model};
use std::sync::Arc;

/// Momentum of running statistics.
const BN_MOMENTUM: f64 = 0.03;

/// Images, height and width of a plan's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputShape {
    pub images: usize,
    pub height: usize,
    pub width: usize,
}

/// What distinguishes the graphs of one run.
#[derive(Clone, Debug)]
pub struct GraphSettings {
    pub precision: Precision,
    pub loss: Option<LossConfig>,
    /// Find objects with the main branch.
    pub decode: Option<Decoding>,
    /// Backward pass.
    pub training: Option<TrainingSettings>,
}

/// What is read of the main branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoding {
    pub nms: NmsConfig,
    /// Predictions before suppression can be read, too.
    pub raw: bool,
}

/// Settings of a training graph.
#[derive(Clone, Debug)]
pub struct TrainingSettings {
    /// Starts of the names of frozen parameters.
    pub frozen: Vec<String>,
    pub recompute: Recompute,
}

/// The loss and its place in a plan.
#[derive(Clone, Copy, Debug)]
pub struct LossTensors {
    pub values: TensorId,
    pub targets: TargetTensors,
    /// Boxes that a batch may have.
    pub max_boxes: usize,
}

/// A compiled graph with the tensors that the host writes and reads.
#[derive(Clone, Debug)]
pub struct Compiled {
    pub plan: Arc<Plan>,
    pub image: TensorId,
    pub loss: Option<LossTensors>,
    /// What it was compiled for.
    pub decode: Option<Decoding>,
    /// Where it decodes.
    pub detections: Option<DetectionTensors>,
    /// Predictions (images, anchors, 4 + nc) where they were asked for.
    pub predictions: Option<TensorId>,
}

/// The forward pass of a model up to its heads.
pub struct Forward {
    pub builder: GraphBuilder,
    /// Pictures as bytes, NHWC.
    pub image: TensorId,
    pub heads: Heads,
}

impl Forward {
    /// The maps of all branches and levels, as the loss takes them.
    pub fn levels(&self) -> Vec<Vec<LevelTensors>> {
        let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
        self.heads.branches.iter().map(|b| b.levels.iter().map(level).collect()).collect()
    }
}

/// Records the forward pass.
///
/// # Errors
/// A size that the model's strides do not divide, or shapes that do not fit together.
pub fn record(model: &Model, shape: InputShape, options: BuildOptions) -> Result<Forward, PlanError> {
    let mut builder = GraphBuilder::new();
    let image = builder.input("image", Shape::new(shape.images, shape.height, shape.width, 3), DType::U8);
    let x = builder.normalize(image);
    let heads = model.build(&mut builder, x, options)?;
    Ok(Forward { builder, image, heads })
}

/// Records and compiles a graph with room for `max_boxes` boxes in a batch.
///
/// # Errors
/// As [`record`]; a budget below what the last level needs, or a tensor above 2^31 elements.
pub fn compile(
    model: &Model,
    backend: &dyn Backend,
    settings: &GraphSettings,
    shape: InputShape,
    max_boxes: usize,
) -> Result<Compiled, PlanError> {
    let mode = if settings.training.is_some() { Mode::Training } else { Mode::Folded };
    let branches = if settings.loss.is_some() { Branches::All } else { Branches::Main };
    let forward = record(model, shape, BuildOptions { mode, branches })?;
    let levels = forward.levels();
    let Forward { builder: mut b, image, .. } = forward;
    let loss = settings.loss.as_ref().map(|config| {
        let input_hw = (shape.height, shape.width);
        let (values, targets) = external::loss(&mut b, config.clone(), &levels, max_boxes, input_hw);
        LossTensors { values, targets, max_boxes: max_boxes.max(1) }
    });
    let (mut detections, mut predictions) = (None, None);
    if let (Some(main), Some(decode)) = (levels.last(), &settings.decode) {
        let decoded = external::predictions(&mut b, main, &model.strides, model.nc);
        if decode.raw {
            b.output(decoded);
            predictions = Some(decoded);
        }
        detections = Some(external::suppress(&mut b, decoded, decode.nms.clone(), model.nc));
    }
    let options = match &settings.training {
        Some(training) => {
            b.freeze(|name| training.frozen.iter().any(|f| name.starts_with(f.as_str())));
            let guard = loss.map(|l| l.values);
            let base = CompileOptions::inference(settings.precision);
            CompileOptions { training: true, guard, recompute: training.recompute, bn_momentum: BN_MOMENTUM, ..base }
        }
        None => CompileOptions::inference(settings.precision),
    };
    let plan = Arc::new(graph::compile(b.finish(), backend, &options)?);
    Ok(Compiled { plan, image, loss, decode: settings.decode.clone(), detections, predictions })
}

/// The loss that fits a model, with the usual gains: auxiliary branches count a quarter.
pub fn loss_config(model: &Model) -> LossConfig {
    let weights = if model.has_aux() { vec![0.25, 1.0] } else { vec![1.0] };
    LossConfig { strides: model.strides.clone(), ..LossConfig::new(model.nc, weights) }
}

/// Suppression as validation during training does it.
pub fn validation_nms(single_cls: bool) -> NmsConfig {
    NmsConfig {
        conf_threshold: 0.001,
        iou_threshold: 0.7,
        multi_label: true,
        agnostic: single_cls,
        classes: None,
        max_det: 300,
    }
}

/// Most boxes of a batch where no image has more than `most` labels: each is made of up to `pictures` images, of whose
/// objects `pasted` as many again may be added.
pub fn most_boxes(most: usize, pictures: usize, pasted: f64, batch: usize) -> usize {
    let pasted = if pictures > 1 { 1.0 + pasted } else { 1.0 };
    // Four boxes more for the rounding of each mosaic's pastes.
    batch * ((most * pictures) as f64 * pasted).ceil() as usize + 4 * batch
}
