//! Training steps of the ten models.

use super::Row;
use super::compare::{Outcome, Worst, together, worst};
use super::net::relaid;
use crate::external::register_cpu;
use crate::graphs::{Ending, TrainingGraph, training};
use crate::{BenchError, Numbers, Target};
use cpu::{CpuBackend, CpuExecutor};
use graph::{
    Backend, Executor, Level, OptimizerKind, ParamLayout, PlanId, Precision, Recompute, Region, Shape, StateSpec,
};
use model::Model;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Scope;

/// The models, and about how many times as long as a case of single ops each takes.
pub(super) const MODELS: [(&str, u32); 10] = [
    ("gelan-t", 4),
    ("gelan-s", 8),
    ("gelan-m", 20),
    ("gelan-c", 25),
    ("gelan-e", 50),
    ("yolov9-t", 5),
    ("yolov9-s", 10),
    ("yolov9-m", 30),
    ("yolov9-c", 40),
    ("yolov9-e", 60),
];

/// Pictures, height, width: the deepest maps are 3 x 4.
const PICTURES: (usize, usize, usize) = (2, 96, 128);
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
        // The processor's own float32 is off by up to 0.01 % forward and 0.3 % in a gradient, and by 1 % where a maximum
        // changes sides. Half precision leaves the size of a gradient and little more.
        Numbers::F32 => Bounds { forward: 2e-3, loss: 1e-4, gradient: 5e-2, backward: 5e-2, parameter: Some(0.1) },
        Numbers::Tf32 | Numbers::F16 => {
            Bounds { forward: 1.0, loss: 0.05, gradient: 2.0, backward: 2.0, parameter: None }
        }
        Numbers::Bf16 => Bounds { forward: 1.0, loss: 0.1, gradient: 2.0, backward: 2.0, parameter: None },
    }
}

/// What the host writes before each run.
struct Batch {
    pixels: Vec<u8>,
    offsets: Vec<u32>,
    classes: Vec<u32>,
    boxes: Vec<f32>,
}

impl Batch {
    fn new(pictures_of: Shape, rng: &mut ChaCha8Rng) -> Self {
        let pixels = pictures(pictures_of, rng);
        let boxes = [[0.3f32, 0.4, 0.3, 0.5], [0.6, 0.5, 0.5, 0.6], [0.5, 0.6, 0.2, 0.25]];
        let classes = boxes.iter().map(|_| rng.random_range(0..CLASSES as u32)).collect();
        Self { pixels, offsets: vec![0, 1, 3], classes, boxes: boxes.concat() }
    }
}

