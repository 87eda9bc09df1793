//! For tests only: whole plans against the fixtures of the running reference, one body for every executor.
//!
//! A test names its [`Device`] and calls a body of [`forward`], [`detections`], [`training`] or [`tensors`]; what does
//! not agree panics with the model, the tensor, both values and the bound.

pub mod detections;
mod device;
pub mod forward;
mod models;
mod processor;
mod recorded;
mod step;
pub mod tensors;
pub mod training;

pub use device::Device;
pub use models::{filled, load, pictures};
pub use processor::{Cpu, DOUBLE, SINGLE};
pub use recorded::{SHAPE, recorded_assignment, recorded_step};
pub use step::{CompiledStep, Packed, Step, compile_step};
