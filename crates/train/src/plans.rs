//! The graphs of a run: the training step and the evaluation, compiled for one batch and size each.

use crate::TrainError;
use detect::LossConfig;
use detect::external::{self, DetectionTensors, LevelTensors, TargetTensors};
use detect::nms::{Detection, NmsConfig};
use graph::{
    Backend, CompileOptions, DType, Executor, GraphBuilder, Plan, PlanId, Precision, Recompute, Shape, TensorId, Ticket,
};
use model::{Branches, BuildOptions, Heads, Mode, Model};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Momentum of running statistics.
const BN_MOMENTUM: f64 = 0.03;

/// Images, height and width of a plan's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InputShape {
    pub images: usize,
    pub height: usize,
    pub width: usize,
}

/// Boxes of a batch as the loss takes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PackedTargets {
    pub offsets: Vec<u32>,
    pub classes: Vec<u32>,
    /// Centre x, centre y, width, height as fractions.
    pub boxes: Vec<f32>,
}

impl PackedTargets {
    pub fn of(batch: &data::Batch) -> Self {
        Self {
            offsets: batch.offsets.iter().map(|&o| o as u32).collect(),
            classes: batch.targets.iter().map(|t| t.class).collect(),
            boxes: batch.targets.iter().flat_map(|t| t.xywh).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.classes.len()
    }
}

/// What a loss plan answers with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LossValues {
    pub total: f64,
    /// Box, class and DFL loss over all branches, gains in.
    pub items: [f64; 3],
}

impl LossValues {
    pub fn read(values: &[f32]) -> Self {
        let at = |i: usize| values.get(i).map_or(f64::NAN, |&v| f64::from(v));
        Self { total: at(0), items: [at(1), at(2), at(3)] }
    }
}

/// The loss and its place in a plan.
#[derive(Clone, Copy, Debug)]
struct LossTensors {
    values: TensorId,
    targets: TargetTensors,
    max_boxes: usize,
}

/// A compiled graph with the tensors that the host writes and reads.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    pub plan: Arc<Plan>,
    image: TensorId,
    loss: Option<LossTensors>,
    /// What it was compiled for.
    decode: Option<Decoding>,
    detections: Option<DetectionTensors>,
    predictions: Option<TensorId>,
}

/// A prepared graph.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub id: PlanId,
    compiled: Compiled,
}

impl Prepared {
    pub fn upload(
        &self,
        executor: &mut dyn Executor,
        pixels: &[u8],
        targets: Option<&PackedTargets>,
    ) -> Result<(), TrainError> {
        executor.upload_u8(self.id, self.compiled.image, pixels)?;
        match targets {
            Some(targets) => self.upload_targets(executor, targets),
            None => Ok(()),
        }
    }

    /// The input of pictures.
    pub fn image(&self) -> TensorId {
        self.compiled.image
    }

    /// Boxes alone, where pictures come in another way.
    pub fn upload_targets(&self, executor: &mut dyn Executor, targets: &PackedTargets) -> Result<(), TrainError> {
        if let Some(loss) = &self.compiled.loss {
            executor.upload_u32(self.id, loss.targets.offsets, &targets.offsets)?;
            executor.upload_u32(self.id, loss.targets.classes, &targets.classes)?;
            executor.upload_f32(self.id, loss.targets.boxes, &targets.boxes)?;
        }
        Ok(())
    }

    /// Starts to read the losses; `None` where the plan has none.
    pub fn start_losses(&self, executor: &mut dyn Executor) -> Result<Option<Ticket>, TrainError> {
        let loss = self.compiled.loss.map(|loss| executor.start_read(self.id, loss.values));
        Ok(loss.transpose()?)
    }

    pub fn losses(&self, executor: &dyn Executor) -> Result<Option<LossValues>, TrainError> {
        let Some(loss) = &self.compiled.loss else { return Ok(None) };
        Ok(Some(LossValues::read(&executor.download(self.id, loss.values)?)))
    }

