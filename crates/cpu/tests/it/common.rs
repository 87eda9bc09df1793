//! The CPU as the bodies of `parity` see it.

use cpu::{CpuBackend, CpuExecutor, Element, Runs};
use detect::FixedAssignment;
use detect::external::DetectionLoss;
use graph::{Backend, OptimizerKind, Plan, PlanId, Precision, Recompute, Region, StateSpec, TensorId};
use model::{Model, NamedTensors};
use parity::Device;
use std::marker::PhantomData;
use std::sync::Arc;

pub use parity::{Packed, filled, load, pictures};

/// The CPU with elements of type `T`.
#[derive(Clone, Copy)]
pub struct Cpu<T>(PhantomData<T>);

pub const SINGLE: Cpu<f32> = Cpu(PhantomData);
pub const DOUBLE: Cpu<f64> = Cpu(PhantomData);

impl<T: Runs> Device for Cpu<T> {
    type Executor = CpuExecutor<T>;

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(CpuBackend)
    }

    fn precision(&self) -> Precision {
        CpuExecutor::<T>::precision()
    }

    fn executor(&self, spec: StateSpec) -> CpuExecutor<T> {
        CpuExecutor::new(spec)
    }

    fn elements(&self, executor: &CpuExecutor<T>, plan: PlanId, tensor: TensorId) -> Vec<f64> {
        executor.download_elements(plan, tensor).into_iter().map(Element::as_f64).collect()
    }

    fn region(&self, executor: &CpuExecutor<T>, region: Region) -> Vec<f64> {
        executor.region(region).expect("kept").iter().map(|v| v.as_f64()).collect()
    }
}

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
