//! One training step on a device: forward, loss, backward; and the commit.

use crate::card_pictures::CardPictures;
use crate::checkpoint::RunTensors;
use crate::device::{Device, Purpose, Running};
use crate::ema;
use crate::plans::{self, Compiled, GraphSettings, InputShape, LossValues, PackedTargets, PlanCache};
use crate::schedule::Iteration;
use crate::{Optimizer, TrainError};
use data::{Batch, ImagePool, Kept};
use graph::{
    CommitReport, CommitStep, GroupScalars, LossScale, MemoryReport, OptimizerKind, ParamLayout, StateSpec, Ticket,
};
use model::{Model, StateEntry};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Largest norm of the gradient.
const CLIP: f64 = 10.0;
const EPS: f64 = 1e-8;

/// The weights in training, on their device.
pub(crate) struct Stepper {
    executor: Running,
    /// Where a card renders batches.
    pictures: Option<CardPictures>,
    layout: ParamLayout,
    entries: Vec<StateEntry>,
    model: Arc<Model>,
    settings: GraphSettings,
    plans: PlanCache,
    kind: OptimizerKind,
    max_boxes: usize,
    flat_bytes: u64,
    /// Steps that were started and not yet heard of, oldest first.
    under_way: VecDeque<UnderWay>,
}

/// A batch of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub epoch: usize,
    pub batch: usize,
}

/// A step whose results are on their way.
#[derive(Debug)]
struct UnderWay {
    place: Place,
    losses: Option<Ticket>,
    commit: Option<Ticket>,
}

/// What a step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub place: Place,
    /// `None` where only a commit was left to do.
    pub losses: Option<LossValues>,
    /// Where the step ended in a commit.
    pub commit: Option<CommitReport>,
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
    /// Flat buffers; batches on their way to a card.
    bytes: [u64; 2],
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
        let backend = device.backend(Purpose::Training);
        let compiled = plans::compile(&model, backend.as_ref(), &settings, shape, max_boxes)?;
        let kind = optimizer.kind();
        let spec = StateSpec { layout: compiled.plan.params().clone(), optimizer: Some(kind), ema: true };
        let bytes = device.state_bytes(&spec, &compiled.plan, Purpose::Training)?;
        Ok(Self { device, model, settings, shape, max_boxes, compiled, spec, kind, bytes })
    }

    pub fn device(&self) -> &Device {
        &self.device
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
        self.bytes[0]
    }

    /// Bytes of batches on their way to a card, on either side.
    pub fn sent_bytes(&self) -> u64 {
        self.bytes[1]
    }
}

impl Stepper {
    /// Allocates what a plan needs.
    pub fn new(plan: StepPlan) -> Result<Self, TrainError> {
        let flat_bytes = plan.flat_bytes();
        let StepPlan { device, model, settings, shape, max_boxes, compiled, spec, kind, .. } = plan;
        let mut executor = device.running(&spec, Purpose::Training)?;
        let mut plans = PlanCache::default();
        plans.add(&mut *executor, shape, compiled)?;
        let entries = model.training_state()?;
        let (layout, under_way) = (spec.layout, VecDeque::new());
        let pictures = None;
        Ok(Self { executor, pictures, layout, entries, model, settings, plans, kind, max_boxes, flat_bytes, under_way })
    }

    /// Lets a card render batches, from pictures that `host` decodes and that take `bytes` of the card. Nothing on the
    /// processor.
    pub fn keep_pictures(&mut self, bytes: u64, host: Arc<ImagePool>) -> Result<(), TrainError> {
        if let Running::Card(executor) = &self.executor {
            self.pictures = Some(CardPictures::new(executor.gpu(), bytes, host)?);
        }
        Ok(())
    }

    /// What a loader need not load, where its batches are to come unrendered.
    pub fn next_loader(&mut self) -> Option<Arc<Kept>> {
        self.pictures.as_mut().map(CardPictures::next_loader)
    }

    /// Bytes of the arena as it is, which on a card the validation shares.
    pub fn arena_bytes(&self) -> u64 {
        self.executor.arena_bytes()
    }

    /// Bytes of the arena and of the flat buffers.
    pub fn memory_bytes(&self) -> u64 {
        self.executor.arena_bytes() + self.flat_bytes
    }

