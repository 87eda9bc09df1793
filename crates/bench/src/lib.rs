//! What a machine computes, how fast, and with what: [`selftest`], [`step`], [`environment`].
//!
//! Nothing here prints; the program does.

pub mod environment;
mod error;
mod external;
mod graphs;
pub mod selftest;
pub mod step;
mod target;

pub use error::BenchError;
pub use target::{Numbers, Target};
