//! Training steps of the ten models.

use super::Row;
use super::compare::{Outcome, Worst, together, worst};
use crate::graphs::{Ending, TrainingGraph, training};
use crate::{BenchError, Numbers, Target};
use cpu::{CpuBackend, CpuExecutor};
use graph::{Executor, OptimizerKind, PlanId, Precision, Region, StateSpec};
use model::Model;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

pub(super) const NAMES: [&str; 10] =
    ["gelan-t", "gelan-s", "gelan-m", "gelan-c", "gelan-e", "yolov9-t", "yolov9-s", "yolov9-m", "yolov9-c", "yolov9-e"];

const BATCH: usize = 2;
/// Classes: no multiple of 8.
const CLASSES: usize = 5;
const MAX_BOXES: usize = 16;

/// Bounds of head maps, of loss values, of each parameter's gradient, and of the whole gradient.
struct Bounds {
    heads: f64,
    loss: f64,
    /// `None` where single parameters are not bounded.
    parameter: Option<f64>,
    gradient: f64,
}

fn bounds(numbers: Numbers) -> Bounds {
    match numbers {
        Numbers::F32 => Bounds { heads: 1e-4, loss: 1e-4, parameter: Some(1e-2), gradient: 1e-3 },
        Numbers::Tf32 | Numbers::F16 => Bounds { heads: 0.05, loss: 0.05, parameter: None, gradient: 0.5 },
        Numbers::Bf16 => Bounds { heads: 0.2, loss: 0.2, parameter: None, gradient: 1.0 },
    }
}

struct Inputs {
    pixels: Vec<u8>,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    offsets: Vec<u32>,
    classes: Vec<u32>,
    boxes: Vec<f32>,
}

fn inputs(model: &Model, graph: &TrainingGraph, numbers: Numbers, seed: u64) -> Result<Inputs, BenchError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let layout = graph.plan.params();
    let (mut weights, mut buffers) = (vec![0.0f32; layout.weight_elements()], vec![0.0f32; layout.buffer_elements()]);
    model::init(model, seed)?.scatter(layout, &mut weights, &mut buffers)?;
    weights.iter_mut().for_each(|w| *w = numbers.round(*w));
    let pixels = (0..graph.plan.shape(graph.images).elements()).map(|_| rng.random()).collect();
    let boxes = [[0.3f32, 0.4, 0.3, 0.5], [0.6, 0.5, 0.5, 0.6], [0.5, 0.6, 0.2, 0.25]];
    let classes = boxes.iter().map(|_| rng.random_range(0..CLASSES as u32)).collect();
    Ok(Inputs { pixels, weights, buffers, offsets: vec![0, 1, 3], classes, boxes: boxes.concat() })
}

fn spec(graph: &TrainingGraph) -> StateSpec {
    StateSpec { layout: graph.plan.params().clone(), optimizer: Some(OptimizerKind::Sgd), ema: false }
}

/// Writes everything, runs one step, and reads everything.
fn step(
    executor: &mut dyn Executor,
    id: PlanId,
    graph: &TrainingGraph,
    inputs: &Inputs,
) -> Result<Outcome, BenchError> {
    let layout = graph.plan.params();
    executor.write_region(Region::Weights, &inputs.weights)?;
    executor.write_region(Region::Buffers, &inputs.buffers)?;
    executor.write_region(Region::Gradients, &vec![0.0; layout.weight_elements()])?;
    executor.upload_u8(id, graph.images, &inputs.pixels)?;
    if let Some(targets) = graph.targets {
        executor.upload_u32(id, targets.offsets, &inputs.offsets)?;
        executor.upload_u32(id, targets.classes, &inputs.classes)?;
        executor.upload_f32(id, targets.boxes, &inputs.boxes)?;
    }
    executor.run(id)?;
    let mut found = Outcome::default();
    for branch in &graph.heads.branches {
        for (level, maps) in branch.levels.iter().enumerate() {
            found.push(format!("head boxes {} {level}", branch.name), executor.download(id, maps.boxes)?);
            found.push(format!("head classes {} {level}", branch.name), executor.download(id, maps.classes)?);
        }
    }
    // Total, box, class and distribution loss; what follows counts anchors.
    found.push("loss", executor.download(id, graph.loss)?[..4].to_vec());
    found.push_region("gradient", layout, &executor.read_region(Region::Gradients)?, false);
    found.push_region("statistics", layout, &executor.read_region(Region::Buffers)?, true);
    Ok(found)
}

fn only(outcome: &Outcome, kind: &str) -> Outcome {
    Outcome { tensors: outcome.tensors.iter().filter(|t| t.0.starts_with(kind)).cloned().collect() }
}

/// Forward, loss and backward of a model, and whether a second run gives the same bits.
pub(super) fn run(name: &str, target: &Target, numbers: Numbers, seed: u64) -> Result<Vec<Row>, BenchError> {
    let model = Model::load(name, Some(CLASSES))?;
    let (height, width) = if 96 % model.size_multiple() == 0 { (96, 128) } else { (128, 64) };
    let compile = |backend: &dyn graph::Backend, precision| {
        let ending = Ending::Loss { max_boxes: MAX_BOXES };
        training(&model, (BATCH, height, width), ending, true, (backend, precision))
    };
    let reference = compile(&CpuBackend, Precision::F64)?;
    let inputs = inputs(&model, &reference, numbers, seed)?;
    let mut exact = CpuExecutor::<f64>::new(spec(&reference));
    let id = exact.prepare(Arc::clone(&reference.plan))?;
    let want = step(&mut exact, id, &reference, &inputs)?;
    drop(exact);

    let own = compile(target.backend().as_ref(), target.precision())?;
    let mut running = target.executor(spec(&own))?;
    let executor = running.as_dyn();
    let id = executor.prepare(Arc::clone(&own.plan))?;
    let got = step(executor, id, &own, &inputs)?;
    let again = step(executor, id, &own, &inputs)?;

    let bounds = bounds(numbers);
    let kind = |kind: &str| worst(&only(&got, kind), &only(&want, kind), 1e-3);
    let row = |what: &str, found: Worst, bound: f64| Row::new(&format!("{name}, {what}"), numbers, found, bound);
    let mut rows = vec![
        row("head maps", kind("head"), bounds.heads),
        row("loss", kind("loss"), bounds.loss),
        row("running statistics", kind("statistics"), bounds.heads),
        row("whole gradient", together(&got, &want, "gradient"), bounds.gradient),
        row("same bits twice", same_bits(&got, &again), 0.0),
    ];
    if let Some(bound) = bounds.parameter {
        rows.push(row("gradients by parameter", kind("gradient"), bound));
    }
    Ok(rows)
}

fn same_bits(first: &Outcome, second: &Outcome) -> Worst {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let pairs = first.tensors.iter().zip(&second.tensors);
    let other = pairs.filter(|(a, b)| bits(&a.1) != bits(&b.1)).map(|(a, _)| a.0.clone()).next();
    other.map_or_else(Worst::none, |tensor| Worst { error: f64::INFINITY, tensor })
}
