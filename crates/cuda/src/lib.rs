//! NVIDIA GPUs: libraries found and loaded at run time, so that one binary serves machines with and without a card.

pub mod cublaslt;
pub mod cudnn;
mod error;
pub mod libraries;

pub use error::{CudaError, Result};
