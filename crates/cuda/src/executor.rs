//! The executor: arena, flat buffers, prepared plans, one stream.

use crate::arena::Arena;
use crate::backend::CudaBackend;
use crate::commit::Committer;
use crate::device::Gpu;
use crate::dispatch::{Launch, Memory, Work, lower, prepare_convolutions};
use crate::engine::Engine;
use crate::error::{CudaError, Result};
use crate::external::{Body, HostBody, HostValues, Place, Registry, decode};
use crate::profile::{OpTime, Peaks, Timer, summary};
use crate::regions::Regions;
use crate::transfer::Rows;
use crate::view::Format;
use graph::{
    Backend, CommitReport, CommitStep, DType, ExecError, Executor, Kind, Op, Plan, PlanId, Precision, Region,
    StateSpec, TensorId,
};
use std::rc::Rc;
use std::sync::Arc;

/// How a card computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Of the plans: float32, bf16 or fp16.
    pub precision: Precision,
    /// Lets convolutions round float32 operands to TF32.
    pub tf32: bool,
    /// Times the ways to compute each convolution when a plan is prepared, and takes the fastest.
    pub tune: bool,
}

impl CudaOptions {
    /// Format of feature maps and convolution operands; `None` where no kernel takes it.
    pub(crate) fn format(&self) -> Option<Format> {
        match self.precision.activation {
            DType::F32 => Some(Format::F32),
            DType::F16 => Some(Format::F16),
            DType::BF16 => Some(Format::Bf16),
            _ => None,
        }
    }
}

/// Runs plans on a card, kernel by kernel on one stream.
///
/// Runs return when everything is launched; reading waits. Grids and reduction orders depend on shapes alone, so results
/// are the same in every run with the same choice of convolutions.
pub struct CudaExecutor {
    gpu: Gpu,
    options: CudaOptions,
    backend: CudaBackend,
    engine: Rc<Engine>,
    regions: Regions,
    committer: Committer,
    arena: Arena,
    plans: Vec<Prepared>,
    registry: Registry,
}

/// A plan with its launches, whose addresses hold while the arena does not move.
struct Prepared {
    plan: Arc<Plan>,
    launches: Vec<Launch>,
}

impl CudaExecutor {
    /// An executor that keeps the given flat buffers, all zero, and knows the ops of `detect`.
    ///
    /// # Errors
    /// A precision that no kernel takes, no memory on the card, or what the driver says.
    pub fn new(engine: &Rc<Engine>, spec: StateSpec, options: CudaOptions) -> Result<Self> {
        let format = options.format().ok_or(CudaError::Precision(options.precision))?;
        let gpu = engine.gpu();
        let committer = Committer::new(gpu, &spec)?;
        let regions = Regions::new(gpu, spec, format)?;
        Ok(Self {
            gpu: gpu.clone(),
            options,
            backend: CudaBackend::new(options),
            engine: Rc::clone(engine),
            regions,
            committer,
            arena: Arena::new(gpu.clone()),
            plans: Vec::new(),
            registry: Registry::standard(),
        })
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Rates that bounds are computed with.
    ///
    /// # Errors
    /// What the driver says.
    pub fn peaks(&self) -> Result<Peaks> {
        Peaks::of(&self.gpu, self.regions.format(), self.options.tf32)
    }

    /// Bytes of the flat buffers.
    pub fn state_bytes(&self) -> u64 {
        self.regions.bytes()
    }

    /// Adds the body of an external op that runs on the host: for tests and references, the card waits for it.
    pub fn register_host(&mut self, name: &'static str, body: HostBody) {
        self.registry.add(name, Body::Host(body));
    }

    /// Adds the body of an external op whose outputs and gradients depend on shapes alone. It runs once for each plan,
    /// on inputs of zeros; runs copy what it gave.
    pub fn register_constant(&mut self, name: &'static str, body: HostBody) {
        self.registry.add(name, Body::Constant(body));
    }

    /// Runs a plan `1 + repeats` times and tells how long each op took, in plan order: medians without the first run.
    /// `write_inputs` is called before each run, for a run overwrites its inputs. Gradients add up.
    ///
    /// # Errors
    /// What `write_inputs` or the driver says.
    pub fn profile(
        &mut self,
        plan: PlanId,
        repeats: usize,
        write_inputs: &mut dyn FnMut(&mut Self) -> std::result::Result<(), ExecError>,
    ) -> std::result::Result<Vec<OpTime>, ExecError> {
        let peaks = self.peaks().map_err(device)?;
        let timer = Timer::new(&self.gpu, self.plans[plan.0].plan.graph().nodes().len()).map_err(device)?;
        let mut runs = Vec::with_capacity(repeats);
        for run in 0..=repeats {
            write_inputs(self)?;
            self.check_room(&self.plans[plan.0].plan)?;
            // SAFETY: the arena that the launches were made for is there: it was checked above.
            let times = unsafe { timer.run(&self.engine, &mut self.plans[plan.0].launches) }.map_err(device)?;
            if run > 0 {
                runs.push(times);
            }
        }
        let prepared = &self.plans[plan.0];
        Ok(summary(&prepared.plan, &prepared.launches, &runs, &peaks))
    }

    /// Resolves all launches of a plan.
    fn lowered(&self, plan: &Plan) -> std::result::Result<Vec<Launch>, ExecError> {
        let memory = Memory { regions: &self.regions, registry: &self.registry, base: self.arena.base() };
        lower(&self.engine, plan, &memory, &self.options)
    }

    /// Makes room; where the arena moves, the launches of all plans get new addresses.
    fn grow(&mut self, bytes: u64) -> std::result::Result<(), ExecError> {
        if !self.arena.grow(bytes).map_err(device)? {
            return Ok(());
        }
        for at in 0..self.plans.len() {
            let plan = Arc::clone(&self.plans[at].plan);
            self.plans[at].launches = self.lowered(&plan)?;
        }
        Ok(())
    }

    fn upload<V: bytemuck::Pod>(
        &mut self,
        plan: PlanId,
        tensor: TensorId,
        dtype: DType,
        values: &[V],
    ) -> std::result::Result<(), ExecError> {
        let plan = &self.plans[plan.0].plan;
        let info = plan.graph().tensor(tensor);
        if info.kind != Kind::Raw(dtype) || values.len() > info.shape.elements() {
            let (tensor, shape, len) = (info.name.clone(), info.shape, values.len());
            return Err(ExecError::Upload { tensor, dtype, shape, len });
        }
        self.check_room(plan)?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.arena.base() + plan.placement(tensor).offset;
        let rows = Rows { at, rows: 1, width: bytes.len(), pitch: bytes.len() };
        // SAFETY: a raw tensor lies densely at its offset, inside of the arena, and holds that many elements.
        unsafe { rows.upload(&self.gpu, bytes) }.map_err(device)
    }

    /// An arena that could not grow is gone, and with it the room of every plan.
    fn check_room(&self, plan: &Plan) -> std::result::Result<(), ExecError> {
        let bytes = plan.memory().arena;
        if self.arena.bytes() < bytes { Err(ExecError::Memory { bytes }) } else { Ok(()) }
    }
}

/// An error of the card as executors report it.
pub(crate) fn device(error: CudaError) -> ExecError {
    match error {
        CudaError::Memory { bytes, .. } => ExecError::Memory { bytes },
        other => ExecError::Device(Box::new(other)),
    }
}

impl Executor for CudaExecutor {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn prepare(&mut self, plan: Arc<Plan>) -> std::result::Result<PlanId, ExecError> {
        if plan.precision() != self.options.precision {
            return Err(ExecError::Precision { plan: plan.precision(), executor: self.options.precision });
        }
        if *plan.params() != self.regions.spec().layout {
            return Err(ExecError::Layout);
        }
        for node in plan.graph().nodes() {
            if let Op::External(op) = &node.op {
                self.registry.get(op.spec.name())?;
            }
        }
        prepare_convolutions(&self.engine, &plan, &self.options).map_err(device)?;
        self.grow(plan.memory().arena)?;
        let launches = self.lowered(&plan)?;
        self.plans.push(Prepared { plan, launches });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    fn upload_u8(&mut self, plan: PlanId, tensor: TensorId, values: &[u8]) -> std::result::Result<(), ExecError> {
        self.upload(plan, tensor, DType::U8, values)
    }