    /// Detections of each image in network pixels, best first; none where the plan does not decode.
    pub fn detections(&self, executor: &dyn Executor) -> Result<Vec<Vec<Detection>>, TrainError> {
        let Some(tensors) = &self.compiled.detections else { return Ok(Vec::new()) };
        let [rows, found] = [tensors.rows, tensors.found].map(|id| executor.download(self.id, id));
        Ok(DetectionTensors::read(&rows?, &found?))
    }

    /// (images, anchors, 4 + nc), row by row; empty where they were not asked for.
    pub fn predictions(&self, executor: &dyn Executor) -> Result<Vec<f32>, TrainError> {
        match self.compiled.predictions {
            Some(id) => Ok(executor.download(self.id, id)?),
            None => Ok(Vec::new()),
        }
    }

    /// Boxes that a batch of this plan may have.
    pub fn max_boxes(&self) -> usize {
        self.compiled.loss.map_or(usize::MAX, |l| l.max_boxes)
    }
}

/// What distinguishes the graphs of one run.
#[derive(Clone, Debug)]
pub(crate) struct GraphSettings {
    pub precision: Precision,
    pub loss: Option<LossConfig>,
    /// Find objects with the main branch.
    pub decode: Option<Decoding>,
    /// Backward pass; the layers of these prefixes are frozen.
    pub training: Option<TrainingSettings>,
}

/// What is read of the main branch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decoding {
    pub nms: NmsConfig,
    /// Predictions before suppression can be read, too.
    pub raw: bool,
}

/// Settings of a training graph.
#[derive(Clone, Debug)]
pub(crate) struct TrainingSettings {
    /// Starts of the names of frozen parameters.
    pub frozen: Vec<String>,
    pub recompute: Recompute,
}

