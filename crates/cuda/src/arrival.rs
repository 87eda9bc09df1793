//! How long a card waits for what is on its way to it.

use crate::device::Gpu;
use crate::error::Result;
use cudarc::driver::CudaEvent;
use std::time::Duration;

/// Two marks on a card's stream, around its wait for a batch.
pub(crate) struct Arrival {
    reached: CudaEvent,
    arrived: CudaEvent,
    /// Which marks were set and not yet read.
    set: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    None,
    Reached,
    Both,
}

impl Arrival {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { reached: gpu.timing_event()?, arrived: gpu.timing_event()?, set: Set::None })
    }

    /// Sets the first mark: what was launched before is done. To be called when the batch starts on its way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn begin(&mut self, gpu: &Gpu) -> Result<()> {
        self.set = Set::None;
        self.reached.record(gpu.stream())?;
        self.set = Set::Reached;
        Ok(())
    }

    /// Sets the second mark, behind the stream's wait for the batch. Nothing where the first one is missing.
    ///
    /// # Errors
    /// What the driver says.
    pub fn end(&mut self, gpu: &Gpu) -> Result<()> {
        if self.set == Set::Reached {
            self.arrived.record(gpu.stream())?;
            self.set = Set::Both;
        }
        Ok(())
    }

    /// The time between the marks, once; zero where the card has not come to the second one yet. Waits for nothing.
    ///
    /// # Errors
    /// What the driver says.
    pub fn take(&mut self) -> Result<Duration> {
        if std::mem::replace(&mut self.set, Set::None) != Set::Both || !self.arrived.try_is_complete()? {
            return Ok(Duration::ZERO);
        }
        let milliseconds = self.reached.elapsed_ms(&self.arrived)?;
        Ok(Duration::from_secs_f32(milliseconds.max(0.0) / 1e3))
    }
}
