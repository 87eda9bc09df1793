//! Running statistics of all batch norms in one launch.

use super::compiler::Source;
use super::{Function, Module};
use crate::device::Gpu;
use crate::error::Result;

pub(super) const SOURCE: Source = Source { name: "running_stats.cu", text: include_str!("running_stats.cu") };

/// One batch norm, a row of the table in device memory. The addresses are of float32 vectors.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningEntry {
    pub mean: u64,
    /// Biased variance of the batch.
    pub var: u64,
    pub running_mean: u64,
    pub running_var: u64,
    /// Physical channels.
    pub channels: u32,
    /// What makes the variance unbiased, see [`Self::unbiased`].
    pub unbiased: f32,
}

// SAFETY: integers and floats without padding: four of 8 bytes, two of 4.
unsafe impl bytemuck::Zeroable for RunningEntry {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for RunningEntry {}

impl RunningEntry {
    /// `count / (count - 1)` for the values that a channel's statistics were taken over; 1 for one value.
    pub fn unbiased(count: usize) -> f32 {
        if count < 2 { 1.0 } else { (count as f64 / (count - 1) as f64) as f32 }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    entries: u64,
    guard: u64,
    keep: f32,
    take: f32,
}

/// The update of running statistics.
#[derive(Debug)]
pub struct RunningStats(Function);

impl RunningStats {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Module::load(gpu, SOURCE)?.function("running_stats")?))
    }

    /// `running = (1 - momentum) * running + momentum * batch` over `count` entries at `entries`; nothing where the
    /// float32 at `guard` is not finite.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// `entries` holds `count` of [`RunningEntry`], whose addresses are device memory; `guard` is one float32 there.
    pub unsafe fn run(&self, entries: u64, count: usize, momentum: f64, guard: Option<u64>) -> Result<()> {
        let args = Args { entries, guard: guard.unwrap_or(0), keep: (1.0 - momentum) as f32, take: momentum as f32 };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.launch([count as u32, 1, 1], [256, 1, 1], 0, &args) }
    }
}
