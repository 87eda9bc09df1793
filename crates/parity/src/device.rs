//! What a test must know about the executor that it holds against the fixtures.

use graph::{Backend, Executor, PlanId, Precision, Region, StateSpec, TensorId};

/// Makes executors of one kind and reads their values.
pub trait Device {
    type Executor: Executor;

    /// What plans are compiled for.
    fn backend(&self) -> Box<dyn Backend>;

    /// The precision of plans, as exact as float32 or more.
    fn precision(&self) -> Precision {
        Precision::F32
    }

    /// How much further than the CPU in float32 losses, statistics and single elements of gradients may be off: 1 for the
    /// same bounds. Tensors as a whole have one bound for every device ([`crate::tensors`]).
    fn slack(&self) -> f64 {
        1.0
    }

    /// An executor over the given buffers.
    fn executor(&self, spec: StateSpec) -> Self::Executor;

    /// An output in logical order, as exactly as the device holds it.
    fn elements(&self, executor: &Self::Executor, plan: PlanId, tensor: TensorId) -> Vec<f64> {
        widened(executor.download(plan, tensor).expect("an output"))
    }

    /// A flat buffer, as exactly as the device holds it.
    fn region(&self, executor: &Self::Executor, region: Region) -> Vec<f64> {
        widened(executor.read_region(region).expect("kept"))
    }
}

fn widened(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}
