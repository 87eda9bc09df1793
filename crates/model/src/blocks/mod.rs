//! Blocks: one file each, one row each in [`REGISTRY`].
//!
//! A block is first read from a row ([`Block`]: plain numbers), then built into a graph: it declares its
//! parameters in the reference's order and wires its ops. One source serves both [`Mode`]s.

mod aconv;
mod adown;
mod cbfuse;
mod cblinear;
mod concat;
mod context;
mod conv;
mod detect;
mod elan1;
mod repconv;
mod repncsp;
mod repncspelan4;
mod silence;
mod sppelan;
mod upsample;

pub(crate) use context::{BlockContext, Feature, RowContext};
pub use detect::{BOX_CHANNELS, REG_MAX};
pub(crate) use detect::{DetectHead, Hidden, Tower};

use crate::error::Result;
use graph::TensorId;
use std::fmt::Debug;

/// Batch norm's addition to the variance, everywhere.
pub const BN_EPS: f64 = 1e-3;

/// What a model is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Mode {
    /// Convolution, batch norm, activation; RepConvN has its two branches.
    #[default]
    Training,
    /// Batch norm folded into biased convolutions; RepConvN is one 3x3 convolution.
    Folded,
}

/// A row's block with its numbers resolved.
pub(crate) trait Block: Debug + Send + Sync {
    /// Resolved arguments, input channels first.
    fn arguments(&self) -> String;

    /// Declares parameters below `name` (such as `model.4`) and records ops; returns the output.
    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId>;
}

/// What reading a row gives.
pub(crate) enum Read {
    /// A block and its output.
    Block(Box<dyn Block>, Feature),
    /// The detection head, the last row.
    Head(DetectHead),
}

/// One row of the registry.
pub(crate) struct Entry {
    pub name: &'static str,
    pub read: fn(&RowContext<'_>) -> Result<Read>,
}

/// Every block that a model description may name.
pub(crate) const REGISTRY: &[Entry] = &[
    Entry { name: "Conv", read: conv::read },
    Entry { name: "AConv", read: aconv::read },
    Entry { name: "ADown", read: adown::read },
    Entry { name: "ELAN1", read: elan1::read },
    Entry { name: "RepConvN", read: repconv::read },
    Entry { name: "RepNBottleneck", read: repncsp::read_bottleneck },
    Entry { name: "RepNCSP", read: repncsp::read },
    Entry { name: "RepNCSPELAN4", read: repncspelan4::read },
    Entry { name: "SPPELAN", read: sppelan::read },
    Entry { name: "CBLinear", read: cblinear::read },
    Entry { name: "CBFuse", read: cbfuse::read },
    Entry { name: "Silence", read: silence::read },
    Entry { name: "Upsample", read: upsample::read },
    Entry { name: "Concat", read: concat::read },
    Entry { name: "DDetect", read: detect::read_single },
    Entry { name: "DualDDetect", read: detect::read_dual },
];
