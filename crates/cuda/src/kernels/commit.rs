//! The commit: gradient norm, clipping, optimiser, averages, the half-precision copy, over flat buffers.

use super::compiler::Source;
use super::tiling::expect;
use super::{Function, Module, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::Format;
use graph::{CommitReport, CommitStep, LossScale, OptimizerKind, ParamGroup, ParamSlot};

pub(super) const SOURCE: Source = channels_source!("commit.cu");

/// Elements that one block works on, a multiple of 4.
const CHUNK: usize = 8192;
/// Kinds of chunks beside the groups 0, 1 and 2.
const FROZEN: u32 = 3;
const BUFFER: u32 = 4;

/// A part of one parameter, a row of the table in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitChunk {
    /// First element in the flat buffer.
    pub offset: u64,
    pub len: u32,
    kind: u32,
}

/// Scalars of one parameter group.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct GroupRow {
    lr: f32,
    momentum: f32,
    one_minus_momentum: f32,
    decay: f32,
    shrink: f32,
    size: f32,
}

/// Scalars of one commit, as the kernels read them from device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CommitScalars {
    groups: [GroupRow; 3],
    beta2: f32,
    one_minus_beta2: f32,
    correction: f32,
    eps: f32,
    keep: f32,
    take: f32,
    average: u32,
    unused: u32,
    clip: f64,
}

/// The loss scale as the kernels keep it in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawLossScale {
    pub scale: f32,
    pub good: u32,
}

/// What a commit leaves in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawReport {
    grad_norm: f64,
    scale: f32,
    applied: u32,
    loss_scale: f32,
    unused: u32,
}

// SAFETY: integers and floats without padding: 8 + 4 + 4 bytes.
unsafe impl bytemuck::Zeroable for CommitChunk {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for CommitChunk {}
// SAFETY: integers and floats without padding: 26 of 4 bytes, then one of 8 at a multiple of 8.
unsafe impl bytemuck::Zeroable for CommitScalars {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for CommitScalars {}
// SAFETY: integers and floats without padding: 4 + 4 bytes.
unsafe impl bytemuck::Zeroable for RawLossScale {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for RawLossScale {}
// SAFETY: integers and floats without padding: 8 + 4 * 4 bytes.
unsafe impl bytemuck::Zeroable for RawReport {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for RawReport {}

impl CommitChunk {
    /// The table of a layout's slots, in their order.
    pub fn table<'a>(slots: impl IntoIterator<Item = &'a ParamSlot>) -> Vec<Self> {
        let part = |s: &ParamSlot| (s.offset, s.len, s.param.group, s.param.trained);
        Self::of(slots.into_iter().map(part))
    }

