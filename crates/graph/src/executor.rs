//! What runs plans.

use crate::graph::{Graph, TensorId};
use crate::ops::{Conv2d, Op};
use crate::optimizer::{CommitReport, CommitStep, OptimizerKind};
use crate::params::ParamLayout;
use crate::plan::Plan;
use crate::{DType, Precision, Shape};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// What compiling must know about a device.
pub trait Backend {
    /// Channels that so many take in memory, padding included: a multiple of [`crate::CHANNEL_ALIGN`]. More than the
    /// least one where the device's convolutions are faster for it.
    fn padded(&self, channels: usize) -> usize {
        crate::channels::aligned(channels)
    }

    /// True where a convolution without groups runs on its input `x` as raw bytes, 3 packed channels that each count as
    /// value / 255 rounded to the activation type: forward, and its weight gradient. Asked before channels are laid
    /// out. The weights have [`crate::CHANNEL_ALIGN`] input channels in memory, as over a normalised picture.
    fn reads_bytes(&self, _conv: &Conv2d, _graph: &Graph, _precision: Precision) -> bool {
        false
    }

    /// True where ops that do not wait for each other may run side by side. Buffers are then placed so that few ops wait
    /// for nothing but a place; the arena has the same size.
    fn runs_side_by_side(&self) -> bool {
        false
    }

    /// Scratch bytes of one op, by shapes alone.
    fn workspace(&self, op: &Op, graph: &Graph, precision: Precision) -> u64;
}

/// A prepared plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(pub usize);

/// A flat buffer that outlives steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Region {
    Weights,
    Gradients,
    /// Optimiser state, numbered.
    State(usize),
    /// Moving average of the weights.
    EmaWeights,
    /// Running statistics.
    Buffers,
    /// Moving average of the running statistics.
    EmaBuffers,
}

/// Which flat buffers a device keeps.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    pub layout: ParamLayout,
    /// Gradients and optimiser state; `None` for inference.
    pub optimizer: Option<OptimizerKind>,
    pub ema: bool,
}

impl StateSpec {
    /// Regions with their lengths in elements.
    pub fn regions(&self) -> Vec<(Region, usize)> {
        let (weights, buffers) = (self.layout.weight_elements(), self.layout.buffer_elements());
        let mut regions = vec![(Region::Weights, weights), (Region::Buffers, buffers)];
        if let Some(kind) = self.optimizer {
            regions.push((Region::Gradients, weights));
            regions.extend((0..kind.states()).map(|i| (Region::State(i), weights)));
        }
        if self.ema {
            regions.extend([(Region::EmaWeights, weights), (Region::EmaBuffers, buffers)]);
        }
        regions
    }
}

/// Why an executor refused.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("the plan is compiled for {plan:?}, the executor runs {executor:?}")]
    Precision { plan: Precision, executor: Precision },
    #[error("the plan's parameters are laid out differently from those on the device")]
    Layout,
    #[error("no body is registered for the external op {0}")]
    UnknownOp(&'static str),
    #[error("{tensor} holds {dtype:?} {shape}: {len} elements do not fit")]
    Upload { tensor: String, dtype: DType, shape: Shape, len: usize },
    #[error("no memory for an arena of {bytes} bytes")]
    Memory { bytes: u64 },
    #[error("the device keeps no {0:?}")]
    NoRegion(Region),
    #[error("{region:?} has {expected} elements, {got} were given")]
    RegionLength { region: Region, expected: usize, got: usize },
    #[error("an answer was asked for twice, or after too many others")]
    Ticket,
    /// What the device itself says.
    #[error("{0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An answer that is on its way. Answers are kept for the last [`Ticket::KEPT`] tickets.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the answer is lost with its ticket"]
pub struct Ticket(pub u64);

impl Ticket {
    /// Answers that may be on their way at once.
    pub const KEPT: u64 = 8;
}

/// Answers of a device that has them at once.
#[derive(Debug)]
pub struct Answers<T> {
    next: u64,
    kept: VecDeque<(u64, T)>,
}

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self { next: 0, kept: VecDeque::with_capacity(Ticket::KEPT as usize) }
    }
}

impl<T> Answers<T> {
    /// Keeps an answer; the oldest makes room.
    pub fn keep(&mut self, answer: T) -> Ticket {
        if self.kept.len() as u64 == Ticket::KEPT {
            self.kept.pop_front();
        }
        let ticket = self.next;
        self.next += 1;
        self.kept.push_back((ticket, answer));
        Ticket(ticket)
    }

