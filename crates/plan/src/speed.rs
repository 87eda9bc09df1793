//! How long a step takes: op by op what a card's arithmetic and memory allow, divided by what kernels reach of it, and the
//! cost of a launch.
//!
//! What is reached is measured on one card ([`Calibration`]) and taken to be the same share on others. Loading of images is
//! not in it.

use crate::calibration::Calibration;
use crate::cards::Card;
use cuda::{OpWork, work};
use graph::{OptimizerKind, Plan};

/// What an op belongs to, in tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Forward,
    DataGradient,
    WeightGradient,
    NormForward,
    NormBackward,
    Pool,
    Resize,
    Loss,
    Other,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Self::Forward,
        Self::DataGradient,
        Self::WeightGradient,
        Self::NormForward,
        Self::NormBackward,
        Self::Pool,
        Self::Resize,
        Self::Loss,
        Self::Other,
    ];

    /// The kind of an op by its name in `graph`, such as `Conv2d`.
    pub fn of(op: &str) -> Self {
        match op {
            "Conv2d" => Self::Forward,
            "ConvDataGrad" => Self::DataGradient,
            "ConvWeightGrad" => Self::WeightGradient,
            "BnStats" | "BnApply" | "RunningStats" => Self::NormForward,
            "BnReduce" | "BnBackward" => Self::NormBackward,
            "MaxPool" | "MaxPoolGrad" | "AvgPool" | "AvgPoolGrad" => Self::Pool,
            "Resize" | "ResizeGrad" => Self::Resize,
            "External" => Self::Loss,
            _ => Self::Other,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "convolution, forward",
            Self::DataGradient => "convolution, data gradient",
            Self::WeightGradient => "convolution, weight gradient",
            Self::NormForward => "batch norm, forward",
            Self::NormBackward => "batch norm, backward",
            Self::Pool => "pools",
            Self::Resize => "resizing",
            Self::Loss => "loss",
            Self::Other => "sums, copies, fills",
        }
    }
}

/// How convolutions multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    Half,
    Tf32,
    Single,
}

/// What holds an op up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Limit {
    Arithmetic,
    Traffic,
}

/// What a card reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Floating-point operations a second.
    flops: f64,
    /// Bytes a second, from memory.
    bytes: f64,
    /// Bytes of the second-level cache.
    l2: f64,
}

impl Rates {
    /// Of a card's data sheet, as far as dense products and copies come close to it.
    pub fn of(card: &Card, products: Products, calibration: &Calibration) -> Self {
        let rate = match products {
            Products::Half => card.half,
            Products::Tf32 => card.tf32,
            Products::Single => card.single,
        };
        Self {
            flops: 1e12 * rate * calibration.reach_flops,
            bytes: 1e9 * card.bandwidth * calibration.reach_bytes,
            l2: 1e6 * card.l2,
        }
    }

    /// Milliseconds that an op needs at least, and why. What fits into the cache was often written there by the op before:
    /// traffic is up to twice as fast then.
    pub fn bound(&self, op: OpWork) -> (f64, Limit) {
        let cached = (1.0 - op.bytes / self.l2).clamp(0.0, 1.0);
        let (arithmetic, traffic) = (1e3 * op.flops / self.flops, self.traffic_ms(op.bytes) / (1.0 + cached));
        if arithmetic > traffic { (arithmetic, Limit::Arithmetic) } else { (traffic, Limit::Traffic) }
    }

    /// Milliseconds of so many bytes from and to memory.
    pub fn traffic_ms(&self, bytes: f64) -> f64 {
        1e3 * bytes / self.bytes
    }
}

/// Bytes that a commit reads and writes for so many weights: the gradient three times (its norm, the update, and where it
/// is cleared), weights, state and averages once each way, and the half-precision copy of the weights.
pub fn commit_bytes(weights: usize, optimizer: OptimizerKind, averages: bool, half_copy: bool) -> f64 {
    let both_ways = 1 + optimizer.states() + usize::from(averages);
    (weights * (4 * (3 + 2 * both_ways) + if half_copy { 2 } else { 0 })) as f64
}

/// A predicted step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// By kind, in the order of [`Kind::ALL`].
    pub kinds: [f64; Kind::ALL.len()],
    pub commit_ms: f64,
    /// All of it.
    pub ms: f64,
}

/// Predicts a step of a plan and its commit.
pub fn predict(plan: &Plan, commit_bytes: f64, rates: &Rates, calibration: &Calibration) -> StepTime {
    let mut kinds = [0.0; Kind::ALL.len()];
    for node in plan.graph().nodes() {
        let kind = Kind::of(node.op.name());
        let (bound, limit) = rates.bound(work(plan, &node.op));
        kinds[kind as usize] += bound / calibration.share(kind, limit) + 1e-3 * calibration.launch_us;
    }
    let commit_ms = rates.traffic_ms(commit_bytes);
    StepTime { kinds, commit_ms, ms: kinds.iter().sum::<f64>() + commit_ms }
}
