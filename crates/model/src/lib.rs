//! The zoo: model YAML to graph, blocks, heads, parameter names, weights in and out.
//!
//! [`Model::load`] resolves a description (`yolov9-s`, or a file) to layers; [`Model::build`] records it in
//! a [`graph::GraphBuilder`]. Parameters carry the names of the reference's weight files. [`NamedTensors`]
//! holds values by name: from [`init()`], from a file ([`weights`]), folded ([`fold()`]).

mod blocks;
mod error;
pub mod fold;
pub mod info;
pub mod init;
mod model;
mod number;
pub mod pytorch;
mod state;
pub mod weights;
mod yaml;
pub mod zoo;

pub use blocks::{BN_EPS, BOX_CHANNELS, Mode, REG_MAX};
pub use error::{ModelError, Result};
pub use fold::fold;
pub use init::init;
pub use model::{Branch, Branches, BuildOptions, HeadLevel, Heads, Layer, Model};
pub use state::{NamedTensor, NamedTensors, StateEntry, StateKind, TransferReport};
pub use zoo::Source;
