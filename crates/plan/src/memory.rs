//! What a run takes of a card's memory: its compiled plans, and the flat buffers of its executors, by what they are for.

use crate::PlanError;
use crate::graphs::{
    Compiled, Decoding, GraphSettings, InputShape, TrainingSettings, compile, loss_config, most_boxes, validation_nms,
};
use crate::largest::{Largest, Need, TooLarge, largest};
use cuda::{CONTEXT_BYTES, CardBytes, CudaBackend, CudaOptions, LIBRARY_BYTES, footprint};
use graph::{Category, GraphError, Level, OptimizerKind, Plan, Recompute, Region, StateSpec};
use model::Model;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Pictures of a mosaic with a second mosaic mixed in, and how many objects copy-paste may add to each: the densest that
/// the built-in hyper-parameters allow.
const PICTURES: usize = 8;
const PASTED: f64 = 0.3;
/// Validation batches are this many times the training's.
pub const VALIDATION_BATCHES: usize = 2;
/// Share of the free memory that a batch of the program's own choice leaves free.
pub const LEFT_FREE: f64 = 0.05;
/// Allowed for each device where several share the work: an estimate of NCCL's channels.
pub const COMMUNICATION_BYTES: u64 = 384 << 20;

/// How executors of a run compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    pub training: CudaOptions,
    pub inference: CudaOptions,
}

/// What a run is asked to be, but for its batch.
#[derive(Debug)]
pub struct Request {
    pub model: Model,
    /// Side of the pictures in pixels.
    pub side: usize,
    pub formats: Formats,
    pub optimizer: OptimizerKind,
    /// Labels of the image that has the most: the bound on the boxes of a batch.
    pub most_labels: usize,
    /// Validates between epochs.
    pub validation: bool,
    /// Cards that share the batch.
    pub devices: usize,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Weights, averages, optimiser state and tables; folded weights of the validation.
    Parameters,
    /// Of weights, and of feature maps where the arena is fullest.
    Gradients,
    /// Forward results that wait for the backward pass.
    Kept,
    /// Forward results that are computed a second time.
    Recomputed,
    /// Forward results in passing, statistics and losses.
    Transient,
    /// Scratch of single ops.
    Workspace,
    /// Batches: in the arena, and two on their way for each executor.
    Data,
    /// Room in the arena that nothing uses when it is fullest.
    Gaps,
    /// What the validation's plan needs beyond the step's arena.
    Validation,
    /// Buffers of NCCL, where several cards work.
    Communication,
    /// The driver's context, CUDA graphs, and code of libraries.
    Libraries,
}

impl Part {
    pub const ALL: [Part; 11] = [
        Self::Parameters,
        Self::Gradients,
        Self::Kept,
        Self::Recomputed,
        Self::Transient,
        Self::Workspace,
        Self::Data,
        Self::Gaps,
        Self::Validation,
        Self::Communication,
        Self::Libraries,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters and optimiser state",
            Self::Gradients => "gradients",
            Self::Kept => "activations kept",
            Self::Recomputed => "activations computed twice",
            Self::Transient => "transient",
            Self::Workspace => "workspace",
            Self::Data => "data on its way",
            Self::Gaps => "gaps in the arena",
            Self::Validation => "validation beyond the step",
            Self::Communication => "communication",
            Self::Libraries => "driver and libraries",
        }
    }

    /// Of a tensor in the arena.
    pub fn of(category: Category) -> Self {
        match category {
            Category::Input => Self::Data,
            Category::Kept => Self::Kept,
            Category::Recomputed => Self::Recomputed,
            Category::Gradient => Self::Gradients,
            Category::Transient | Category::Statistic | Category::Output => Self::Transient,
            Category::Workspace => Self::Workspace,
        }
    }
}

/// The memory of one batch.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Images a step, on each card.
    pub batch: usize,
    pub plan: Arc<Plan>,
    /// The step's executor. Its arena is shared with the validation.
    pub step: CardBytes,
    pub validation: Option<CardBytes>,
    devices: usize,
}

impl Memory {
    /// The larger of the arenas.
    pub fn arena(&self) -> u64 {
        self.step.arena.max(self.validation.as_ref().map_or(0, |v| v.arena))
    }

    /// What is allocated once the card is open; of what the driver says is free then.
    pub fn beside_the_context(&self) -> u64 {
        let states = self.step.state() + self.validation.as_ref().map_or(0, CardBytes::state);
        let communication = if self.devices > 1 { COMMUNICATION_BYTES } else { 0 };
        self.arena() + states + communication + LIBRARY_BYTES
    }

    /// Everything.
    pub fn total(&self) -> u64 {
        self.beside_the_context() + CONTEXT_BYTES
    }

    /// Bytes of each part when the arena is fullest, in the order of [`Part::ALL`]. Their sum is [`Self::total`].
    pub fn parts(&self) -> [(Part, u64); Part::ALL.len()] {
        let memory = self.plan.memory();
        let bytes = |part: Part| {
            let tensors = memory.at_peak.iter().filter(|(category, _)| Part::of(*category) == part);
            let alive: u64 = tensors.map(|t| t.1).sum();
            let executors = || [Some(&self.step), self.validation.as_ref()].into_iter().flatten();
            let flat = match part {
                Part::Parameters => executors().map(|e| e.state() - e.inputs - e.region(Region::Gradients)).sum(),
                Part::Gradients => executors().map(|e| e.region(Region::Gradients)).sum(),
                Part::Data => executors().map(|e| e.inputs).sum(),
                Part::Gaps => memory.arena - memory.lower_bound,
                Part::Validation => self.arena() - self.step.arena,
                Part::Communication if self.devices > 1 => COMMUNICATION_BYTES,
                Part::Libraries => CONTEXT_BYTES + LIBRARY_BYTES,
                _ => 0,
            };
            alive + flat
        };
        Part::ALL.map(|part| (part, bytes(part)))
    }
}