/// Weights and running statistics, flat: those of an untrained model, but for the scales of batch norms, which are about
/// a half. With scales of one, a step of a deep model amplifies rounding a thousand times.
fn parameters(
    model: &Model,
    layout: &ParamLayout,
    seed: u64,
    rng: &mut ChaCha8Rng,
) -> Result<(Vec<f32>, Vec<f32>), BenchError> {
    let (mut weights, mut buffers) = (vec![0.0f32; layout.weight_elements()], vec![0.0f32; layout.buffer_elements()]);
    model::init(model, seed)?.scatter(layout, &mut weights, &mut buffers)?;
    for slot in layout.slots().iter().filter(|slot| slot.param.name.ends_with("bn.weight")) {
        let scales: Vec<f32> = (0..slot.param.shape.elements()).map(|_| rng.random_range(0.4..0.6)).collect();
        slot.scatter(&scales, &mut weights);
    }
    // Both half formats hold them, and so do the others: one truth serves all.
    weights.iter_mut().for_each(|w| *w = Numbers::F16.round(Numbers::Bf16.round(*w)));
    Ok((weights, buffers))
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

/// A model's step with each ending: the loss, and given head gradients.
const ENDINGS: [Ending; 2] = [Ending::Loss { max_boxes: MAX_BOXES }, Ending::FixedGradients];

/// Compiles both steps. Their parameters lie alike, so that one executor runs both.
fn compile(model: &Model, (backend, precision): (&dyn Backend, Precision)) -> Result<[TrainingGraph; 2], BenchError> {
    let step = |ending| training(model, PICTURES, ending, true, (backend, precision, Recompute::Level(Level::KeepAll)));
    Ok([step(ENDINGS[0])?, step(ENDINGS[1])?])
}

/// Writes statistics, gradients and inputs, runs one step, and reads everything.
fn step(
    executor: &mut dyn Executor,
    id: PlanId,
    graph: &TrainingGraph,
    (batch, buffers): (&Batch, &[f32]),
) -> Result<Outcome, BenchError> {
    let layout = graph.plan.params();
    executor.write_region(Region::Buffers, buffers)?;
    executor.write_region(Region::Gradients, &vec![0.0; layout.weight_elements()])?;
    executor.upload_u8(id, graph.images, &batch.pixels)?;
    if let Some(targets) = graph.targets {
        executor.upload_u32(id, targets.offsets, &batch.offsets)?;
        executor.upload_u32(id, targets.classes, &batch.classes)?;
        executor.upload_f32(id, targets.boxes, &batch.boxes)?;
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

/// What a model is given, and what the processor makes of it in float64.
pub(super) struct Truth {
    name: &'static str,
    model: Model,
    batch: Batch,
    /// Of the weights and statistics.
    layout: ParamLayout,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    /// One for each of [`ENDINGS`].
    want: [Outcome; 2],
}

impl Truth {
    /// # Errors
    /// As [`compile`]; what the processor refuses.
    pub fn of(name: &'static str, seed: u64) -> Result<Self, BenchError> {
        let model = Model::load(name, Some(CLASSES))?;
        let graphs = compile(&model, (&CpuBackend, Precision::F64))?;
        let layout = graphs[0].plan.params().clone();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let batch = Batch::new(graphs[0].plan.shape(graphs[0].images), &mut rng);
        let (weights, buffers) = parameters(&model, &layout, seed, &mut rng)?;
        let mut exact = CpuExecutor::<f64>::new(spec(&graphs[0]));
        register_cpu(&mut exact);
        exact.write_region(Region::Weights, &weights)?;
        let mut run = |graph: &TrainingGraph| {
            let id = exact.prepare(Arc::clone(&graph.plan))?;
            step(&mut exact, id, graph, (&batch, &buffers))
        };
        let want = [run(&graphs[0])?, run(&graphs[1])?];
        Ok(Self { name, model, batch, layout, weights, buffers, want })
    }
}

/// Works truths out on a thread of its own while others are used: one is ready and one under way at most, since each of
/// the largest takes two gigabytes. They come in the order of `names`, and after an error nothing.
pub(super) fn truths<'scope>(
    scope: &'scope Scope<'scope, '_>,
    names: Vec<&'static str>,
    seed: u64,
) -> Receiver<Result<Truth, BenchError>> {
    let (sender, receiver) = sync_channel(1);
    scope.spawn(move || {
        for name in names {
            let truth = Truth::of(name, seed);
            let failed = truth.is_err();
            // Nobody listens any more where the test has ended.
            if sender.send(truth).is_err() || failed {
                break;
            }
        }
    });
    receiver
}

/// Forward, loss and backward of a model; its backward pass from given head gradients; and whether a second run gives
/// the same bits and padding stays zero.
pub(super) fn run(truth: &Truth, target: &Target, numbers: Numbers) -> Result<Vec<Row>, BenchError> {
    let graphs = compile(&truth.model, (target.backend().as_ref(), target.precision()))?;
    let given = (&truth.weights[..], &truth.buffers[..]);
    let (weights, buffers) = relaid(&truth.layout, graphs[0].plan.params(), given);
    let mut running = target.executor(spec(&graphs[0]))?;
    let executor = running.as_dyn();
    executor.write_region(Region::Weights, &weights)?;
    drop(weights);
    let mut twice = |graph: &TrainingGraph| {
        let id = executor.prepare(Arc::clone(&graph.plan))?;
        let mut once = || step(executor, id, graph, (&truth.batch, &buffers));
        let (got, again) = (once()?, once()?);
        let same = same_bits(&got, &again);
        Ok::<_, BenchError>((got, same))
    };
    let ((of_loss, same), (of_given, same_given)) = (twice(&graphs[0])?, twice(&graphs[1])?);

    let (bounds, [want, want_given]) = (bounds(numbers), &truth.want);
    let kind = |kind: &str| worst(&of_loss.only(kind), &want.only(kind), 1e-3);
    let padding = worst(&of_loss.only("padding"), &want.only("padding"), 0.0);
    let padding_given = worst(&of_given.only("padding"), &want_given.only("padding"), 0.0);
    let row =
        |what: &str, found: Worst, bound: f64| Row::new(&format!("{}, {what}", truth.name), numbers, found, bound);
    let mut rows = vec![
        row("head maps", kind("head"), bounds.forward),
        row("running statistics", kind("statistics"), bounds.forward),
        row("loss", kind("loss"), bounds.loss),
        row("gradient of the loss", together(&of_loss, want, "gradient"), bounds.gradient),
        row("gradient from given ones", together(&of_given, want_given, "gradient"), bounds.backward),
        row("padding is zero", padding.max(padding_given), 0.0),
        row("same bits twice", same.max(same_given), 0.0),
    ];
    if let Some(bound) = bounds.parameter {
        rows.push(row("gradients by parameter", kind("gradient"), bound));
    }
    Ok(rows)
}

fn same_bits(first: &Outcome, second: &Outcome) -> Worst {
    let mut pairs = first.tensors.iter().zip(&second.tensors);
    let bits = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    let same = |a: &[f32], b: &[f32]| a.len() == b.len() && a.iter().zip(b).all(bits);
    let other = pairs.find(|(a, b)| !same(&a.1, &b.1)).map(|(a, _)| a.0.clone());
    other.map_or_else(Worst::none, |tensor| Worst { error: f64::INFINITY, tensor })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda::{CudaBackend, CudaOptions};

    /// One executor runs both steps, and weights are laid out once.
    #[test]
    fn parameters_lie_alike_in_both_steps_on_every_device() {
        let card =
            CudaBackend::new(CudaOptions { precision: Precision::BF16, tf32: false, tune: false, capture: false });
        for (name, _) in MODELS {
            let model = Model::load(name, Some(CLASSES)).expect("a model of the zoo");
            for (backend, precision) in [(&card as &dyn Backend, Precision::BF16), (&CpuBackend, Precision::F64)] {
                let [loss, given] = compile(&model, (backend, precision)).expect("compiles");
                assert!(loss.plan.params() == given.plan.params(), "{name}");
            }
        }
    }

    #[test]
    fn what_was_given_is_exact_in_every_format() {
        let truth = Truth::of("gelan-t", 3).expect("a truth");
        for numbers in Numbers::ALL {
            assert!(truth.weights.iter().all(|&w| numbers.round(w) == w), "{}", numbers.name());
        }
    }
}
