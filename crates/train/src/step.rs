//! One training step on a device: forward, loss, backward; and the commit.

use crate::checkpoint::RunTensors;
use crate::device::Device;
use crate::ema;
use crate::plans::{self, Compiled, GraphSettings, InputShape, LossValues, PackedTargets, PlanCache};
use crate::schedule::Iteration;
use crate::{Optimizer, TrainError};
use data::Batch;
use graph::{CommitReport, CommitStep, Executor, GroupScalars, MemoryReport, OptimizerKind, ParamLayout, StateSpec};
use model::{Model, StateEntry};
use std::sync::Arc;

/// Largest norm of the gradient.
const CLIP: f64 = 10.0;
const EPS: f64 = 1e-8;

/// The weights in training, on their device.
pub(crate) struct Stepper {
    executor: Box<dyn Executor>,
    layout: ParamLayout,
    entries: Vec<StateEntry>,
    model: Arc<Model>,
    settings: GraphSettings,
    plans: PlanCache,
    kind: OptimizerKind,
    max_boxes: usize,
    flat_bytes: u64,
}

/// The plan of whole batches, compiled; nothing is allocated yet.
pub(crate) struct StepPlan {
    device: Device,
    model: Arc<Model>,
    settings: GraphSettings,
    shape: InputShape,
    max_boxes: usize,
    compiled: Compiled,
    spec: StateSpec,
    kind: OptimizerKind,
}

impl StepPlan {
    /// Compiles it.
    pub fn compile(
        device: Device,
        model: Arc<Model>,
        settings: GraphSettings,
        shape: InputShape,
        max_boxes: usize,
        optimizer: Optimizer,
    ) -> Result<Self, TrainError> {
        let compiled = plans::compile(&model, device.backend().as_ref(), &settings, shape, max_boxes)?;
        let kind = optimizer.kind();
        let spec = StateSpec { layout: compiled.plan.params().clone(), optimizer: Some(kind), ema: true };
        Ok(Self { device, model, settings, shape, max_boxes, compiled, spec, kind })
    }

    pub fn shape(&self) -> InputShape {
        self.shape
    }

    /// What the arena is made of.
    pub fn memory(&self) -> &MemoryReport {
        self.compiled.plan.memory()
    }

    /// Bytes of weights, gradients, optimiser state and averages.
    pub fn flat_bytes(&self) -> u64 {
        flat_bytes(&self.spec)
    }
}

/// Bytes of an executor's flat buffers.
pub(crate) fn flat_bytes(spec: &StateSpec) -> u64 {
    spec.regions().iter().map(|(_, elements)| 4 * *elements as u64).sum()
}

impl Stepper {
    /// Allocates what a plan needs.
    pub fn new(plan: StepPlan) -> Result<Self, TrainError> {
        let flat_bytes = plan.flat_bytes();
        let StepPlan { device, model, settings, shape, max_boxes, compiled, spec, kind } = plan;
        let mut executor = device.executor(&spec);
        let mut plans = PlanCache::default();
        plans.add(executor.as_mut(), shape, compiled)?;
        let entries = model.training_state()?;
        Ok(Self { executor, layout: spec.layout, entries, model, settings, plans, kind, max_boxes, flat_bytes })
    }

    /// Bytes of the arena and of the flat buffers.
    pub fn memory_bytes(&self) -> u64 {
        self.executor.arena_bytes() + self.flat_bytes
    }

    /// Forward, loss and backward of a batch; the gradients are added to those that wait.
    pub fn run(&mut self, batch: &Batch) -> Result<LossValues, TrainError> {
        let [images, height, width, _] = batch.shape;
        let shape = InputShape { images, height, width };
        let targets = PackedTargets::of(batch);
        let boxes = targets.len().max(self.max_boxes);
        let executor = self.executor.as_mut();
        let plan = self.plans.get(executor, &self.model, &self.settings, shape, boxes)?;
        plan.upload(executor, &batch.pixels, Some(&targets))?;
        executor.run(plan.id)?;
        let losses = plan.losses(executor)?;
        Ok(losses.unwrap_or(LossValues { total: f64::NAN, items: [f64::NAN; 3] }))
    }

    /// Clips, steps and averages. `updates` counts this step too.
    pub fn commit(
        &mut self,
        at: &Iteration,
        hyp_momentum: f64,
        weight_decay: f64,
        updates: u64,
    ) -> Result<CommitReport, TrainError> {
        // Only SGD warms its momentum up; the others take the value as their first beta.
        let momentum = if self.kind == OptimizerKind::Sgd { at.momentum } else { hyp_momentum };
        let decays = [0.0, weight_decay, 0.0];
        let step = CommitStep {
            kind: self.kind,
            groups: std::array::from_fn(|g| GroupScalars { lr: at.lr[g], momentum, weight_decay: decays[g] }),
            beta2: if self.kind == OptimizerKind::Lion { 0.99 } else { 0.999 },
            eps: EPS,
            clip: CLIP,
            step: updates,
            ema_decay: Some(ema::decay(updates)),
        };
        Ok(self.executor.commit(&step)?)
    }

    /// Everything that a checkpoint holds.
    pub fn tensors(&self, pending: bool, batches: u64) -> Result<RunTensors, TrainError> {
        let states = self.kind.states();
        RunTensors::from_device(self.executor.as_ref(), &self.layout, &self.entries, states, pending, batches)
    }

    /// Takes weights, averages and optimiser state.
    pub fn load(&mut self, tensors: &RunTensors) -> Result<(), TrainError> {
        tensors.to_device(self.executor.as_mut(), &self.layout)
    }
}
