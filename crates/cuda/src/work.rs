//! Arithmetic and traffic of an op, by its plan alone: what profiles hold times against, and what times are predicted from.

use graph::{Op, Plan, cost};

/// What an op has to do at least.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct OpWork {
    /// Floating-point operations of convolutions, over logical channels.
    pub flops: f64,
    /// Each operand once, parameters and padding included.
    pub bytes: f64,
}

/// Work of an op of a plan.
pub fn work(plan: &Plan, op: &Op) -> OpWork {
    let cost = cost(op, plan.graph(), plan.precision());
    OpWork { flops: 2.0 * cost.macs as f64, bytes: cost.bytes as f64 + parameter_bytes(plan, op) }
}

/// Weights that are read, and gradients of weights that are read and written.
fn parameter_bytes(plan: &Plan, op: &Op) -> f64 {
    let elements = |id| plan.params().slot(id).len as f64;
    let bytes = plan.precision().activation.bytes() as f64;
    match op {
        Op::Conv2d(c) => bytes * elements(c.w),
        Op::ConvDataGrad(c) => bytes * elements(c.w),
        Op::ConvWeightGrad(c) => 8.0 * elements(c.w),
        Op::RunningStats(r) => r.entries.iter().map(|e| 16.0 * elements(e.running_mean)).sum(),
        _ => 0.0,
    }
}
