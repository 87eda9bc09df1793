//! The graphs of a run as its executors hold them: one for each batch and size.

use crate::TrainError;
use detect::LossConfig;
use detect::external::DetectionTensors;
use detect::nms::Detection;
use graph::{Backend, Executor, PlanId, Recompute, TensorId, Ticket};
use model::Model;
pub(crate) use plan::graphs::{Compiled, Decoding, GraphSettings, InputShape, TrainingSettings};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// A prepared graph.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub id: PlanId,
    /// Of its convolutions, see [`graph::model_flops`].
    pub flops: u64,
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

/// Records and compiles a graph.
pub(crate) fn compile(
    model: &Model,
    backend: &dyn Backend,
    settings: &GraphSettings,
    shape: InputShape,
    max_boxes: usize,
) -> Result<Compiled, TrainError> {
    Ok(plan::graphs::compile(model, backend, settings, shape, max_boxes)?)
}

/// The loss that fits a model: auxiliary branches count a quarter.
pub(crate) fn loss_config(model: &Model, hyp: &crate::hyp::Hyp) -> LossConfig {
    LossConfig {
        box_gain: hyp.box_gain,
        cls_gain: hyp.cls,
        dfl_gain: hyp.dfl,
        cls_pw: hyp.cls_pw,
        fl_gamma: hyp.fl_gamma,
        ..plan::graphs::loss_config(model)
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
        let prepared = Prepared { id, flops: graph::model_flops(&compiled.plan), compiled };
        self.plans.insert(shape, prepared.clone());
        Ok(prepared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Purpose};

    fn settings(model: &Model, recompute: Recompute) -> GraphSettings {
        let (precision, loss) = (graph::Precision::F32, Some(plan::graphs::loss_config(model)));
        let training = TrainingSettings { frozen: Vec::new(), recompute };
        GraphSettings { precision, loss, decode: None, training: Some(training) }
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
