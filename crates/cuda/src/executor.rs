//! The executor: flat buffers, prepared plans, one stream.

use crate::answers::Answers;
use crate::backend::{CudaBackend, request};
use crate::captured::{Decision, Usage, capture, capture_steps};
use crate::commit::Committer;
use crate::device::Gpu;
use crate::dispatch::{Launch, Memory, Work, lower, prepare_convolutions};
use crate::engine::Engine;
use crate::error::{CudaError, Result};
use crate::external::{Body, HostBody, HostValues, Place, Registry, decode};
use crate::image_pool::{ImagePool, RenderBatch};
use crate::inputs::{Inputs, places};
use crate::profile::{OpTime, Peaks, Timer, summary};
use crate::regions::Regions;
use crate::schedule;
use crate::view::Format;
use cudarc::driver::{CudaEvent, CudaGraph};
use graph::{
    Backend, CommitReport, CommitStep, DType, ExecError, Executor, Kind, LossScale, Op, Plan, PlanId, Precision,
    Region, StateSpec, TensorId, Ticket,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// How a card computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaOptions {
    /// Of the plans: float32, bf16 or fp16.
    pub precision: Precision,
    /// Lets convolutions round float32 operands to TF32.
    pub tf32: bool,
    /// Times the ways to compute each convolution of the first plan that is prepared, and takes the fastest.
    pub tune: bool,
    /// Records the launches of plans that run more than once, and repeats them as one.
    pub capture: bool,
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

/// Runs plans on a card, on one stream: kernel by kernel the first time, as one CUDA graph afterwards.
///
/// Runs return when everything is launched; reading waits. Grids and reduction orders depend on shapes alone, so results
/// are the same in every run with the same choice of convolutions.
///
/// All executors of an [`Engine`] compute in one arena: a run of one overwrites the tensors of another. Answers that
/// were asked for before are not touched.
pub struct CudaExecutor {
    gpu: Gpu,
    options: CudaOptions,
    backend: CudaBackend,
    engine: Rc<Engine>,
    regions: Regions,
    committer: Committer,
    inputs: Inputs,
    answers: Answers<(PlanId, TensorId)>,
    /// The last run or commit is done.
    done: CudaEvent,
    plans: Vec<Prepared>,
    usage: Usage,
    registry: Registry,
}

/// A plan with its launches.
struct Prepared {
    plan: Arc<Plan>,
    launches: Vec<Launch>,
    graph: Option<CudaGraph>,
    /// What [`crate::arena::Arena::moves`] said when the launches were made: their addresses hold no longer.
    made_at: u64,
    /// Where inputs lie in a batch, in bytes.
    inputs: Vec<(TensorId, usize)>,
}

impl CudaExecutor {
    /// An executor that keeps the given flat buffers, all zero, and knows the ops of `detect`.
    ///
    /// # Errors
    /// A precision that no kernel takes, no memory on the card, or what the driver says.
    pub fn new(engine: &Rc<Engine>, spec: StateSpec, options: CudaOptions) -> Result<Self> {
        let format = options.format().ok_or(CudaError::Precision(options.precision))?;
        let gpu = engine.gpu();
        let committer = Committer::new(gpu, &spec, format)?;
        let regions = Regions::new(gpu, spec, format)?;
        Ok(Self {
            gpu: gpu.clone(),
            options,
            backend: CudaBackend::new(options),
            engine: Rc::clone(engine),
            regions,
            committer,
            inputs: Inputs::new(gpu)?,
            answers: Answers::new(gpu)?,
            done: gpu.event()?,
            plans: Vec::new(),
            usage: Usage::default(),
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

    /// Bytes of the flat buffers, of what commits need beside them, and of batches on their way: what
    /// [`crate::footprint()`] says before there is a card.
    pub fn state_bytes(&self) -> u64 {
        self.regions.bytes() + self.committer.bytes() + self.inputs.card_bytes()
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
            self.settle(plan)?;
            // SAFETY: the arena that the launches were made for is there: it was checked above.
            let times = unsafe { timer.run(&self.engine, &mut self.plans[plan.0].launches) }.map_err(device)?;
            self.inputs.advance();
            if run > 0 {
                runs.push(times);
            }
        }
        let prepared = &self.plans[plan.0];
        Ok(summary(&prepared.plan, &prepared.launches, &runs, &peaks))
    }

    /// Renders a batch into a raw input of bytes, in the place of [`Executor::upload_u8`]. Fewer images than the input has
    /// leave the others undefined.
    ///
    /// # Errors
    /// An input of another kind or size, a pool on another card, and those of [`ImagePool::render`].
    pub fn render(
        &mut self,
        plan: PlanId,
        tensor: TensorId,
        pool: &mut ImagePool,
        batch: &RenderBatch<'_>,
    ) -> std::result::Result<(), ExecError> {
        let plan = &self.plans[plan.0].plan;
        let info = plan.graph().tensor(tensor);
        let fits = [info.shape.h, info.shape.w, info.shape.c] == [batch.out_hw[0], batch.out_hw[1], 3]
            && batch.images.len() <= info.shape.n;
        if info.kind != Kind::Raw(DType::U8) || !fits {
            let (tensor, shape, len) = (info.name.clone(), info.shape, batch.bytes());
            return Err(ExecError::Upload { tensor, dtype: DType::U8, shape, len });
        }
        if !Arc::ptr_eq(pool.gpu().stream(), self.gpu.stream()) {
            let what = "a pool that works on another stream".to_owned();
            return Err(device(CudaError::Operands { kernel: "render", what }));
        }
        self.check_room(plan)?;
        let to = self.engine.arena().base() + plan.placement(tensor).offset;
        // SAFETY: a raw tensor lies densely at its offset, inside of the arena, and holds these images.
        unsafe { pool.launch(batch, to) }.map_err(device)
    }

    /// Resolves all launches of a plan.
    fn lowered(&self, plan: &Plan) -> std::result::Result<Vec<Launch>, ExecError> {
        let (base, loss_scale) = (self.engine.arena().base(), self.committer.loss_scale_address());
        let memory = Memory { regions: &self.regions, registry: &self.registry, base, loss_scale };
        lower(&self.engine, plan, &memory, &self.options)
    }

    /// Checks that the arena has room for a plan, and makes its launches anew where the arena has moved since.
    fn settle(&mut self, id: PlanId) -> std::result::Result<(), ExecError> {
        let prepared = &self.plans[id.0];
        self.check_room(&prepared.plan)?;
        let moves = self.engine.arena().moves();
        if prepared.made_at != moves {
            let launches = self.lowered(&prepared.plan)?;
            let prepared = &mut self.plans[id.0];
            (prepared.launches, prepared.graph, prepared.made_at) = (launches, None, moves);
            self.usage.forget(id.0);
        }
        Ok(())
    }

    /// Launches a plan, and records it where that is due.
    fn launch(&mut self, id: PlanId) -> Result<()> {
        self.gpu.context().bind_to_thread()?;
        let recordable =
            self.options.capture && self.plans[id.0].launches.iter().all(|l| matches!(l.work, Work::Card(_)));
        if recordable && let Decision::Capture { instead_of } = self.usage.run(id.0) {
            if let Some(other) = instead_of {
                // It may still run.
                self.gpu.synchronize()?;
                self.plans[other].graph = None;
            }
            self.plans[id.0].graph = Some(self.record(id)?);
        }
        let Prepared { launches, graph, .. } = &mut self.plans[id.0];
        match graph {
            Some(graph) => Ok(graph.launch()?),
            None => launch_all(&self.gpu, &self.engine, launches),
        }
    }

    /// The launches of a plan as a graph.
    fn record(&mut self, id: PlanId) -> Result<CudaGraph> {
        let (gpu, engine) = (&self.gpu, &self.engine);
        let Prepared { plan, launches, .. } = &mut self.plans[id.0];
        if engine.streams() == 1 {
            return capture(gpu, || launch_all(gpu, engine, launches));
        }
        let steps = schedule::steps(plan, engine.streams(), |op| used_scratch(engine, plan, &self.options, op));
        capture_steps(gpu, &steps, |op| {
            let (first, end) = (launches.partition_point(|l| l.op < op), launches.partition_point(|l| l.op <= op));
            launch_all(gpu, engine, &mut launches[first..end])
        })
    }

    fn upload<V: bytemuck::Pod>(
        &mut self,
        plan: PlanId,
        tensor: TensorId,
        dtype: DType,
        values: &[V],
    ) -> std::result::Result<(), ExecError> {
        let Prepared { plan, inputs, .. } = &self.plans[plan.0];
        let info = plan.graph().tensor(tensor);
        if info.kind != Kind::Raw(dtype) || values.len() > info.shape.elements() {
            let (tensor, shape, len) = (info.name.clone(), info.shape, values.len());
            return Err(ExecError::Upload { tensor, dtype, shape, len });
        }
        self.check_room(plan)?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let Some(&(_, offset)) = inputs.iter().find(|i| i.0 == tensor).filter(|_| !bytes.is_empty()) else {
            return Ok(());
        };
        let to = self.engine.arena().base() + plan.placement(tensor).offset;
        // SAFETY: a raw tensor lies densely at its offset, inside of the arena, and holds that many elements.
        unsafe { self.inputs.send(offset, bytes, to) }.map_err(device)
    }

    /// From here on the card is busy until what was launched is done.
    fn note_end(&self) -> std::result::Result<(), ExecError> {
        self.done.record(self.gpu.stream()).map_err(|error| device(error.into()))
    }

    /// An arena that could not grow is gone, and with it the room of every plan.
    fn check_room(&self, plan: &Plan) -> std::result::Result<(), ExecError> {
        let bytes = plan.memory().arena;
        if self.engine.arena().bytes() < bytes { Err(ExecError::Memory { bytes }) } else { Ok(()) }
    }

    /// Where a tensor lies now.
    fn place(&self, id: PlanId, tensor: TensorId) -> std::result::Result<Place, ExecError> {
        let plan = &self.plans[id.0].plan;
        self.check_room(plan)?;
        Ok(Place::of(plan, tensor, self.engine.arena().base()))
    }
}

/// What lies at a tensor's rows, in logical order.
fn logical(plan: &Plan, tensor: TensorId, bytes: &[u8]) -> Vec<f32> {
    let (info, channels) = (plan.graph().tensor(tensor), plan.placement(tensor).channels);
    let mut physical = HostValues::Floats(vec![0.0; info.shape.pixels() * channels]);
    decode(bytes, plan.precision().of(info.kind), &mut physical);
    let HostValues::Floats(physical) = physical else { unreachable!("made above") };
    let mut out = Vec::with_capacity(info.shape.elements());
    for pixel in physical.chunks_exact(channels) {
        info.map.segments().iter().for_each(|s| out.extend_from_slice(&pixel[s.physical..s.physical + s.len]));
    }
    out
}

/// Bytes of an op's workspace that its launches use: of a convolution's, less than what a plan reserves for any way to
/// compute it.
fn used_scratch(engine: &Engine, plan: &Plan, options: &CudaOptions, op: usize) -> u64 {
    let (reserved, node) = (plan.workspace(op).1, &plan.graph().nodes()[op].op);
    // A bias's gradient uses it after the weights'.
    let alone = !matches!(node, Op::ConvWeightGrad(grad) if grad.bias.is_some());
    let request = request(node, plan.graph(), plan.precision(), options.tf32).filter(|_| alone);
    let used = request.and_then(|request| engine.convolutions().scratch(&request));
    used.map_or(reserved, |used| used.min(reserved))
}

/// Launches everything of a plan, or of a part of one, on the stream.
fn launch_all(gpu: &Gpu, engine: &Engine, launches: &mut [Launch]) -> Result<()> {
    launches.iter_mut().try_for_each(|launch| match &mut launch.work {
        Work::Card(work) => work(engine),
        // SAFETY: the arena that the op was made for is there: the executor checks it before each run.
        Work::Host(op) => unsafe { op.run(gpu) },
    })
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
        // Tails and the like are not worth the time: they take what is known, or the usual way.
        let options = CudaOptions { tune: self.options.tune && self.plans.is_empty(), ..self.options };
        prepare_convolutions(&self.engine, &plan, &options).map_err(device)?;
        self.engine.grow_arena(plan.memory().arena).map_err(device)?;
        let (inputs, bytes) = places(&plan);
        self.inputs.reserve(bytes).map_err(device)?;
        let (launches, made_at) = (self.lowered(&plan)?, self.engine.arena().moves());
        self.plans.push(Prepared { plan, launches, graph: None, made_at, inputs });
        Ok(PlanId(self.plans.len() - 1))
    }

    fn arena_bytes(&self) -> u64 {
        self.engine.arena().bytes()
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
        self.settle(plan)?;
        let launched = self.launch(plan).map_err(device);
        self.inputs.advance();
        launched?;
        self.note_end()
    }

    fn busy(&self) -> std::result::Result<bool, ExecError> {
        self.gpu.context().bind_to_thread().map_err(|error| device(error.into()))?;
        // An event that was never recorded is complete.
        let done = self.done.try_is_complete().map_err(|error| device(error.into()))?;
        Ok(!done)
    }

    fn upload_wait(&self) -> Duration {
        self.inputs.waited()
    }

    fn download(&self, plan: PlanId, tensor: TensorId) -> std::result::Result<Vec<f32>, ExecError> {
        let place = self.place(plan, tensor)?;
        let mut bytes = vec![0; place.rows.bytes()];
        // SAFETY: the plan places the tensor inside of the arena.
        unsafe { place.rows.download(&self.gpu, &mut bytes) }.map_err(device)?;
        Ok(logical(&self.plans[plan.0].plan, tensor, &bytes))
    }

    fn start_read(&mut self, plan: PlanId, tensor: TensorId) -> std::result::Result<Ticket, ExecError> {
        let place = self.place(plan, tensor)?;
        // SAFETY: the plan places the tensor inside of the arena.
        unsafe { self.answers.start(place.rows, (plan, tensor)) }.map_err(device)
    }

    fn finish_read(&mut self, ticket: Ticket) -> std::result::Result<Vec<f32>, ExecError> {
        let (bytes, (plan, tensor)) = self.answers.finish(&ticket)?;
        Ok(logical(&self.plans[plan.0].plan, tensor, bytes))
    }

    fn start_commit(&mut self, step: &CommitStep) -> std::result::Result<Ticket, ExecError> {
        let states = step.kind.states();
        if self.regions.spec().optimizer.is_none_or(|kept| kept.states() < states) {
            return Err(ExecError::NoRegion(Region::State(states - 1)));
        }
        let ticket = self.committer.start(&self.engine, &self.regions, step).map_err(device)?;
        self.note_end()?;
        Ok(ticket)
    }

    fn finish_commit(&mut self, ticket: Ticket) -> std::result::Result<CommitReport, ExecError> {
        self.committer.finish(&ticket)
    }

    fn loss_scale(&self) -> std::result::Result<Option<LossScale>, ExecError> {
        self.committer.loss_scale().map_err(device)
    }

    fn set_loss_scale(&mut self, scale: LossScale) -> std::result::Result<(), ExecError> {
        self.committer.set_loss_scale(scale).map_err(device)
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
