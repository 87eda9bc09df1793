//! The step compiler: what is computed, in which order, and where every byte lies.
//!
//! A [`GraphBuilder`] records a model's forward pass and its loss in terms of [`ops`]. [`compile`]
//! turns that into a [`Plan`]: fused, laid out in channel ranges, with its backward pass, with the
//! chosen amount of recomputation, and with an offset in one arena for every buffer. An [`Executor`]
//! runs plans. This crate knows no device and no YOLO.
//!
//! Tensors are NHWC throughout.

mod builder;
mod channels;
mod compile;
mod cost;
mod dtype;
mod error;
mod executor;
mod graph;
mod memory;
pub mod ops;
mod optimizer;
mod params;
mod passes;
mod plan;
mod shape;

pub use builder::GraphBuilder;
pub use channels::{CHANNEL_ALIGN, ChannelMap, Segment};
pub use compile::{CompileOptions, Level, Recompute, compile};
pub use cost::{OpCost, cost, model_flops};
pub use dtype::{DType, Kind, Precision};
pub use error::GraphError;
pub use executor::{Answers, Backend, ExecError, Executor, LossScale, PlanId, Region, StateSpec, Ticket};
pub use graph::{Category, Graph, Keep, Node, Tensor, TensorId, TensorRange};
pub use memory::{MemoryReport, Slot};
pub use ops::{Access, Activation, ExternalSpec, Op, ScratchSpec};
pub use optimizer::{CommitReport, CommitStep, GroupScalars, OptimizerKind};
pub use params::{BnParams, Param, ParamGroup, ParamId, ParamLayout, ParamShape, ParamSlot};
pub use plan::{Placement, Plan};
pub use shape::Shape;
