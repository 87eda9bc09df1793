//! Runs a plan on the CPU, generic over f32 and f64; the reference for every other executor.
//!
//! [`CpuExecutor`] owns one arena and the flat buffers of parameters and optimiser state. An op of the
//! graph has its body in [`kernels`]; which body serves which op is one match, in `dispatch.rs`. Ops that
//! other crates declare have theirs in [`external`].

mod arena;
mod backend;
mod commit;
mod dispatch;
pub mod element;
mod executor;
pub mod external;
pub mod kernels;
mod regions;

pub use backend::CpuBackend;
pub use dispatch::Runs;
pub use element::Element;
pub use executor::CpuExecutor;
