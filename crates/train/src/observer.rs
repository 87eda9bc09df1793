//! What a run tells while it goes on.

use cuda::telemetry::Reading;
use std::time::Duration;

/// Receives what a run says. All calls come from the thread that called into this crate.
pub trait Observer: Send {
    /// A line of the log, without a line break.
    fn info(&mut self, line: &str);

    /// A line that the user should not miss.
    fn warn(&mut self, line: &str);

    /// Something got further. The last call of a stage has `done == total`, unless the run stopped.
    fn progress(&mut self, progress: &Progress);

    /// Asked after every step: `true` makes the run write its state and return.
    fn should_stop(&self) -> bool {
        false
    }
}

/// How far a stage is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Images and labels are checked. `split` is `train`, `val` or `test`.
    Scan { split: &'static str, done: usize, total: usize },
    /// Batches of a training epoch.
    Train(TrainProgress),
    /// Batches of a validation.
    Validate { done: usize, total: usize, images_per_second: f64, eta: Duration },
    /// Images of a detection.
    Detect { done: usize, total: usize },
}

/// How far an epoch of training is.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainProgress {
    /// Counted from 0.
    pub epoch: usize,
    pub epochs: usize,
    /// Batches done in this epoch.
    pub done: usize,
    /// Batches in the epoch.
    pub total: usize,
    /// Mean box, class and DFL loss of the epoch so far.
    pub losses: [f64; 3],
    /// Boxes in the last batch.
    pub instances: usize,
    /// Network input in pixels.
    pub image_size: usize,
    /// Bytes of the arena and the flat buffers on the device.
    pub memory: u64,
    pub images_per_second: f64,
    /// Share of the epoch so far in which the device had nothing to do but to wait for batches, 0..=1.
    pub data_wait: f64,
    /// Model FLOPs utilisation of the epoch so far, 0..=1; `None` on the CPU and on cards whose peak is not known.
    pub mfu: Option<f64>,
    /// What the card was doing when it was last looked at; `None` on the CPU and where the card is not watched.
    pub card: Option<Box<Reading>>,
    /// Time to the end of this epoch.
    pub eta: Duration,
}

/// Says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn info(&mut self, _: &str) {}
    fn warn(&mut self, _: &str) {}
    fn progress(&mut self, _: &Progress) {}
}
