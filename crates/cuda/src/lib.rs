//! NVIDIA GPUs: libraries found and loaded at run time, so that one binary serves machines with and without a card.
//!
//! [`CudaExecutor`] runs plans: it owns one arena and the flat buffers of parameters and optimiser state on a card. An op
//! of the graph has its body in [`kernels`] or, for convolutions, in [`conv`]; which body serves which op is one match,
//! in `dispatch.rs`. Ops that other crates declare have theirs in [`external`].

mod answers;
mod arena;
mod arrival;
mod backend;
mod captured;
mod commit;
pub mod conv;
pub mod cublaslt;
pub mod cudnn;
mod device;
mod dispatch;
mod engine;
mod error;
mod executor;
pub mod external;
mod footprint;
mod image_pool;
mod inputs;
pub mod kernels;
pub mod libraries;
mod peak;
mod pinned;
mod profile;
mod regions;
pub mod schedule;
pub mod telemetry;
mod transfer;
mod upload_rate;
mod view;
mod work;

pub use backend::CudaBackend;
pub use device::{Buffer, Gpu, Properties};
pub use engine::Engine;
pub use error::{CudaError, Result};
pub use executor::{CudaExecutor, CudaOptions};
pub use footprint::{CONTEXT_BYTES, CardBytes, LIBRARY_BYTES, footprint};
pub use image_pool::{Claims, ImagePool, NewPicture, RenderBatch, Resident};
pub use peak::dense_peak;
pub use profile::{OpTime, Peaks};
pub use upload_rate::upload_seconds;
pub use view::{Format, View};
pub use work::{OpWork, work};