/// Memory that a card has left for a run once its context is open.
pub fn free_on(card_bytes: u64) -> u64 {
    card_bytes.saturating_sub(CONTEXT_BYTES)
}

/// What a batch of the program's own choice may take of `free` bytes.
pub fn usable(free: u64) -> u64 {
    (free as f64 * (1.0 - LEFT_FREE)) as u64
}

/// Says whose tensor it is that would be too large.
fn of_the_validation(error: PlanError) -> PlanError {
    match error {
        PlanError::Graph(GraphError::TooLarge { tensor, elements }) => {
            let tensor = format!("{tensor} of the validation, whose batches are twice as large,");
            GraphError::TooLarge { tensor, elements }.into()
        }
        other => other,
    }
}

/// Compiles plans of a run, each once.
pub struct Planner {
    request: Request,
    known: Mutex<BTreeMap<(usize, Level), Arc<Memory>>>,
    /// The smallest batch that was too large for a tensor: it is the same at every level.
    too_large: Mutex<Option<(usize, TooLarge)>>,
}

/// No run has a larger batch.
const MOST_IMAGES: usize = 65_536;

impl Planner {
    pub fn new(request: Request) -> Self {
        Self { request, known: Mutex::default(), too_large: Mutex::default() }
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Memory of a batch at a level.
    ///
    /// # Errors
    /// What compiling says: a tensor above 2^31 elements, for instance.
    pub fn at_level(&self, batch: usize, level: Level) -> Result<Arc<Memory>, PlanError> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = known().get(&(batch, level)) {
            return Ok(Arc::clone(memory));
        }
        let memory = Arc::new(self.memory(batch, Recompute::Level(level))?);
        known().insert((batch, level), Arc::clone(&memory));
        Ok(memory)
    }

    /// Memory of a batch.
    ///
    /// # Errors
    /// As [`Self::at_level`]; a budget that no level keeps.
    pub fn memory(&self, batch: usize, recompute: Recompute) -> Result<Memory, PlanError> {
        let Request { model, side, formats, optimizer, most_labels, devices, .. } = &self.request;
        let loss = Some(loss_config(model));
        let training = Some(TrainingSettings { frozen: Vec::new(), recompute });
        let options = formats.training;
        let settings = GraphSettings { precision: options.precision, loss: loss.clone(), decode: None, training };
        let shape = InputShape { images: batch, height: *side, width: *side };
        let boxes = most_boxes(*most_labels, PICTURES, PASTED, batch);
        let Compiled { plan, .. } = compile(model, &CudaBackend::new(options), &settings, shape, boxes)?;
        let spec = StateSpec { layout: plan.params().clone(), optimizer: Some(*optimizer), ema: true };
        let step = footprint(&spec, [plan.as_ref()], &options)?;
        let validation = match self.request.validation {
            true => Some(self.validation(VALIDATION_BATCHES * batch).map_err(of_the_validation)?),
            false => None,
        };
        Ok(Memory { batch, plan, step, validation, devices: *devices })
    }

    /// The executor of a validation over the largest rectangles that a square picture can get.
    fn validation(&self, batch: usize) -> Result<CardBytes, PlanError> {
        let Request { model, side, formats, most_labels, .. } = &self.request;
        let options = formats.inference;
        let (loss, precision) = (Some(loss_config(model)), options.precision);
        let decode = Some(Decoding { nms: validation_nms(false), raw: false });
        let settings = GraphSettings { precision, loss, decode, training: None };
        // Half a stride of padding on either side.
        let side = side + model.size_multiple();
        let shape = InputShape { images: batch, height: side, width: side };
        let Compiled { plan, .. } = compile(model, &CudaBackend::new(options), &settings, shape, most_labels * batch)?;
        let spec = StateSpec { layout: plan.params().clone(), optimizer: None, ema: false };
        Ok(footprint(&spec, [plan.as_ref()], &options)?)
    }

    /// The largest batch at a level on a card with so many bytes free once its context is open.
    ///
    /// # Errors
    /// What compiling says, but for batches that are too large.
    pub fn largest(&self, level: Level, free: u64) -> Result<Option<Largest>, PlanError> {
        largest(usable(free), MOST_IMAGES, &mut |batch| {
            let known = || self.too_large.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((smallest, tensor)) = known().as_ref().filter(|(smallest, _)| batch >= *smallest) {
                let elements = tensor.elements / *smallest as u64 * batch as u64;
                return Ok(Need::TooLarge(TooLarge { elements, ..tensor.clone() }));
            }
            match self.at_level(batch, level) {
                Ok(memory) => Ok(Need::Bytes(memory.beside_the_context())),
                Err(PlanError::Graph(error)) => {
                    let need = Need::of(error)?;
                    if let Need::TooLarge(tensor) = &need {
                        *known() = Some((batch, tensor.clone()));
                    }
                    Ok(need)
                }
                Err(other) => Err(other),
            }
        })
    }
}