    /// Starts forward, loss and backward of a batch; the gradients are added to those that wait. Gives the floating-point
    /// operations of its convolutions.
    pub fn run(&mut self, batch: &Batch, place: Place) -> Result<u64, TrainError> {
        let [images, height, width, _] = batch.shape;
        let shape = InputShape { images, height, width };
        let targets = PackedTargets::of(batch);
        let boxes = targets.len().max(self.max_boxes);
        let plan = self.plans.get(&mut *self.executor, &self.model, &self.settings, shape, boxes)?;
        match (&batch.unrendered, &mut self.pictures) {
            (Some(unrendered), Some(pictures)) => {
                let rendered = match &mut self.executor {
                    Running::Card(card) => pictures.render(card, (plan.id, plan.image()), batch, unrendered)?,
                    Running::Cpu(_) => false,
                };
                match rendered {
                    true => plan.upload_targets(&mut *self.executor, &targets)?,
                    false => {
                        plan.upload(&mut *self.executor, &pictures.pixels(batch, unrendered), Some(&targets))?;
                    }
                }
            }
            _ => plan.upload(&mut *self.executor, &batch.pixels, Some(&targets))?,
        }
        let executor = &mut *self.executor;
        executor.run(plan.id)?;
        let losses = plan.start_losses(executor)?;
        self.under_way.push_back(UnderWay { place, losses, commit: None });
        Ok(plan.flops)
    }

    /// Starts to clip, step and average, after the batch at `place`. `updates` counts this step too.
    pub fn commit(
        &mut self,
        place: Place,
        at: &Iteration,
        hyp_momentum: f64,
        weight_decay: f64,
        updates: u64,
    ) -> Result<(), TrainError> {
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
        let commit = Some(self.executor.start_commit(&step)?);
        match self.under_way.back_mut().filter(|step| step.place == place && step.commit.is_none()) {
            Some(step) => step.commit = commit,
            None => self.under_way.push_back(UnderWay { place, losses: None, commit }),
        }
        Ok(())
    }

    /// What the oldest step gave, as soon as more than `lag` are under way; waits for it.
    pub fn outcome(&mut self, lag: usize) -> Result<Option<Outcome>, TrainError> {
        if self.under_way.len() <= lag {
            return Ok(None);
        }
        let Some(UnderWay { place, losses, commit }) = self.under_way.pop_front() else { return Ok(None) };
        let executor = &mut *self.executor;
        let losses = losses.map(|ticket| executor.finish_read(ticket)).transpose()?.map(|v| LossValues::read(&v));
        let commit = commit.map(|ticket| executor.finish_commit(ticket)).transpose()?;
        Ok(Some(Outcome { place, losses, commit }))
    }

    /// Steps whose losses have not been heard of.
    pub fn under_way(&self) -> usize {
        self.under_way.iter().filter(|step| step.losses.is_some()).count()
    }

    /// Whether the device still has something to do.
    pub fn busy(&self) -> Result<bool, TrainError> {
        Ok(self.executor.busy()?)
    }

    /// Time so far in which the device waited for batches on their way to it.
    pub fn upload_wait(&self) -> Duration {
        let pictures = self.pictures.as_ref().map_or(Duration::ZERO, CardPictures::upload_wait);
        self.executor.upload_wait() + pictures
    }

    /// What gradients are multiplied by, where they are in fp16.
    pub fn loss_scale(&self) -> Result<Option<LossScale>, TrainError> {
        Ok(self.executor.loss_scale()?)
    }

    /// Everything that a checkpoint holds.
    pub fn tensors(&self, pending: bool, batches: u64) -> Result<RunTensors, TrainError> {
        let states = self.kind.states();
        RunTensors::from_device(&*self.executor, &self.layout, &self.entries, states, pending, batches)
    }

    /// Takes weights, averages and optimiser state, and where gradients are in fp16 the scale that they had.
    pub fn load(&mut self, tensors: &RunTensors, scale: Option<LossScale>) -> Result<(), TrainError> {
        self.executor.set_loss_scale(scale.unwrap_or(LossScale::INITIAL))?;
        tensors.to_device(&mut *self.executor, &self.layout)
    }
}
