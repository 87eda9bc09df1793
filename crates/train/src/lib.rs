//! From options to a finished run: training, validation and detection.
//!
//! The three commands are library functions: [`run`] trains, [`validate`] and [`detect()`] use a weight file. They print
//! nothing: an [`Observer`] gets log lines, warnings and progress. [`TrainError::hint`] says what to do.
//!
//! The way of a run: `setup` settles options, model and weights, `image_set` scans, `work` names the samples of each
//! batch, `plans` compiles graphs, `footprint` refuses those that the machine has no memory for, `step` runs and commits
//! them, `evaluate` validates, `checkpoint` says what is kept, `saving` keeps it beside the steps, and `trainer` holds
//! them together.

mod background;
mod cache_choice;
mod card_pictures;
mod checkpoint;
mod detection;
mod device;
pub mod early_stopping;
pub mod ema;
mod error;
mod evaluate;
mod fingerprint;
mod footprint;
pub mod hyp;
mod image_set;
mod leftovers;
mod new_length;
mod observer;
mod options;
mod pictures;
mod plans;
mod saving;
pub mod schedule;
mod setup;
mod source;
mod step;
mod summary;
mod system_memory;
mod table;
mod telemetry;
mod trainer;
mod validate;
mod work;
mod workers;

pub use checkpoint::load_weights;
pub use cuda::telemetry::{Quantity, Reading};
pub use detection::detect;
pub use error::TrainError;
pub use image_set::load_class_names;
pub use observer::{Observer, Progress, Silent, TrainProgress};
pub use options::{
    Cache, DetectOptions, LrScale, Optimizer, Partners, Precision, Resume, Task, TrainOptions, ValOptions,
};
pub use summary::{ClassMetrics, DetectSummary, FoundBox, FoundImage, Metrics, TrainEnd, TrainSummary, ValSummary};
pub use trainer::run;
pub use validate::validate;
pub use workers::Workers;
