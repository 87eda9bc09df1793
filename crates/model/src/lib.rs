//! The zoo: model YAML to graph, blocks, heads, parameter names, weights in and out.
//!
//! [`Model::load`] resolves a description (`yolov9-s`, or a file) to layers; [`Model::build`] records it in
//! a [`graph::GraphBuilder`]. Parameters carry the names of the reference's weight files. [`NamedTensors`]
//! holds values by name: from [`init()`], from a file ([`weights`]), folded ([`fold()`]). [`fit()`] finds the model of a
//! file's tensors, [`transfer()`] starts a model from those of another, [`SingleBranch`] is what is left without the
//! auxiliary branch.

mod blocks;
mod convert;
mod error;
mod fit;
pub mod fold;
pub mod info;
pub mod init;
mod model;
mod number;
pub mod pytorch;
mod single_branch;
mod state;
pub mod weights;
mod yaml;
mod yaml_text;
pub mod zoo;

pub use blocks::{BN_EPS, BOX_CHANNELS, Mode, REG_MAX};
pub use convert::{ConvertOptions, Converted, convert};
pub use error::{ModelError, Result};
pub use fit::{Fitted, Transfer, fit, transfer};
pub use fold::fold;
pub use init::init;
pub use model::{Branch, Branches, BuildOptions, HeadLevel, Heads, Layer, Model};
pub use single_branch::SingleBranch;
pub use state::{NamedTensor, NamedTensors, StateEntry, StateKind, TransferReport};
pub use zoo::Source;
