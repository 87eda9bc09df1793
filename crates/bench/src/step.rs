//! The time of a compiled training step on random pictures, and where it goes.

mod profile;

pub use profile::{KindTime, OpRow, Profile};

use crate::graphs::{Ending, TrainingGraph, training};
use crate::target::Running;
use crate::{BenchError, Numbers, Target, write_json};
use cuda::CardBytes;
use graph::{
    CommitStep, ExecError, Executor, GroupScalars, Level, OptimizerKind, PlanId, Recompute, Region, StateSpec, Ticket,
};
use model::Model;
use plan::report::level_name;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Boxes on each picture, about COCO's mean.
const BOXES_PER_IMAGE: usize = 7;
/// Batches that take turns, so that each step has other pictures and boxes than the one before.
const BATCHES: usize = 4;
/// Runs that a profile takes medians over.
const PROFILE_REPEATS: usize = 11;

/// What is timed.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// A model of the zoo or a description, such as `yolov9-s`.
    pub model: String,
    /// Side of the pictures in pixels.
    pub imgsz: usize,
    pub batch: usize,
    pub numbers: Numbers,
    /// Steps that are timed, at least one.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// `cpu`, or a card by its number.
    pub device: String,
    /// Fixed gradients in place of the loss.
    pub without_loss: bool,
    /// Most bytes of the arena; parts of the forward pass are computed twice where needed. `None` keeps everything.
    pub memory_budget: Option<u64>,
    /// Records the launches of a step and repeats them as one, as training does.
    pub capture: bool,
    /// How many ops of a recorded step may run side by side, 1 for one after the other; `None` for the usual number.
    pub streams: Option<usize>,
    /// Times every op as well.
    pub profile: bool,
    pub seed: u64,
}

impl Default for StepOptions {
    fn default() -> Self {
        Self {
            model: "yolov9-s".to_owned(),
            imgsz: 640,
            batch: 64,
            numbers: Numbers::Bf16,
            steps: 20,
            warmup: 5,
            device: "0".to_owned(),
            without_loss: false,
            memory_budget: None,
            capture: true,
            streams: None,
            profile: false,
            seed: 0,
        }
    }
}

/// Milliseconds over all steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub fastest: f64,
    pub slowest: f64,
}

impl Spread {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |i: usize| times.get(i).copied().unwrap_or(f64::NAN);
        Self { median: at(times.len() / 2), fastest: at(0), slowest: at(times.len().saturating_sub(1)) }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    pub device: String,
    pub model: String,
    pub imgsz: usize,
    pub batch: usize,
    pub precision: &'static str,
    pub loss: bool,
    /// How much of the forward pass is kept for the backward pass.
    pub level: &'static str,
    pub captured: bool,
    /// Ops that may run side by side.
    pub streams: usize,
    pub steps: usize,
    /// Seconds from options to the first step: compiling, allocating, choosing convolutions.
    pub preparation_s: f64,
    /// From the end of one step to the end of the next: upload of a new batch, forward, loss, backward and commit, with the
    /// device never waiting for the host.
    pub step_ms: Spread,
    /// What the host needs to start a step, without writing its batch.
    pub host_ms: Spread,
    /// What the host needs to write a batch, while the device computes the one before.
    pub upload_ms: Spread,
    /// Of the median step.
    pub images_per_second: f64,
    /// The first value of the loss after the last step.
    pub loss_value: f64,
    pub arena_bytes: u64,
    /// Weights, gradients, optimiser state, averages, and batches on their way.
    pub state_bytes: u64,
    /// What [`cuda::footprint()`] says of both before anything is allocated; `None` on the CPU.
    pub planned_arena_bytes: Option<u64>,
    pub planned_state_bytes: Option<u64>,
    /// Memory of the card that is in use at the end, by whomever; 0 on the CPU.
    pub used_bytes: u64,
    pub profile: Option<Profile>,
}

impl StepReport {
    /// Writes everything as JSON, whole or not at all.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        write_json(path, self)
    }
}

/// Pictures and boxes of a batch.
struct Inputs {
    pixels: Vec<u8>,
    offsets: Vec<u32>,
    classes: Vec<u32>,
    boxes: Vec<f32>,
}

impl Inputs {
    fn random(batch: usize, side: usize, nc: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let count = BOXES_PER_IMAGE * batch;
        let mut pixels = vec![0; batch * side * side * 3];
        rng.fill(&mut pixels[..]);
        let mut row = || {
            let (x, y) = (rng.random_range(0.2f32..0.8), rng.random_range(0.2f32..0.8));
            [x, y, rng.random_range(0.05f32..0.35), rng.random_range(0.05f32..0.35)]
        };
        Self {
            pixels,
            offsets: (0..=batch as u32).map(|i| BOXES_PER_IMAGE as u32 * i).collect(),
            classes: (0..count).map(|i| (i % nc) as u32).collect(),
            boxes: (0..count).flat_map(|_| row()).collect(),
        }
    }
}

