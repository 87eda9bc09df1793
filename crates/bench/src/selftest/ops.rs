//! Runs a case on a device and on the processor in float64.

use super::Row;
use super::cases::{Case, Ends};
use super::compare::{Outcome, Worst, worst};
use super::net::{Net, relaid, weights};
use crate::external::{WeightedSquares, register_cpu};
use crate::{BenchError, Numbers, Target};
use cpu::{CpuBackend, CpuExecutor};
use detect::external::TargetTensors;
use graph::{
    Backend, CommitStep, CompileOptions, DType, Executor, GraphError, GroupScalars, OptimizerKind, Plan, PlanId,
    Precision, Region, Shape, StateSpec, TensorId, compile,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Name of [`guard`].
pub(super) const NOT_A_NUMBER: &str = "a loss that is not a number changes nothing";

/// What is exact in a case's inputs leaves a few roundings of the format.
fn bound(numbers: Numbers) -> f64 {
    match numbers {
        Numbers::F32 => 3e-5,
        Numbers::Tf32 => 2e-3,
        Numbers::F16 => 2e-3,
        Numbers::Bf16 => 1.5e-2,
    }
}

/// A compiled case.
struct Compiled {
    plan: Arc<Plan>,
    images: TensorId,
    outputs: Vec<TensorId>,
    targets: Option<TargetTensors>,
}

fn compiled(
    case: &Case,
    (channels, picture): (usize, Shape),
    (backend, precision): (&dyn Backend, Precision),
) -> Result<Compiled, GraphError> {
    let mut net = Net::new();
    let images = net.b.input("images", picture, DType::U8);
    net.b.set_scope("picture");
    let x = net.b.normalize(images);
    let (outputs, guard, targets) = match (case.build)(&mut net, x, channels)? {
        Ends::At(outputs) => {
            outputs.iter().chain(&net.seen).for_each(|&id| net.b.output(id));
            net.b.set_scope("loss");
            let loss = case.training.then(|| net.b.external(Arc::new(WeightedSquares), &outputs)[0]);
            loss.into_iter().for_each(|id| net.b.output(id));
            // The loss itself is a sum that cancels: its error says little.
            (net.seen.iter().copied().chain(outputs).collect(), loss, None)
        }
        Ends::Loss { values, targets } => (vec![values], Some(values), Some(targets)),
    };
    let options = match guard {
        Some(loss) => CompileOptions::training(precision, loss),
        None => CompileOptions::inference(precision),
    };
    let plan = Arc::new(compile(net.b.finish(), backend, &options)?);
    Ok(Compiled { plan, images, outputs, targets })
}

/// What the host writes.
struct Inputs {
    pixels: Vec<u8>,
    weights: Vec<f32>,
    buffers: Vec<f32>,
    boxes: Boxes,
}

/// A few boxes, packed by image; the last image has none.
struct Boxes {
    offsets: Vec<u32>,
    classes: Vec<u32>,
    boxes: Vec<f32>,
}

impl Boxes {
    fn random(images: usize, nc: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut made = Self { offsets: vec![0], classes: Vec::new(), boxes: Vec::new() };
        for image in 0..images {
            for _ in 0..if image + 1 == images { 0 } else { 3 } {
                made.classes.push(rng.random_range(0..nc as u32));
                made.boxes.extend([(); 2].map(|()| rng.random_range(0.3f32..0.7)));
                made.boxes.extend([(); 2].map(|()| rng.random_range(0.2f32..0.6)));
            }
            made.offsets.push(made.classes.len() as u32);
        }
        made
    }
}

fn inputs(case: &Case, plan: &Plan, (channels, picture): (usize, Shape), numbers: Numbers, seed: u64) -> Inputs {
    // A name has its own numbers, so that a part that is run alone is the same as among all.
    let own = case.name.bytes().fold(seed, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    let mut rng = ChaCha8Rng::seed_from_u64(own.wrapping_mul(1009).wrapping_add((channels + picture.h) as u64));
    let mut pixel = || if case.any_pixels { rng.random() } else { 255 * rng.random_range(0..=1u8) };
    let pixels = (0..picture.elements()).map(|_| pixel()).collect();
    let (weights, buffers) = weights(plan.params(), numbers, &mut rng);
    Inputs { pixels, weights, buffers, boxes: Boxes::random(picture.n, channels, &mut rng) }
}

fn spec(plan: &Plan, training: bool) -> StateSpec {
    StateSpec { layout: plan.params().clone(), optimizer: training.then_some(OptimizerKind::Sgd), ema: false }
}

/// Writes parameters.
fn write(executor: &mut dyn Executor, inputs: &Inputs) -> Result<(), BenchError> {
    executor.write_region(Region::Weights, &inputs.weights)?;
    Ok(executor.write_region(Region::Buffers, &inputs.buffers)?)
}

/// Writes inputs, which a run overwrites, and runs.
fn step(executor: &mut dyn Executor, id: PlanId, case: &Compiled, inputs: &Inputs) -> Result<(), BenchError> {
    executor.upload_u8(id, case.images, &inputs.pixels)?;
    if let Some(targets) = case.targets {
        executor.upload_u32(id, targets.offsets, &inputs.boxes.offsets)?;
        executor.upload_u32(id, targets.classes, &inputs.boxes.classes)?;
        executor.upload_f32(id, targets.boxes, &inputs.boxes.boxes)?;
    }
    Ok(executor.run(id)?)
}

/// Everything that a run leaves.
fn outcome(executor: &dyn Executor, id: PlanId, case: &Compiled, training: bool) -> Result<Outcome, BenchError> {
    let mut found = Outcome::default();
    for &output in &case.outputs {
        found.push(format!("output {}", case.plan.graph().tensor(output).name), executor.download(id, output)?);
    }
    if training {
        let layout = case.plan.params();
        found.push_region("gradient", layout, &executor.read_region(Region::Gradients)?, false);
        found.push_region("statistics", layout, &executor.read_region(Region::Buffers)?, true);
    }
    Ok(found)
}

/// Runs a case with all of its channel counts.
pub(super) fn run(case: &Case, target: &Target, numbers: Numbers, seed: u64) -> Result<Row, BenchError> {
    let mut found = Worst::none();
    for at in case.runs() {
        let error = run_one(case, at, target, numbers, seed)?;
        let named = Worst { tensor: format!("{} with {} channels", error.tensor, at.0), ..error };
        found = found.max(named);
    }
    Ok(Row::new(&case.name, numbers, found, case.slack * bound(numbers)))
}

fn run_one(case: &Case, at: (usize, Shape), target: &Target, numbers: Numbers, seed: u64) -> Result<Worst, BenchError> {
    let reference = compiled(case, at, (&CpuBackend, Precision::F64))?;
    let inputs = inputs(case, &reference.plan, at, numbers, seed);
    let mut exact = CpuExecutor::<f64>::new(spec(&reference.plan, case.training));
    register_cpu(&mut exact);
    let id = exact.prepare(Arc::clone(&reference.plan))?;
    write(&mut exact, &inputs)?;
    step(&mut exact, id, &reference, &inputs)?;
    let want = outcome(&exact, id, &reference, case.training)?;

    let backend = target.backend();
    let own = compiled(case, at, (backend.as_ref(), target.precision()))?;
    let given = (&inputs.weights[..], &inputs.buffers[..]);
    let (weights, buffers) = relaid(reference.plan.params(), own.plan.params(), given);
    let inputs = Inputs { weights, buffers, ..inputs };
    let mut running = target.executor(spec(&own.plan, case.training))?;
    let executor = running.as_dyn();
    let id = executor.prepare(Arc::clone(&own.plan))?;
    write(executor, &inputs)?;
    step(executor, id, &own, &inputs)?;
    let got = outcome(executor, id, &own, case.training)?;
    Ok(worst(&got, &want, 1e-6))
}

/// A weight that is not a number: running statistics stay, the commit is refused, and the gradient is cleared.
pub(super) fn guard(target: &Target, numbers: Numbers, seed: u64) -> Result<Row, BenchError> {
    let cases = super::cases::all();
    let case = cases.iter().find(|c| c.name == "batch norm and SiLU").expect("one of the cases");
    let at = (20, case.picture);
    let backend = target.backend();
    let own = compiled(case, at, (backend.as_ref(), target.precision()))?;
    let mut inputs = inputs(case, &own.plan, at, numbers, seed);
    let bias = own.plan.params().slots().iter().find(|s| s.param.name.ends_with("bias")).expect("a norm has one");
    inputs.weights[bias.offset] = f32::NAN;
    let mut running = target.executor(spec(&own.plan, true))?;
    let executor = running.as_dyn();
    let id = executor.prepare(Arc::clone(&own.plan))?;
    write(executor, &inputs)?;
    step(executor, id, &own, &inputs)?;
    let group = GroupScalars { lr: 0.1, momentum: 0.9, weight_decay: 1e-3 };
    let commit = CommitStep {
        kind: OptimizerKind::Sgd,
        groups: [group; 3],
        beta2: 0.999,
        eps: 1e-8,
        clip: 10.0,
        step: 1,
        ema_decay: None,
    };
    let report = executor.commit(&commit)?;
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let same = |region, before: &[f32]| Ok::<_, BenchError>(bits(&executor.read_region(region)?) == bits(before));
    let found = [
        ("the commit", !report.applied),
        ("running statistics", same(Region::Buffers, &inputs.buffers)?),
        ("weights", same(Region::Weights, &inputs.weights)?),
        ("gradients", executor.read_region(Region::Gradients)?.iter().all(|&g| g == 0.0)),
    ];
    let wrong = found.iter().find(|f| !f.1).map(|f| Worst { error: f64::INFINITY, tensor: f.0.to_owned() });
    Ok(Row::new(NOT_A_NUMBER, numbers, wrong.unwrap_or_else(Worst::none), 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Ops that a compiled plan no longer has.
    const LOWERED: [&str; 3] = ["BatchNorm", "Concat", "Slice"];

    #[test]
    fn every_op_occurs_in_a_case() {
        let mut found: BTreeSet<&str> = BTreeSet::new();
        for case in super::super::cases::all() {
            let at = case.runs().next().expect("a run");
            let plan = compiled(&case, at, (&CpuBackend, Precision::F32)).expect("compiles").plan;
            found.extend(plan.graph().nodes().iter().map(|n| n.op.name()));
        }
        let missing: Vec<_> =
            graph::Op::NAMES.iter().filter(|name| !found.contains(*name) && !LOWERED.contains(name)).collect();
        assert!(missing.is_empty(), "no case has {missing:?}");
    }

    #[test]
    fn stems_are_exact_in_half_precision() {
        let cases = super::super::cases::all();
        let case = cases.iter().find(|c| c.name.starts_with("max pools")).expect("one of the cases");
        let at = (20, case.picture);
        let made = compiled(case, at, (&CpuBackend, Precision::F64)).expect("compiles");
        let inputs = inputs(case, &made.plan, at, Numbers::Bf16, 7);
        let mut executor = CpuExecutor::<f64>::new(spec(&made.plan, true));
        register_cpu(&mut executor);
        let id = executor.prepare(Arc::clone(&made.plan)).expect("prepared");
        write(&mut executor, &inputs).expect("written");
        step(&mut executor, id, &made, &inputs).expect("a run");
        // The output holds the stem and its pools.
        let values = executor.download(id, made.outputs[0]).expect("an output");
        for numbers in Numbers::ALL {
            assert!(values.iter().all(|&v| numbers.round(v) == v), "{}", numbers.name());
        }
        assert!(values.iter().any(|v| *v != 0.0));
    }
}
