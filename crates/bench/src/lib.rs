//! What a machine computes, how fast, and with what: [`selftest`], [`step`], [`mod@loading`], [`environment`].
//!
//! Nothing here prints; the program does.

pub mod environment;
mod error;
mod external;
mod graphs;
mod json;
pub mod loading;
pub mod selftest;
pub mod step;
mod target;

pub use error::BenchError;
pub use target::{Numbers, Target};

use json::write_json;