impl Inputs {
    fn upload(&self, executor: &mut dyn Executor, id: PlanId, graph: &TrainingGraph) -> Result<(), ExecError> {
        executor.upload_u8(id, graph.images, &self.pixels)?;
        if let Some(targets) = graph.targets {
            executor.upload_u32(id, targets.offsets, &self.offsets)?;
            executor.upload_u32(id, targets.classes, &self.classes)?;
            executor.upload_f32(id, targets.boxes, &self.boxes)?;
        }
        Ok(())
    }
}

/// A step ready to run.
struct Bench {
    graph: TrainingGraph,
    running: Running,
    id: PlanId,
    /// Of a card.
    planned: Option<CardBytes>,
    inputs: Vec<Inputs>,
    steps: u64,
}

/// Results of a step that are on their way.
struct UnderWay {
    loss: Ticket,
    commit: Ticket,
}

impl Bench {
    fn new(options: &StepOptions, target: &Target, model: &Model) -> Result<Self, BenchError> {
        let (batch, side) = (options.batch, options.imgsz);
        let ending = match options.without_loss {
            true => Ending::FixedGradients,
            false => Ending::Loss { max_boxes: BOXES_PER_IMAGE * batch },
        };
        let backend = target.backend();
        let recompute = options.memory_budget.map_or(Recompute::Level(Level::KeepAll), Recompute::Budget);
        let compiling = (backend.as_ref(), target.precision(), recompute);
        let graph = training(model, (batch, side, side), ending, false, compiling)?;
        let layout = graph.plan.params();
        let spec = StateSpec { layout: layout.clone(), optimizer: Some(OptimizerKind::Sgd), ema: true };
        let planned = target.footprint(&spec, &graph.plan)?;
        let mut running = target.executor(spec)?;
        let executor = running.as_dyn();
        let id = executor.prepare(Arc::clone(&graph.plan))?;
        let mut weights = vec![0.0f32; layout.weight_elements()];
        let mut buffers = vec![0.0f32; layout.buffer_elements()];
        model::init(model, options.seed)?.scatter(layout, &mut weights, &mut buffers)?;
        for (region, values) in [
            (Region::Weights, &weights),
            (Region::EmaWeights, &weights),
            (Region::Buffers, &buffers),
            (Region::EmaBuffers, &buffers),
        ] {
            executor.write_region(region, values)?;
        }
        let seeds = (0..BATCHES as u64).map(|i| options.seed.wrapping_add(i));
        let inputs = seeds.map(|seed| Inputs::random(batch, side, model.nc, seed)).collect();
        Ok(Self { graph, running, id, planned, inputs, steps: 0 })
    }

    /// Starts a step; milliseconds that the host wrote its batch, and that it needed for the rest.
    fn start(&mut self) -> Result<(UnderWay, [f64; 2]), BenchError> {
        let executor = self.running.as_dyn();
        let begin = Instant::now();
        self.inputs[self.steps as usize % BATCHES].upload(executor, self.id, &self.graph)?;
        let written = Instant::now();
        executor.run(self.id)?;
        let loss = executor.start_read(self.id, self.graph.loss)?;
        self.steps += 1;
        // A rate that leaves the weights about where they are: random pictures teach nothing.
        let group = GroupScalars { lr: 1e-6, momentum: 0.937, weight_decay: 5e-4 };
        let commit = executor.start_commit(&CommitStep {
            kind: OptimizerKind::Sgd,
            groups: [group; 3],
            beta2: 0.999,
            eps: 1e-8,
            clip: 10.0,
            step: self.steps,
            ema_decay: Some(0.999),
        })?;
        let ms = |from: Instant, to: Instant| 1e3 * (to - from).as_secs_f64();
        Ok((UnderWay { loss, commit }, [ms(begin, written), ms(written, Instant::now())]))
    }

    /// Waits for a step; its loss.
    fn finish(&mut self, step: UnderWay) -> Result<f64, BenchError> {
        let executor = self.running.as_dyn();
        let loss = executor.finish_read(step.loss)?;
        executor.finish_commit(step.commit)?;
        Ok(loss.first().map_or(f64::NAN, |&v| f64::from(v)))
    }
}

