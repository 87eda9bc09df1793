//! From options to a finished run: training, validation and detection.
//!
//! The three commands are library functions:
//! - `run(&TrainOptions, &mut dyn Observer) -> Result<TrainSummary, TrainError>`
//! - `validate(&ValOptions, &mut dyn Observer) -> Result<ValSummary, TrainError>`
//! - `detect(&DetectOptions, &mut dyn Observer) -> Result<DetectSummary, TrainError>`
//!
//! They print nothing: an [`Observer`] gets log lines, warnings and progress. [`TrainError::hint`] says what to do.

mod error;
mod observer;
mod options;
mod summary;

pub use error::TrainError;
pub use observer::{Observer, Progress, Silent, TrainProgress};
pub use options::{Cache, DetectOptions, Optimizer, Precision, Resume, Task, TrainOptions, ValOptions};
pub use summary::{ClassMetrics, DetectSummary, FoundBox, FoundImage, Metrics, TrainEnd, TrainSummary, ValSummary};