    /// Hands an answer out, once.
    ///
    /// # Errors
    /// [`ExecError::Ticket`] where it is gone.
    pub fn take(&mut self, ticket: &Ticket) -> Result<T, ExecError> {
        let at = self.kept.iter().position(|(kept, _)| *kept == ticket.0).ok_or(ExecError::Ticket)?;
        self.kept.remove(at).map(|(_, answer)| answer).ok_or(ExecError::Ticket)
    }
}

/// What gradients are multiplied by while they are in half precision, and commits since it was changed last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// A power of two, at least 1.
    pub scale: f32,
    pub good_commits: u32,
}

impl LossScale {
    /// Where a run begins.
    pub const INITIAL: Self = Self { scale: 65536.0, good_commits: 0 };
    /// Commits in a row that were applied, after which the scale doubles.
    pub const GROWS_AFTER: u32 = 2000;
    /// No larger scale is used.
    pub const MOST: f32 = 16_777_216.0;
}

/// A device that runs plans over one set of parameters and one arena.
///
/// Several plans (the main batch, tails, validation shapes) share both. After [`Executor::prepare`],
/// running allocates nothing. Values cross this interface in float32 and in logical, dense NHWC order.
pub trait Executor {
    fn backend(&self) -> &dyn Backend;

    /// Prepares a plan; the arena grows to the largest prepared one, which invalidates tensors.
    fn prepare(&mut self, plan: Arc<Plan>) -> Result<PlanId, ExecError>;

    /// Bytes of the arena as allocated.
    fn arena_bytes(&self) -> u64;

    /// Writes a raw input; what shorter data leaves out is undefined. Inputs share the arena: they are written
    /// before every run.
    fn upload_u8(&mut self, plan: PlanId, tensor: TensorId, values: &[u8]) -> Result<(), ExecError>;
    fn upload_u32(&mut self, plan: PlanId, tensor: TensorId, values: &[u32]) -> Result<(), ExecError>;
    fn upload_f32(&mut self, plan: PlanId, tensor: TensorId, values: &[f32]) -> Result<(), ExecError>;

    /// Runs all ops of a plan. A device of its own may be behind when this returns; what is asked of it afterwards sees
    /// the results.
    fn run(&mut self, plan: PlanId) -> Result<(), ExecError>;

    /// Whether the device still computes what runs and commits gave it. Waits for nothing.
    fn busy(&self) -> Result<bool, ExecError> {
        Ok(false)
    }

    /// Time so far in which the device had nothing to do because inputs were still on their way to it, over the batches
    /// that have arrived.
    fn upload_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// Reads an output; waits for it.
    fn download(&self, plan: PlanId, tensor: TensorId) -> Result<Vec<f32>, ExecError>;

    /// Starts to read a small output of the last run. Later runs do not change what is read.
    fn start_read(&mut self, plan: PlanId, tensor: TensorId) -> Result<Ticket, ExecError>;

    /// Waits for what [`Executor::start_read`] asked for.
    fn finish_read(&mut self, ticket: Ticket) -> Result<Vec<f32>, ExecError>;

    /// Starts to clip, to update weights and averages, and to clear the gradient.
    fn start_commit(&mut self, step: &CommitStep) -> Result<Ticket, ExecError>;

    /// Waits for what a commit saw.
    fn finish_commit(&mut self, ticket: Ticket) -> Result<CommitReport, ExecError>;

    /// [`Executor::start_commit`] and [`Executor::finish_commit`].
    fn commit(&mut self, step: &CommitStep) -> Result<CommitReport, ExecError> {
        let ticket = self.start_commit(step)?;
        self.finish_commit(ticket)
    }

    /// The scale of the loss, where gradients are in fp16. Gradients that wait are multiplied by it.
    fn loss_scale(&self) -> Result<Option<LossScale>, ExecError> {
        Ok(None)
    }

    /// Sets the scale of the loss; nothing where gradients need none. A new executor has 1.
    fn set_loss_scale(&mut self, _scale: LossScale) -> Result<(), ExecError> {
        Ok(())
    }

    /// Reads or writes a flat buffer in the layout's physical order.
    fn read_region(&self, region: Region) -> Result<Vec<f32>, ExecError>;
    fn write_region(&mut self, region: Region, values: &[f32]) -> Result<(), ExecError>;
}
