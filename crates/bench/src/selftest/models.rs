//! Training steps of the ten models.

use super::Row;
use super::compare::{Outcome, Worst, together, worst};
use super::net::relaid;
use crate::external::register_cpu;
use crate::graphs::{Ending, TrainingGraph, training};
use crate::{BenchError, Numbers, Target};
use cpu::{CpuBackend, CpuExecutor};
use graph::{Executor, OptimizerKind, PlanId, Precision, Region, Shape, StateSpec};
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

/// Largest errors that pass.
struct Bounds {
    /// Head maps and running statistics.
    forward: f64,
    loss: f64,
    /// The whole gradient of the loss. What anchors learn is decided between near ties at the start of a training, so
    /// that half precision may decide for others.
    gradient: f64,
    /// The whole gradient where head gradients are given.
    backward: f64,
    /// Each parameter's gradient of the loss; `None` where single parameters are not bounded.
    parameter: Option<f64>,
}

fn bounds(numbers: Numbers) -> Bounds {
    match numbers {
        // Untrained models amplify: their deep maps hardly vary, and batch norms divide by that. The processor's own float32
        // is off by up to 0.08 % forward, 0.5 % backward, and 1.8 % where an anchor changes sides (all gelan-e); half
        // precision leaves the size of a gradient and little more.
        Numbers::F32 => Bounds { forward: 2e-2, loss: 1e-4, gradient: 0.1, backward: 5e-2, parameter: Some(0.2) },
        Numbers::Tf32 | Numbers::F16 => {
            Bounds { forward: 1.0, loss: 0.05, gradient: 2.0, backward: 2.0, parameter: None }
        }
        Numbers::Bf16 => Bounds { forward: 1.0, loss: 0.1, gradient: 2.0, backward: 2.0, parameter: None },
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
    let pixels = pictures(graph.plan.shape(graph.images), &mut rng);
    let boxes = [[0.3f32, 0.4, 0.3, 0.5], [0.6, 0.5, 0.5, 0.6], [0.5, 0.6, 0.2, 0.25]];
    let classes = boxes.iter().map(|_| rng.random_range(0..CLASSES as u32)).collect();
    Ok(Inputs { pixels, weights, buffers, offsets: vec![0, 1, 3], classes, boxes: boxes.concat() })
}

/// Pictures of coloured blocks with some noise: noise alone averages out on the way, and what is left of it is rounding.
fn pictures(shape: Shape, rng: &mut ChaCha8Rng) -> Vec<u8> {
    const BLOCK: usize = 16;
    let (rows, columns) = (shape.h.div_ceil(BLOCK), shape.w.div_ceil(BLOCK));
    let colours: Vec<u8> = (0..shape.n * rows * columns * shape.c).map(|_| rng.random_range(0..=191)).collect();
    let mut pixels = Vec::with_capacity(shape.elements());
    for (image, y, x) in (0..shape.pixels()).map(|p| (p / shape.w / shape.h, p / shape.w % shape.h, p % shape.w)) {
        let block = (image * rows + y / BLOCK) * columns + x / BLOCK;
        pixels.extend((0..shape.c).map(|c| colours[block * shape.c + c] + rng.random_range(0..64u8)));
    }
    pixels
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
    let values = executor.download(id, graph.loss)?;
    found.push("loss", values[..values.len().min(4)].to_vec());
    found.push_region("gradient", layout, &executor.read_region(Region::Gradients)?, false);
    found.push_region("statistics", layout, &executor.read_region(Region::Buffers)?, true);
    Ok(found)
}

fn only(outcome: &Outcome, kind: &str) -> Outcome {
    Outcome { tensors: outcome.tensors.iter().filter(|t| t.0.starts_with(kind)).cloned().collect() }
}

/// A model's steps on a device and on the processor in float64.
struct Pair {
    got: Outcome,
    /// Of a second run on the device.
    again: Outcome,
    want: Outcome,
}

fn pair(model: &Model, ending: Ending, target: &Target, numbers: Numbers, seed: u64) -> Result<Pair, BenchError> {
    let (height, width) = if 96 % model.size_multiple() == 0 { (96, 128) } else { (128, 64) };
    let compile = |backend: &dyn graph::Backend, precision| {
        training(model, (BATCH, height, width), ending, true, (backend, precision))
    };
    let reference = compile(&CpuBackend, Precision::F64)?;
    let inputs = inputs(model, &reference, numbers, seed)?;
    let mut exact = CpuExecutor::<f64>::new(spec(&reference));
    register_cpu(&mut exact);
    let id = exact.prepare(Arc::clone(&reference.plan))?;
    let want = step(&mut exact, id, &reference, &inputs)?;
    drop(exact);

    let own = compile(target.backend().as_ref(), target.precision())?;
    let given = (&inputs.weights[..], &inputs.buffers[..]);
    let (weights, buffers) = relaid(reference.plan.params(), own.plan.params(), given);
    let inputs = Inputs { weights, buffers, ..inputs };
    let mut running = target.executor(spec(&own))?;
    let executor = running.as_dyn();
    let id = executor.prepare(Arc::clone(&own.plan))?;
    let got = step(executor, id, &own, &inputs)?;
    let again = step(executor, id, &own, &inputs)?;
    Ok(Pair { got, again, want })
}

/// Forward, loss and backward of a model; its backward pass from given head gradients; and whether a second run gives
/// the same bits.
pub(super) fn run(name: &str, target: &Target, numbers: Numbers, seed: u64) -> Result<Vec<Row>, BenchError> {
    let model = Model::load(name, Some(CLASSES))?;
    let Pair { got, again, want } = pair(&model, Ending::Loss { max_boxes: MAX_BOXES }, target, numbers, seed)?;
    let given = pair(&model, Ending::FixedGradients, target, numbers, seed)?;

    let bounds = bounds(numbers);
    let kind = |kind: &str| worst(&only(&got, kind), &only(&want, kind), 1e-3);
    let row = |what: &str, found: Worst, bound: f64| Row::new(&format!("{name}, {what}"), numbers, found, bound);
    let mut rows = vec![
        row("head maps", kind("head"), bounds.forward),
        row("running statistics", kind("statistics"), bounds.forward),
        row("loss", kind("loss"), bounds.loss),
        row("gradient of the loss", together(&got, &want, "gradient"), bounds.gradient),
        row("gradient from given ones", together(&given.got, &given.want, "gradient"), bounds.backward),
        row("same bits twice", same_bits(&got, &again).max(same_bits(&given.got, &given.again)), 0.0),
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