/// Records and compiles a graph.
pub(crate) fn compile(
    model: &Model,
    backend: &dyn Backend,
    settings: &GraphSettings,
    shape: InputShape,
    max_boxes: usize,
) -> Result<Compiled, TrainError> {
    let mut b = GraphBuilder::new();
    let image = b.input("image", Shape::new(shape.images, shape.height, shape.width, 3), DType::U8);
    let x = b.normalize(image);
    let mode = if settings.training.is_some() { Mode::Training } else { Mode::Folded };
    let branches = if settings.loss.is_some() { Branches::All } else { Branches::Main };
    let heads = model.build(&mut b, x, BuildOptions { mode, branches })?;
    let levels = level_tensors(&heads);
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

fn level_tensors(heads: &Heads) -> Vec<Vec<LevelTensors>> {
    let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
    heads.branches.iter().map(|b| b.levels.iter().map(level).collect()).collect()
}

/// The loss that fits a model: auxiliary branches count a quarter.
pub(crate) fn loss_config(model: &Model, hyp: &crate::hyp::Hyp) -> LossConfig {
    let weights = if model.has_aux() { vec![0.25, 1.0] } else { vec![1.0] };
    LossConfig {
        strides: model.strides.clone(),
        box_gain: hyp.box_gain,
        cls_gain: hyp.cls,
        dfl_gain: hyp.dfl,
        cls_pw: hyp.cls_pw,
        fl_gamma: hyp.fl_gamma,
        ..LossConfig::new(model.nc, weights)
    }
}

/// Prepared graphs by shape.
///
/// Batches of one run come in few shapes: the whole batch and the last short one, and with rectangles at most one
/// a pair of sides that are multiples of 32. All share one arena, so a plan costs its list of ops and no more;
/// none is dropped.
#[derive(Debug, Default)]
pub(crate) struct PlanCache {
    plans: BTreeMap<InputShape, Prepared>,
}

impl PlanCache {
    /// The plan of a shape with room for `boxes` boxes, made where there is none that decodes as it is wanted.
    pub fn get(
        &mut self,
        executor: &mut dyn Executor,
        model: &Model,
        settings: &GraphSettings,
        shape: InputShape,
        boxes: usize,
    ) -> Result<Prepared, TrainError> {
        let fits = |p: &&Prepared| p.max_boxes() >= boxes && p.compiled.decode == settings.decode;
        if let Some(plan) = self.plans.get(&shape).filter(fits) {
            return Ok(plan.clone());
        }
        let mut compiled = compile(model, executor.backend(), settings, shape, boxes)?;
        let room = executor.arena_bytes();
        if let Some(training) = settings.training.as_ref().filter(|_| compiled.plan.memory().arena > room) {
            // The arena was announced and stays as it is: a smaller input whose tensors lie less favourably computes
            // parts twice rather than to make it grow.
            let training = TrainingSettings { recompute: Recompute::Budget(room), ..training.clone() };
            let settings = GraphSettings { training: Some(training), ..settings.clone() };
            match compile(model, executor.backend(), &settings, shape, boxes) {
                Ok(smaller) => compiled = smaller,
                // More boxes than were counted on, for instance.
                Err(TrainError::Graph(graph::GraphError::Budget { .. })) => {}
                Err(other) => return Err(other),
            }
        }
        self.add(executor, shape, compiled)
    }

    /// Prepares a compiled graph.
    pub fn add(
        &mut self,
        executor: &mut dyn Executor,
        shape: InputShape,
        compiled: Compiled,
    ) -> Result<Prepared, TrainError> {
        let id = executor.prepare(Arc::clone(&compiled.plan))?;
        let prepared = Prepared { id, compiled };
        self.plans.insert(shape, prepared.clone());
        Ok(prepared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Purpose};

    fn settings(model: &Model, recompute: Recompute) -> GraphSettings {
        let loss = LossConfig::new(model.nc, vec![0.25, 1.0]);
        let loss = LossConfig { strides: model.strides.clone(), ..loss };
        let training = TrainingSettings { frozen: Vec::new(), recompute };
        GraphSettings { precision: Precision::F32, loss: Some(loss), decode: None, training: Some(training) }
    }

    #[test]
    fn no_side_of_multi_scale_needs_a_larger_arena_than_the_largest() {
        let model = Model::load("yolov9-t", Some(3)).unwrap();
        let settings = settings(&model, Recompute::Level(graph::Level::KeepAll));
        let backend = Device::Cpu.backend(Purpose::Training);
        let arena = |images: usize, side: usize| {
            let shape = InputShape { images, height: side, width: side };
            compile(&model, backend.as_ref(), &settings, shape, 40).unwrap().plan.memory().arena
        };
        let largest = arena(3, 160);
        for (images, side) in [(3, 128), (3, 96), (3, 64), (3, 32), (1, 160), (2, 160)] {
            let smaller = arena(images, side);
            assert!(smaller <= largest, "{images} images of {side}: {smaller} bytes, the largest has {largest}");
        }
    }

    #[test]
    fn a_plan_that_needs_more_than_was_announced_computes_parts_twice() {
        let model = Model::load("yolov9-t", Some(3)).unwrap();
        let usual = settings(&model, Recompute::Level(graph::Level::KeepAll));
        let device = Device::Cpu;
        let (tall, wide) =
            (InputShape { images: 2, height: 96, width: 64 }, InputShape { images: 2, height: 64, width: 96 });
        let compiled = |settings: &GraphSettings, shape| {
            compile(&model, device.backend(Purpose::Training).as_ref(), settings, shape, 40).unwrap()
        };
        let room = compiled(&usual, wide).plan.memory().arena / 10 * 8;
        let squeezed = compiled(&settings(&model, Recompute::Budget(room)), tall);
        let layout = squeezed.plan.params().clone();
        let spec = graph::StateSpec { layout, optimizer: Some(graph::OptimizerKind::Sgd), ema: true };
        let mut executor = device.executor(&spec, Purpose::Training).unwrap();
        let mut plans = PlanCache::default();
        plans.add(executor.as_mut(), tall, squeezed).unwrap();
        let announced = executor.arena_bytes();
        plans.get(executor.as_mut(), &model, &usual, wide, 40).unwrap();
        assert_eq!(executor.arena_bytes(), announced);
    }
}
