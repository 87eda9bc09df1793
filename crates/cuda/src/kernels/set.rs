//! The kernels of a plan's ops, loaded together.

use super::{
    Activate, Add, AveragePool, Bias, BnApply, BnBackward, BnReduce, BnStats, Commit, Copy, Decode, Fill, MaxPool, Nms,
    Normalize, Resize, RunningStats,
};
use crate::device::Gpu;
use crate::error::Result;

/// Every kernel that is not a convolution's.
#[derive(Debug)]
pub struct Kernels {
    pub activate: Activate,
    pub add: Add,
    pub average_pool: AveragePool,
    pub bias: Bias,
    pub bn_apply: BnApply,
    pub bn_backward: BnBackward,
    pub bn_reduce: BnReduce,
    pub bn_stats: BnStats,
    pub commit: Commit,
    pub copy: Copy,
    pub decode: Decode,
    pub fill: Fill,
    pub max_pool: MaxPool,
    pub nms: Nms,
    pub normalize: Normalize,
    pub resize: Resize,
    pub running_stats: RunningStats,
}

impl Kernels {
    /// Compiles what the cache lacks, and loads all.
    ///
    /// # Errors
    /// As [`super::Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self {
            activate: Activate::load(gpu)?,
            add: Add::load(gpu)?,
            average_pool: AveragePool::load(gpu)?,
            bias: Bias::load(gpu)?,
            bn_apply: BnApply::load(gpu)?,
            bn_backward: BnBackward::load(gpu)?,
            bn_reduce: BnReduce::load(gpu)?,
            bn_stats: BnStats::load(gpu)?,
            commit: Commit::load(gpu)?,
            copy: Copy::load(gpu)?,
            decode: Decode::load(gpu)?,
            fill: Fill::load(gpu)?,
            max_pool: MaxPool::load(gpu)?,
            nms: Nms::load(gpu)?,
            normalize: Normalize::load(gpu)?,
            resize: Resize::load(gpu)?,
            running_stats: RunningStats::load(gpu)?,
        })
    }
}
