//! The CPU as the bodies of `parity` see it.

use cpu::{CpuBackend, CpuExecutor};
use detect::FixedAssignment;
use detect::external::DetectionLoss;
use graph::{Backend, OptimizerKind, Plan, Precision, Recompute, StateSpec};
use model::{Model, NamedTensors};
use parity::{Cpu, Device};
use std::sync::Arc;

pub use parity::{DOUBLE, Packed, SINGLE, filled, load, pictures};

/// The CPU in float32, with a loss whose assignment is given.
pub struct Assigned(pub Arc<[FixedAssignment]>);

impl Device for Assigned {
    type Executor = CpuExecutor<f32>;

    fn backend(&self) -> Box<dyn Backend> {
        SINGLE.backend()
    }

    fn executor(&self, spec: StateSpec) -> CpuExecutor<f32> {
        let mut executor = SINGLE.executor(spec);
        executor.register(DetectionLoss::NAME, cpu::external::assigned_loss(self.0.clone()));
        executor
    }
}

/// A training step on the CPU in float32.
pub type Step = parity::Step<Cpu<f32>>;

pub fn step(model: &Model, tensors: &NamedTensors, shape: [usize; 3], optimizer: OptimizerKind) -> Step {
    Step::on(SINGLE, model, tensors, shape, optimizer, false)
}

pub fn step_at(model: &Model, tensors: &NamedTensors, shape: [usize; 3], recompute: Recompute) -> Step {
    Step::at_level(SINGLE, model, tensors, shape, OptimizerKind::Sgd, false, recompute)
}

/// The plan of a training step on the CPU in float32.
pub fn compile_step(model: &Model, shape: [usize; 3], recompute: Recompute) -> Arc<Plan> {
    parity::compile_step(model, shape, recompute, (&CpuBackend, Precision::F32), false).plan
}
