//! The executor: arena, flat buffers, prepared plans.

use crate::arena::Arena;
use crate::backend::CpuBackend;
use crate::commit;
use crate::dispatch::{Memory, Runs};
use crate::external::{ExternalIo, Registry};
use crate::regions::Regions;
use graph::ops::External;
use graph::{
    Answers, Backend, CommitReport, CommitStep, DType, ExecError, Executor, Kind, Op, Plan, PlanId, Precision, Region,
    StateSpec, TensorId, Ticket,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs plans on the CPU with elements of type `T`: f32 for work, f64 to check gradients.
///
/// Work is split over rayon's current pool by shapes alone, so results do not depend on its size.
pub struct CpuExecutor<T: Runs> {
    regions: Regions<T>,
    arena: Arena,
    plans: Vec<Arc<Plan>>,
    registry: Registry<T>,
    /// Partial sums of the gradient's norm.
    partials: Vec<f64>,
    read: Answers<Vec<f32>>,
    reports: Answers<CommitReport>,
}

impl<T: Runs> CpuExecutor<T> {
    /// An executor that keeps the given flat buffers, all zero, and knows the ops of `detect`.
    pub fn new(spec: StateSpec) -> Self {
        let partials = Vec::with_capacity(commit::partial_sums(&spec.layout));
        let (regions, registry) = (Regions::new(spec), Registry::standard());
        let (read, reports) = (Answers::default(), Answers::default());
        Self { regions, arena: Arena::default(), plans: Vec::new(), registry, partials, read, reports }
    }
}

impl<T: Runs> CpuExecutor<T> {
    /// The precision that plans for this executor are compiled with.
    pub fn precision() -> Precision {
        if size_of::<T>() == 8 { Precision::F64 } else { Precision::F32 }
    }

    /// Adds the body of an external op, or replaces it.
    pub fn register(
        &mut self,
        name: &'static str,
        body: impl Fn(&External, &mut ExternalIo<'_, '_, T>) + Send + Sync + 'static,
    ) {
        self.registry.add(name, Arc::new(body));
    }

    /// Runs a plan and tells how long each op took, in plan order.
    pub fn run_timed(&mut self, plan: PlanId) -> Result<Vec<Duration>, ExecError> {
        let mut times = Vec::with_capacity(self.plans[plan.0].graph().nodes().len());
        self.run_ops(plan, |run| {
            let start = Instant::now();
            run()?;
            times.push(start.elapsed());
            Ok(())
        })?;
        Ok(times)
    }

    /// Hands every op of a plan, in order, to `each` to be run.
    fn run_ops(
        &mut self,
        plan: PlanId,
        mut each: impl FnMut(&mut dyn FnMut() -> Result<(), ExecError>) -> Result<(), ExecError>,
    ) -> Result<(), ExecError> {
        let plan = &self.plans[plan.0];
        let base = self.arena.base();
        let (_, [weights, gradients, buffers]) =
            self.regions.many([Region::Weights, Region::Gradients, Region::Buffers]);
        let mut memory = Memory { plan, base, weights, gradients, buffers, registry: &self.registry };
        (0..plan.graph().nodes().len()).try_for_each(|at| each(&mut || T::run_op(&mut memory, at)))
    }

    /// Reads an output in the executor's own type.
    pub fn download_elements(&self, plan: PlanId, tensor: TensorId) -> Vec<T> {
        let plan = &self.plans[plan.0];
        let (place, info) = (plan.placement(tensor), plan.graph().tensor(tensor));
        let mut out = Vec::with_capacity(info.shape.elements());
        for pixel in 0..info.shape.pixels() {
            for segment in info.map.segments() {
                let first = pixel * place.pitch + segment.physical;
                // SAFETY: the plan places `pixels * pitch` elements of T at the offset, inside of the arena.
                out.extend_from_slice(unsafe {
                    let base = self.arena.base_const().add(place.offset as usize).cast::<T>();
                    std::slice::from_raw_parts(base.add(first), segment.len)
                });
            }
        }
        out
    }

    /// Reads a flat buffer in the executor's own type.
    pub fn region(&self, region: Region) -> Result<&[T], ExecError> {
        self.regions.get(region)
    }

    /// A flat buffer to write in the executor's own type.
    pub fn region_mut(&mut self, region: Region) -> Result<&mut [T], ExecError> {
        self.regions.get_mut(region)
    }

    fn upload<V: Copy>(&mut self, plan: PlanId, tensor: TensorId, dtype: DType, values: &[V]) -> Result<(), ExecError> {
        let plan = &self.plans[plan.0];
        let info = plan.graph().tensor(tensor);
        if info.kind != Kind::Raw(dtype) || values.len() > info.shape.elements() {
            let (tensor, shape, len) = (info.name.clone(), info.shape, values.len());
            return Err(ExecError::Upload { tensor, dtype, shape, len });
        }
        let offset = plan.placement(tensor).offset as usize;
        // SAFETY: a raw tensor lies densely at its offset, inside of the arena, and holds that many elements.
        unsafe {
            let target = self.arena.base().add(offset).cast::<V>();
            target.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
        Ok(())
    }
}

impl<T: Runs> Executor for CpuExecutor<T> {
    fn backend(&self) -> &dyn Backend {
        &CpuBackend
    }

    fn prepare(&mut self, plan: Arc<Plan>) -> Result<PlanId, ExecError> {
        if plan.precision() != Self::precision() {
            return Err(ExecError::Precision { plan: plan.precision(), executor: Self::precision() });
        }
        if *plan.params() != self.regions.spec().layout {
            return Err(ExecError::Layout);
        }
        for node in plan.graph().nodes() {
            if let Op::External(op) = &node.op {
                self.registry.get(op.spec.name())?;
            }
        }
        self.arena.grow(plan.memory().arena)?;
        self.plans.push(plan);
        Ok(PlanId(self.plans.len() - 1))
    }

    fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn upload_u8(&mut self, plan: PlanId, tensor: TensorId, values: &[u8]) -> Result<(), ExecError> {
        self.upload(plan, tensor, DType::U8, values)
    }

    fn upload_u32(&mut self, plan: PlanId, tensor: TensorId, values: &[u32]) -> Result<(), ExecError> {
        self.upload(plan, tensor, DType::U32, values)
    }

    fn upload_f32(&mut self, plan: PlanId, tensor: TensorId, values: &[f32]) -> Result<(), ExecError> {
        self.upload(plan, tensor, DType::F32, values)
    }

    fn run(&mut self, plan: PlanId) -> Result<(), ExecError> {
        self.run_ops(plan, |run| run())
    }

    fn download(&self, plan: PlanId, tensor: TensorId) -> Result<Vec<f32>, ExecError> {
        Ok(self.download_elements(plan, tensor).into_iter().map(|v| v.as_f64() as f32).collect())
    }

    fn start_read(&mut self, plan: PlanId, tensor: TensorId) -> Result<Ticket, ExecError> {
        let values = self.download(plan, tensor)?;
        Ok(self.read.keep(values))
    }

    fn finish_read(&mut self, ticket: Ticket) -> Result<Vec<f32>, ExecError> {
        self.read.take(&ticket)
    }

    fn start_commit(&mut self, step: &CommitStep) -> Result<Ticket, ExecError> {
        let report = T::commit(&mut self.regions, step, &mut self.partials)?;
        Ok(self.reports.keep(report))
    }

    fn finish_commit(&mut self, ticket: Ticket) -> Result<CommitReport, ExecError> {
        self.reports.take(&ticket)
    }

    fn read_region(&self, region: Region) -> Result<Vec<f32>, ExecError> {
        Ok(self.regions.get(region)?.iter().map(|v| v.as_f64() as f32).collect())
    }

    fn write_region(&mut self, region: Region, values: &[f32]) -> Result<(), ExecError> {
        let target = self.regions.get_mut(region)?;
        if target.len() != values.len() {
            return Err(ExecError::RegionLength { region, expected: target.len(), got: values.len() });
        }
        target.iter_mut().zip(values).for_each(|(t, &v)| *t = T::of_f64(v as f64));
        Ok(())
    }
}
