//! The time of a compiled training step on random pictures, and where it goes.

mod profile;

pub use profile::{KindTime, OpRow, Profile};

use crate::graphs::{Ending, TrainingGraph, training};
use crate::target::Running;
use crate::{BenchError, Numbers, Target};
use graph::{CommitStep, ExecError, Executor, GroupScalars, OptimizerKind, PlanId, Region, StateSpec};
use model::Model;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Boxes on each picture, about COCO's mean.
const BOXES_PER_IMAGE: usize = 7;
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
    pub steps: usize,
    /// Seconds from options to the first step: compiling, allocating, choosing convolutions.
    pub preparation_s: f64,
    /// Forward, loss, backward and commit; uploads are not in it.
    pub step_ms: Spread,
    /// Forward, loss and backward.
    pub run_ms: Spread,
    pub commit_ms: Spread,
    /// Of the median step.
    pub images_per_second: f64,
    /// The first value of the loss after the last step.
    pub loss_value: f64,
    pub arena_bytes: u64,
    /// Weights, gradients, optimiser state, averages.
    pub state_bytes: u64,
    pub profile: Option<Profile>,
}

impl StepReport {
    /// Writes everything as JSON, whole or not at all.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        Ok(files::write_bytes_atomic(path, text.as_bytes())?)
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
    inputs: Inputs,
    steps: u64,
}

impl Bench {
    fn new(options: &StepOptions, target: &Target, model: &Model) -> Result<Self, BenchError> {
        let (batch, side) = (options.batch, options.imgsz);
        let ending = match options.without_loss {
            true => Ending::FixedGradients,
            false => Ending::Loss { max_boxes: BOXES_PER_IMAGE * batch },
        };
        let backend = target.backend();
        let graph = training(model, (batch, side, side), ending, false, (backend.as_ref(), target.precision()))?;
        let layout = graph.plan.params();
        let spec = StateSpec { layout: layout.clone(), optimizer: Some(OptimizerKind::Sgd), ema: true };
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
        let inputs = Inputs::random(batch, side, model.nc, options.seed);
        Ok(Self { graph, running, id, inputs, steps: 0 })
    }

    /// Writes the inputs, whose memory the last run has reused.
    fn upload(&mut self) -> Result<(), BenchError> {
        self.inputs.upload(self.running.as_dyn(), self.id, &self.graph)?;
        self.running.finish()
    }

    /// Milliseconds of the run and of the commit.
    fn step(&mut self) -> Result<[f64; 2], BenchError> {
        self.upload()?;
        let start = Instant::now();
        self.running.as_dyn().run(self.id)?;
        self.running.finish()?;
        let ran = Instant::now();
        self.steps += 1;
        // A rate that leaves the weights about where they are: random pictures teach nothing.
        let group = GroupScalars { lr: 1e-6, momentum: 0.937, weight_decay: 5e-4 };
        let commit = CommitStep {
            kind: OptimizerKind::Sgd,
            groups: [group; 3],
            beta2: 0.999,
            eps: 1e-8,
            clip: 10.0,
            step: self.steps,
            ema_decay: Some(0.999),
        };
        self.running.as_dyn().commit(&commit)?;
        self.running.finish()?;
        let ms = |from: Instant, to: Instant| 1e3 * (to - from).as_secs_f64();
        Ok([ms(start, ran), ms(ran, Instant::now())])
    }
}

/// Compiles, warms up and times. `tell` hears of finished steps: how many, of how many.
///
/// # Errors
/// A device that is not there, a model or size that does not fit, no memory, or what the device says.
pub fn step(options: &StepOptions, tell: &mut dyn FnMut(usize, usize)) -> Result<StepReport, BenchError> {
    let target = Target::open(&options.device, options.numbers, true)?;
    if options.profile && matches!(target, Target::Cpu) {
        return Err(BenchError::ProfileOnCpu);
    }
    let model = Model::load(&options.model, None)?;
    let start = Instant::now();
    let mut bench = Bench::new(options, &target, &model)?;
    let preparation_s = start.elapsed().as_secs_f64();
    let timed = options.steps.max(1);
    let total = options.warmup + timed;
    let mut times = Vec::with_capacity(timed);
    for done in 0..total {
        let time = bench.step()?;
        if done >= options.warmup {
            times.push(time);
        }
        tell(done + 1, total);
    }
    let loss = bench.running.as_dyn().download(bench.id, bench.graph.loss)?;
    let profile = match &mut bench.running {
        Running::Cuda(executor) if options.profile => {
            let (id, graph, inputs) = (bench.id, &bench.graph, &bench.inputs);
            let times = executor.profile(id, PROFILE_REPEATS, &mut |e| inputs.upload(e, id, graph))?;
            Some(Profile::of(&times, &executor.peaks()?))
        }
        _ => None,
    };
    let step_ms = Spread::of(times.iter().map(|t| t[0] + t[1]).collect());
    Ok(StepReport {
        device: target.name(),
        model: model.name,
        imgsz: options.imgsz,
        batch: options.batch,
        precision: options.numbers.name(),
        loss: !options.without_loss,
        steps: timed,
        preparation_s,
        step_ms,
        run_ms: Spread::of(times.iter().map(|t| t[0]).collect()),
        commit_ms: Spread::of(times.iter().map(|t| t[1]).collect()),
        images_per_second: 1e3 * options.batch as f64 / step_ms.median,
        loss_value: loss.first().map_or(f64::NAN, |&v| f64::from(v)),
        arena_bytes: bench.running.as_dyn().arena_bytes(),
        state_bytes: bench.state_bytes(),
        profile,
    })
}

impl Bench {
    fn state_bytes(&self) -> u64 {
        let spec =
            StateSpec { layout: self.graph.plan.params().clone(), optimizer: Some(OptimizerKind::Sgd), ema: true };
        spec.regions().iter().map(|(_, elements)| 4 * *elements as u64).sum()
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
}
