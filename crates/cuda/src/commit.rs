//! The commit of one set of flat buffers: tables, scalars and the loss scale on the card.

use crate::answers::Answers;
use crate::captured::capture;
use crate::device::{Buffer, Gpu};
use crate::engine::Engine;
use crate::error::Result;
use crate::kernels::{Commit, CommitBuffers, CommitChunk, CommitScalars, RawLossScale, RawReport};
use crate::pinned::Pinned;
use crate::regions::Regions;
use crate::transfer::Rows;
use crate::view::Format;
use cudarc::driver::{CudaEvent, CudaGraph, result};
use graph::{CommitReport, CommitStep, ExecError, LossScale, OptimizerKind, Region, StateSpec, Ticket};

/// Sets of scalars that may be on their way at once.
const SLOTS: usize = 4;

/// What a commit needs beside the flat buffers.
pub(crate) struct Committer {
    chunks: Buffer,
    count: usize,
    /// What the kernels read, and where the host writes it.
    scalars: Buffer,
    sent: Vec<(Pinned, CudaEvent)>,
    commits: usize,
    report: Buffer,
    reports: Answers<()>,
    scratch: Buffer,
    loss_scale: Option<Buffer>,
    /// The three launches of a rule, once it was used.
    graph: Option<(OptimizerKind, CudaGraph)>,
}

impl Committer {
    /// `format` is the one of gradients of feature maps: fp16 has a loss scale, which is 1 at first.
    ///
    /// # Errors
    /// No memory on the card.
    pub fn new(gpu: &Gpu, spec: &StateSpec, format: Format) -> Result<Self> {
        let table = CommitChunk::table(spec.layout.slots());
        let mut chunks = gpu.allocate(size_of_val(&table[..]))?;
        chunks.write(0, &table)?;
        let sent = |_| Ok((Pinned::new(gpu, size_of::<CommitScalars>())?, gpu.event()?));
        let mut committer = Self {
            chunks,
            count: table.len(),
            scalars: gpu.allocate(size_of::<CommitScalars>())?,
            sent: (0..SLOTS).map(sent).collect::<Result<_>>()?,
            commits: 0,
            report: gpu.allocate(size_of::<RawReport>())?,
            reports: Answers::new(gpu)?,
            scratch: gpu.allocate(Commit::scratch(table.len()))?,
            loss_scale: None,
            graph: None,
        };
        if format == Format::F16 && spec.optimizer.is_some() {
            committer.loss_scale = Some(gpu.allocate(size_of::<RawLossScale>())?);
            committer.set_loss_scale(LossScale { scale: 1.0, good_commits: 0 })?;
        }
        Ok(committer)
    }

    /// Bytes on the card.
    pub fn bytes(&self) -> u64 {
        let buffers = [&self.chunks, &self.scalars, &self.report, &self.scratch];
        buffers.into_iter().chain(&self.loss_scale).map(|b| b.bytes() as u64).sum()
    }

    /// Address of the loss scale's value, where there is one.
    pub fn loss_scale_address(&self) -> Option<u64> {
        self.loss_scale.as_ref().map(Buffer::address)
    }

    /// # Errors
    /// What the driver says.
    pub fn loss_scale(&self) -> Result<Option<LossScale>> {
        let Some(buffer) = &self.loss_scale else { return Ok(None) };
        let raw = buffer.read::<RawLossScale>(0, 1)?[0];
        Ok(Some(LossScale { scale: raw.scale, good_commits: raw.good }))
    }

    /// # Errors
    /// What the driver says.
    pub fn set_loss_scale(&mut self, scale: LossScale) -> Result<()> {
        let Some(buffer) = &mut self.loss_scale else { return Ok(()) };
        buffer.write(0, &[RawLossScale { scale: scale.scale, good: scale.good_commits }])
    }

    /// Starts to clip, update weights, averages and operands, and to clear the gradient; the answer is what it saw.
    ///
    /// # Errors
    /// What the driver says.
    pub fn start(&mut self, engine: &Engine, regions: &Regions, step: &CommitStep) -> Result<Ticket> {
        let averages = regions.address(Region::EmaWeights).is_some();
        let step = CommitStep { ema_decay: step.ema_decay.filter(|_| averages), ..step.clone() };
        self.send(engine.gpu(), CommitScalars::new(&step))?;
        let buffers = self.buffers(regions);
        // SAFETY: the table is of the layout that all regions have, and the executor checked that they are kept.
        let launch = || unsafe { engine.kernels().commit.run(step.kind, &buffers) };
        match &self.graph {
            Some((kind, graph)) if *kind == step.kind => graph.launch()?,
            _ => {
                launch()?;
                self.graph = Some((step.kind, capture(engine.gpu(), launch)?));
            }
        }
        let bytes = self.report.bytes();
        // SAFETY: all of a buffer.
        unsafe { self.reports.start(Rows { at: self.report.address(), rows: 1, width: bytes, pitch: bytes }, ()) }
    }

    /// Waits for what a commit saw.
    ///
    /// # Errors
    /// A ticket whose report is gone, or what the driver says.
    pub fn finish(&mut self, ticket: &Ticket) -> std::result::Result<CommitReport, ExecError> {
        let (bytes, ()) = self.reports.finish(ticket)?;
        Ok(RawReport::of_bytes(bytes).ok_or(ExecError::Ticket)?.into())
    }

    /// Sends the scalars of the next commit.
    fn send(&mut self, gpu: &Gpu, scalars: CommitScalars) -> Result<()> {
        let (host, sent) = &mut self.sent[self.commits % SLOTS];
        self.commits += 1;
        sent.synchronize()?;
        gpu.context().bind_to_thread()?;
        // SAFETY: the copy that read this place is done.
        let place = unsafe { &mut host.get_mut()[..size_of::<CommitScalars>()] };
        place.copy_from_slice(bytemuck::bytes_of(&scalars));
        // SAFETY: as long as the buffer; the event tells when the place may be written again.
        unsafe { result::memcpy_htod_async(self.scalars.address(), place, gpu.stream().cu_stream()) }?;
        Ok(sent.record(gpu.stream())?)
    }

    fn buffers(&self, regions: &Regions) -> CommitBuffers {
        let address = |region| regions.address(region).unwrap_or(0);
        CommitBuffers {
            chunks: self.chunks.address(),
            chunk_count: self.count,
            scalars: self.scalars.address(),
            report: self.report.address(),
            scratch: self.scratch.address(),
            loss_scale: self.loss_scale_address(),
            weights: address(Region::Weights),
            gradients: address(Region::Gradients),
            average: address(Region::EmaWeights),
            state: std::array::from_fn(|i| address(Region::State(i))),
            buffers: address(Region::Buffers),
            average_buffers: address(Region::EmaBuffers),
            half_copy: regions.half().map(|at| (at, regions.format())).filter(|h| h.1 != Format::F32),
        }
    }
}