    /// The table of parameters given as offset, length, group, and whether they are trained.
    pub fn of(slots: impl IntoIterator<Item = (usize, usize, ParamGroup, bool)>) -> Vec<Self> {
        let mut table = Vec::new();
        for (offset, len, group, trained) in slots {
            let kind = match group.index() {
                None => BUFFER,
                Some(group) if trained => group as u32,
                Some(_) => FROZEN,
            };
            table.extend((0..len).step_by(CHUNK).map(|start| Self {
                offset: (offset + start) as u64,
                len: (len - start).min(CHUNK) as u32,
                kind,
            }));
        }
        table
    }
}

impl CommitScalars {
    /// Scalars of a step.
    pub fn new(step: &CommitStep) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
        let groups = step.groups.map(|g| GroupRow {
            lr: g.lr as f32,
            momentum: g.momentum as f32,
            one_minus_momentum: (1.0 - g.momentum) as f32,
            decay: g.weight_decay as f32,
            shrink: (1.0 - g.lr * g.weight_decay) as f32,
            size: (g.lr / correction(g.momentum)) as f32,
        });
        let decay = step.ema_decay.unwrap_or(0.0);
        Self {
            groups,
            beta2: step.beta2 as f32,
            one_minus_beta2: (1.0 - step.beta2) as f32,
            correction: correction(step.beta2).sqrt() as f32,
            eps: step.eps as f32,
            keep: decay as f32,
            take: (1.0 - decay) as f32,
            average: step.ema_decay.is_some().into(),
            unused: 0,
            clip: step.clip,
        }
    }
}

impl RawReport {
    /// `None` where there are other than its bytes.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        bytemuck::try_pod_read_unaligned(bytes).ok()
    }
}

impl From<RawReport> for CommitReport {
    fn from(r: RawReport) -> Self {
        Self { grad_norm: r.grad_norm, applied: r.applied != 0, loss_scale: r.loss_scale }
    }
}

/// Addresses of what a commit works on. Flat buffers are float32 in one layout; chunk offsets are multiples of 4.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommitBuffers {
    /// `chunk_count` of [`CommitChunk`].
    pub chunks: u64,
    pub chunk_count: usize,
    /// One [`CommitScalars`].
    pub scalars: u64,
    /// One [`RawReport`], written.
    pub report: u64,
    /// [`Commit::scratch`] bytes.
    pub scratch: u64,
    /// One [`RawLossScale`], read and written: gradients are divided by it first.
    pub loss_scale: Option<u64>,
    pub weights: u64,
    pub gradients: u64,
    /// Average of the weights; not touched where the scalars keep none.
    pub average: u64,
    /// As many as the rule keeps.
    pub state: [u64; 3],
    /// Running statistics, and their average.
    pub buffers: u64,
    pub average_buffers: u64,
    /// Copy of the trained weights in a half type.
    pub half_copy: Option<(u64, Format)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    chunks: u64,
    scalars: u64,
    report: u64,
    partials: u64,
    loss_scale: u64,
    weights: u64,
    gradients: u64,
    average: u64,
    state: [u64; 3],
    buffers: u64,
    average_buffers: u64,
    half_copy: u64,
    half_is_bf16: u32,
    count: u32,
    most_scale: f32,
    grows_after: u32,
}

/// The commit.
#[derive(Debug)]
pub struct Commit {
    norm: Function,
    finish_norm: Function,
    /// SGD, Adam, AdamW, Lion.
    rules: [Function; 4],
}

impl Commit {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let f = |name: &str| module.function(name);
        Ok(Self {
            norm: f("commit_norm")?,
            finish_norm: f("commit_finish_norm")?,
            rules: [f("commit_sgd")?, f("commit_adam")?, f("commit_adamw")?, f("commit_lion")?],
        })
    }

    /// Bytes of scratch for so many chunks.
    pub fn scratch(chunks: usize) -> usize {
        8 * chunks
    }

    /// Applies one step, clears the gradient and writes the report. A gradient whose norm is not finite changes
    /// nothing.
    ///
    /// # Errors
    /// A copy that is not in a half type, or what the driver says.
    ///
    /// # Safety
    /// All addresses are device memory of the extents that the chunks name; they are aligned to 16 bytes.
    pub unsafe fn run(&self, kind: OptimizerKind, b: &CommitBuffers) -> Result<()> {
        let half = b.half_copy.is_none_or(|(_, format)| format != Format::F32);
        expect("commit", half, || "a copy in float32".into())?;
        let args = Args {
            chunks: b.chunks,
            scalars: b.scalars,
            report: b.report,
            partials: b.scratch,
            loss_scale: b.loss_scale.unwrap_or(0),
            weights: b.weights,
            gradients: b.gradients,
            average: b.average,
            state: b.state,
            buffers: b.buffers,
            average_buffers: b.average_buffers,
            half_copy: b.half_copy.map_or(0, |h| h.0),
            half_is_bf16: b.half_copy.is_some_and(|h| h.1 == Format::Bf16).into(),
            count: b.chunk_count as u32,
            most_scale: LossScale::MOST,
            grows_after: LossScale::GROWS_AFTER,
        };
        let rule = match kind {
            OptimizerKind::Sgd => &self.rules[0],
            OptimizerKind::Adam => &self.rules[1],
            OptimizerKind::AdamW => &self.rules[2],
            OptimizerKind::Lion => &self.rules[3],
        };
        let grid = [args.count, 1, 1];
        // SAFETY: the caller's promise; the struct is the kernels'.
        unsafe {
            self.norm.launch(grid, [256, 1, 1], 0, &args)?;
            self.finish_norm.launch([1, 1, 1], [256, 1, 1], 0, &args)?;
            rule.launch(grid, [256, 1, 1], 0, &args)
        }
    }
}
