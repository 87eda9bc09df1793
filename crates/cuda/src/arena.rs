//! One block of the card's memory for everything a plan computes.

use crate::device::{Buffer, Gpu};
use crate::error::Result;

/// Memory that only ever grows.
#[derive(Debug)]
pub(crate) struct Arena {
    gpu: Gpu,
    buffer: Option<Buffer>,
    moves: u64,
}

impl Arena {
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, buffer: None, moves: 0 }
    }

    /// Makes room for at least `bytes`, in another block than before. What was in it is lost then.
    ///
    /// # Errors
    /// No memory on the card; the arena is empty then.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        // The old block is freed first, so that both need not fit; launches may still use it.
        self.gpu.synchronize()?;
        self.buffer = None;
        self.buffer = Some(self.gpu.allocate(usize::try_from(bytes).unwrap_or(usize::MAX))?);
        self.moves += 1;
        Ok(())
    }

    /// How often the block was another one: addresses in it hold as long as this does.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |b| b.bytes() as u64)
    }

    /// Address of the first byte; 0 where nothing was allocated.
    pub fn base(&self) -> u64 {
        self.buffer.as_ref().map_or(0, Buffer::address)
    }
}