/// Compiles, warms up and times. `tell` hears of finished steps: how many, of how many.
///
/// # Errors
/// A device that is not there, a model or size that does not fit, no memory, or what the device says.
pub fn step(options: &StepOptions, tell: &mut dyn FnMut(usize, usize)) -> Result<StepReport, BenchError> {
    let target = Target::open(&options.device, options.numbers, true)?.captured(options.capture);
    if let Some(streams) = options.streams {
        target.set_streams(streams);
    }
    if options.profile && matches!(target, Target::Cpu) {
        return Err(BenchError::ProfileOnCpu);
    }
    let model = Model::load(&options.model, None)?;
    let start = Instant::now();
    let mut bench = Bench::new(options, &target, &model)?;
    let preparation_s = start.elapsed().as_secs_f64();
    let timed = options.steps.max(1);
    let total = options.warmup + timed;
    let (mut steps, mut hosts) = (Vec::with_capacity(total), Vec::with_capacity(total));
    let (mut before, host) = bench.start()?;
    hosts.push(host);
    let mut ended = Instant::now();
    let mut loss = f64::NAN;
    for done in 1..=total {
        // The last step has nothing behind it to wait for.
        let next = if done < total { Some(bench.start()?) } else { None };
        loss = bench.finish(before)?;
        let now = Instant::now();
        steps.push(1e3 * (now - ended).as_secs_f64());
        ended = now;
        tell(done, total);
        let Some((next, host)) = next else { break };
        before = next;
        hosts.push(host);
    }
    steps.drain(..options.warmup);
    hosts.drain(..options.warmup);
    let profile = match &mut bench.running {
        Running::Cuda(executor) if options.profile => {
            let (id, graph, inputs) = (bench.id, &bench.graph, &bench.inputs[0]);
            let times = executor.profile(id, PROFILE_REPEATS, &mut |e| inputs.upload(e, id, graph))?;
            Some(Profile::of(&times, &executor.peaks()?))
        }
        _ => None,
    };
    let step_ms = Spread::of(steps);
    let captured = options.capture && !matches!(target, Target::Cpu);
    let (state_bytes, used_bytes) = bench.memory()?;
    Ok(StepReport {
        device: target.name(),
        model: model.name,
        imgsz: options.imgsz,
        batch: options.batch,
        precision: options.numbers.name(),
        loss: !options.without_loss,
        level: level_name(bench.graph.plan.level()),
        captured,
        streams: if captured { target.streams() } else { 1 },
        steps: timed,
        preparation_s,
        step_ms,
        host_ms: Spread::of(hosts.iter().map(|t| t[1]).collect()),
        upload_ms: Spread::of(hosts.iter().map(|t| t[0]).collect()),
        images_per_second: 1e3 * options.batch as f64 / step_ms.median,
        loss_value: loss,
        arena_bytes: bench.running.as_dyn().arena_bytes(),
        state_bytes,
        planned_arena_bytes: bench.planned.as_ref().map(|p| p.arena),
        planned_state_bytes: bench.planned.as_ref().map(CardBytes::state),
        used_bytes,
        profile,
    })
}

impl Bench {
    /// Bytes of what outlives steps, and of what is in use on the card.
    fn memory(&self) -> Result<(u64, u64), BenchError> {
        Ok(match &self.running {
            Running::Cpu(_) => {
                let layout = self.graph.plan.params().clone();
                let spec = StateSpec { layout, optimizer: Some(OptimizerKind::Sgd), ema: true };
                (spec.regions().iter().map(|(_, elements)| 4 * *elements as u64).sum(), 0)
            }
            Running::Cuda(executor) => {
                let (free, total) = executor.gpu().memory()?;
                (executor.state_bytes(), total - free)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_between_the_ends() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, fastest: 1.0, slowest: 3.0 });
    }

    #[test]
    fn a_step_on_the_processor_is_timed_with_and_without_its_loss() {
        for without_loss in [false, true] {
            let options = StepOptions {
                model: "gelan-t".to_owned(),
                imgsz: 64,
                batch: 2,
                numbers: Numbers::F32,
                steps: 2,
                warmup: 1,
                device: "cpu".to_owned(),
                without_loss,
                ..StepOptions::default()
            };
            let mut told = Vec::new();
            let report = step(&options, &mut |done, total| told.push((done, total))).unwrap();
            assert_eq!(told, [(1, 3), (2, 3), (3, 3)]);
            assert!(report.step_ms.fastest > 0.0 && report.images_per_second > 0.0, "{report:?}");
            assert_eq!(report.loss_value == 0.0, without_loss, "{report:?}");
            assert!(report.arena_bytes > 0 && report.state_bytes > 0);
        }
    }

    #[test]
    fn a_budget_makes_the_arena_smaller_and_changes_no_result() {
        let options = StepOptions {
            model: "gelan-t".to_owned(),
            imgsz: 64,
            batch: 2,
            numbers: Numbers::F32,
            steps: 1,
            warmup: 0,
            device: "cpu".to_owned(),
            ..StepOptions::default()
        };
        let of = |memory_budget| step(&StepOptions { memory_budget, ..options.clone() }, &mut |_, _| ());
        let all = of(None).unwrap();
        let less = of(Some(all.arena_bytes - 1)).unwrap();
        assert!(less.arena_bytes < all.arena_bytes);
        assert_eq!((all.level, less.level), ("keep all", "drop activations"));
        assert_eq!(less.loss_value, all.loss_value);
        let none = of(Some(1)).unwrap_err();
        assert!(none.hint().unwrap().contains("--memory-budget"), "{none}");
    }
}
