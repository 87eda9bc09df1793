//! From options to a finished run: training, validation and detection.
//!
//! The three commands are library functions:
//! - `run(&TrainOptions, &mut dyn Observer) -> Result<TrainSummary, TrainError>`
//! - `validate(&ValOptions, &mut dyn Observer) -> Result<ValSummary, TrainError>`
//! - `detect(&DetectOptions, &mut dyn Observer) -> Result<DetectSummary, TrainError>`
//!
//! They print nothing: an [`Observer`] gets log lines, warnings and progress. [`TrainError::hint`] says what to do.

mod checkpoint;
mod device;
pub mod early_stopping;
pub mod ema;
mod error;
mod evaluate;
pub mod hyp;
mod image_set;
mod observer;
mod options;
mod pictures;
mod plans;
pub mod schedule;
mod setup;
mod step;
mod summary;
mod table;
mod trainer;
mod work;

pub use error::TrainError;
pub use observer::{Observer, Progress, Silent, TrainProgress};
pub use options::{Cache, DetectOptions, Optimizer, Precision, Resume, Task, TrainOptions, ValOptions};
pub use summary::{ClassMetrics, DetectSummary, FoundBox, FoundImage, Metrics, TrainEnd, TrainSummary, ValSummary};
pub use trainer::run;
