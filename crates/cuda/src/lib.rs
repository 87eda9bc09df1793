//! NVIDIA GPUs: libraries found and loaded at run time, so that one binary serves machines with and without a card.

pub mod conv;
pub mod cublaslt;
pub mod cudnn;
mod device;
mod error;
pub mod kernels;
pub mod libraries;
mod view;

pub use device::{Buffer, Gpu, Properties};
pub use error::{CudaError, Result};
pub use view::{Format, View};
