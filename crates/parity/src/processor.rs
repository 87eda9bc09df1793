//! The CPU as a device of the bodies here: the reference of the others.

use crate::Device;
use cpu::{CpuBackend, CpuExecutor, Element, Runs};
use graph::{Backend, PlanId, Precision, Region, StateSpec, TensorId};
use std::marker::PhantomData;

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
