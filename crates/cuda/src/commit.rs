//! The commit of one set of flat buffers: tables and scalars on the card, and one wait for the report.

use crate::device::{Buffer, Gpu};
use crate::engine::Engine;
use crate::error::Result;
use crate::kernels::{Commit, CommitBuffers, CommitChunk, CommitScalars, RawReport};
use crate::regions::Regions;
use crate::view::Format;
use graph::{CommitReport, CommitStep, Region, StateSpec};

/// What a commit needs beside the flat buffers.
#[derive(Debug)]
pub(crate) struct Committer {
    chunks: Buffer,
    count: usize,
    scalars: Buffer,
    report: Buffer,
    scratch: Buffer,
}

impl Committer {
    /// # Errors
    /// No memory on the card.
    pub fn new(gpu: &Gpu, spec: &StateSpec) -> Result<Self> {
        let table = CommitChunk::table(spec.layout.slots());
        let mut chunks = gpu.allocate(size_of_val(&table[..]))?;
        chunks.write(0, &table)?;
        Ok(Self {
            chunks,
            count: table.len(),
            scalars: gpu.allocate(size_of::<CommitScalars>())?,
            report: gpu.allocate(size_of::<RawReport>())?,
            scratch: gpu.allocate(Commit::scratch(table.len()))?,
        })
    }

    /// Clips, updates weights, averages and operands, clears the gradient, and waits for what it saw.
    ///
    /// # Errors
    /// What the driver says.
    pub fn commit(&mut self, engine: &Engine, regions: &Regions, step: &CommitStep) -> Result<CommitReport> {
        let averages = regions.address(Region::EmaWeights).is_some();
        let step = CommitStep { ema_decay: step.ema_decay.filter(|_| averages), ..step.clone() };
        self.scalars.write(0, &[CommitScalars::new(&step, 1.0)])?;
        let address = |region| regions.address(region).unwrap_or(0);
        let buffers = CommitBuffers {
            chunks: self.chunks.address(),
            chunk_count: self.count,
            scalars: self.scalars.address(),
            report: self.report.address(),
            scratch: self.scratch.address(),
            weights: address(Region::Weights),
            gradients: address(Region::Gradients),
            average: address(Region::EmaWeights),
            state: std::array::from_fn(|i| address(Region::State(i))),
            buffers: address(Region::Buffers),
            average_buffers: address(Region::EmaBuffers),
            half_copy: regions.half().map(|at| (at, regions.format())).filter(|h| h.1 != Format::F32),
        };
        engine.gpu().context().bind_to_thread()?;
        // SAFETY: the table is of the layout that all regions have, and the executor checked that they are kept.
        unsafe { engine.kernels().commit.run(step.kind, &buffers) }?;
        let report: Vec<RawReport> = self.report.read(0, 1)?;
        Ok(report[0].into())
    }
}