    fn upload_u32(&mut self, plan: PlanId, tensor: TensorId, values: &[u32]) -> std::result::Result<(), ExecError> {
        self.upload(plan, tensor, DType::U32, values)
    }

    fn upload_f32(&mut self, plan: PlanId, tensor: TensorId, values: &[f32]) -> std::result::Result<(), ExecError> {
        self.upload(plan, tensor, DType::F32, values)
    }

    fn run(&mut self, plan: PlanId) -> std::result::Result<(), ExecError> {
        self.check_room(&self.plans[plan.0].plan)?;
        self.gpu.context().bind_to_thread().map_err(|e| device(e.into()))?;
        for launch in &mut self.plans[plan.0].launches {
            match &mut launch.work {
                Work::Card(work) => work(&self.engine),
                // SAFETY: the arena that the op was made for is there: it was checked above.
                Work::Host(op) => unsafe { op.run(&self.gpu) },
            }
            .map_err(device)?;
        }
        Ok(())
    }

    fn download(&self, plan: PlanId, tensor: TensorId) -> std::result::Result<Vec<f32>, ExecError> {
        let plan = &self.plans[plan.0].plan;
        self.check_room(plan)?;
        let (place, info) = (Place::of(plan, tensor, self.arena.base()), plan.graph().tensor(tensor));
        let mut bytes = vec![0; place.rows.bytes()];
        // SAFETY: the plan places the tensor inside of the arena.
        unsafe { place.rows.download(&self.gpu, &mut bytes) }.map_err(device)?;
        let channels = plan.placement(tensor).channels;
        let mut physical = HostValues::Floats(vec![0.0; info.shape.pixels() * channels]);
        decode(&bytes, place.dtype, &mut physical);
        let HostValues::Floats(physical) = physical else { unreachable!("made above") };
        let mut out = Vec::with_capacity(info.shape.elements());
        for pixel in physical.chunks_exact(channels) {
            info.map.segments().iter().for_each(|s| out.extend_from_slice(&pixel[s.physical..s.physical + s.len]));
        }
        Ok(out)
    }

    fn commit(&mut self, step: &CommitStep) -> std::result::Result<CommitReport, ExecError> {
        let states = step.kind.states();
        if self.regions.spec().optimizer.is_none_or(|kept| kept.states() < states) {
            return Err(ExecError::NoRegion(Region::State(states - 1)));
        }
        self.committer.commit(&self.engine, &self.regions, step).map_err(device)
    }

    fn read_region(&self, region: Region) -> std::result::Result<Vec<f32>, ExecError> {
        let buffer = self.regions.get(region)?;
        buffer.read(0, buffer.bytes() / 4).map_err(device)
    }

    fn write_region(&mut self, region: Region, values: &[f32]) -> std::result::Result<(), ExecError> {
        let buffer = self.regions.get_mut(region)?;
        let expected = buffer.bytes() / 4;
        if expected != values.len() {
            return Err(ExecError::RegionLength { region, expected, got: values.len() });
        }
        buffer.write(0, values).map_err(device)?;
        if region == Region::Weights {
            self.regions.refresh_operands(&self.engine).map_err(device)?;
        }
        Ok(())
    }
}
