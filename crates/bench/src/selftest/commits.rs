//! Commits: norm, clip, optimiser, averages, over gradients that are given.

use super::Row;
use super::compare::{Outcome, Worst, worst};
use super::net::{Net, weights};
use crate::{BenchError, Numbers, Target};
use cpu::{CpuBackend, CpuExecutor};
use graph::{
    Backend, CommitStep, CompileOptions, DType, Executor, GroupScalars, OptimizerKind, ParamGroup, Plan, Precision,
    Region, Shape, StateSpec, compile,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

pub(super) const KINDS: [(OptimizerKind, &str); 4] = [
    (OptimizerKind::Sgd, "commits of SGD"),
    (OptimizerKind::Adam, "commits of Adam"),
    (OptimizerKind::AdamW, "commits of AdamW"),
    (OptimizerKind::Lion, "commits of Lion"),
];

/// Commits in a row: the first clips, the second does not.
const STEPS: u64 = 3;
/// Everything here is float32, whatever the format of feature maps. Changes of weights are differences of rounded values.
const BOUND: f64 = 1e-4;

/// Parameters of every group, frozen ones among them, with channels that need padding.
fn plan(backend: &dyn Backend, precision: Precision) -> Result<Plan, BenchError> {
    let mut net = Net::new();
    let images = net.b.input("images", Shape::new(1, 8, 8, 3), DType::U8);
    let x = net.b.normalize(images);
    let mut y = net.conv(x, 60, 3, 1, true)?;
    for channels in [90, 128, 20] {
        y = net.conv(y, channels, 3, 1, false)?;
        y = net.bn(y)?;
    }
    net.b.output(y);
    net.b.freeze(|name| name == "conv2.weight" || name == "bn3.bias");
    Ok(compile(net.b.finish(), backend, &CompileOptions::inference(precision))?)
}

fn commit(kind: OptimizerKind, step: u64) -> CommitStep {
    let group = |lr, weight_decay| GroupScalars { lr, momentum: 0.9, weight_decay };
    let groups = [group(0.02, 0.0), group(0.01, 0.05), group(0.005, 0.0)];
    let clip = if step == 1 { 0.5 } else { f64::INFINITY };
    CommitStep { kind, groups, beta2: 0.99, eps: 1e-8, clip, step, ema_decay: Some(0.75) }
}

/// Writes weights and gradients, commits, and reads everything.
fn committed(executor: &mut dyn Executor, plan: &Plan, kind: OptimizerKind, seed: u64) -> Result<Outcome, BenchError> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let layout = plan.params();
    let (weights, buffers) = weights(layout, Numbers::F32, &mut rng);
    let parameters = [
        (Region::Weights, &weights),
        (Region::EmaWeights, &weights),
        (Region::Buffers, &buffers),
        (Region::EmaBuffers, &weights),
    ];
    for (region, values) in parameters {
        let values = if region == Region::EmaBuffers { &vec![0.25; buffers.len()] } else { values };
        executor.write_region(region, values)?;
    }
    let mut found = Outcome::default();
    for step in 1..=STEPS {
        let mut gradients = vec![0.0; layout.weight_elements()];
        for slot in layout.slots().iter().filter(|s| s.param.group != ParamGroup::Buffer && s.param.trained) {
            let values: Vec<f32> = (0..slot.param.shape.elements()).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            slot.scatter(&values, &mut gradients);
        }
        executor.write_region(Region::Gradients, &gradients)?;
        let report = executor.commit(&commit(kind, step))?;
        found.push(format!("norm {step}"), vec![report.grad_norm as f32, f32::from(u8::from(report.applied))]);
        let moved: Vec<f32> =
            executor.read_region(Region::Weights)?.iter().zip(&weights).map(|(now, start)| now - start).collect();
        found.push_region(&format!("change {step}"), layout, &moved, false);
        for state in 0..kind.states() {
            found.push_region(
                &format!("state{state} {step}"),
                layout,
                &executor.read_region(Region::State(state))?,
                false,
            );
        }
        found.push_region(&format!("average {step}"), layout, &executor.read_region(Region::EmaWeights)?, false);
        found.push_region(&format!("average {step}"), layout, &executor.read_region(Region::EmaBuffers)?, true);
        found.push_region(&format!("cleared {step}"), layout, &executor.read_region(Region::Gradients)?, false);
    }
    Ok(found)
}

/// Three commits of an optimiser.
pub(super) fn run(
    kind: OptimizerKind,
    name: &str,
    target: &Target,
    numbers: Numbers,
    seed: u64,
) -> Result<Row, BenchError> {
    let spec = |plan: &Plan| StateSpec { layout: plan.params().clone(), optimizer: Some(kind), ema: true };
    let reference = plan(&CpuBackend, Precision::F64)?;
    let want = committed(&mut CpuExecutor::<f64>::new(spec(&reference)), &reference, kind, seed)?;
    let own = Arc::new(plan(target.backend().as_ref(), target.precision())?);
    let mut running = target.executor(spec(&own))?;
    let executor = running.as_dyn();
    executor.prepare(Arc::clone(&own))?;
    let found: Worst = worst(&committed(executor, &own, kind, seed)?, &want, 1e-3);
    Ok(Row::new(name, numbers, found, BOUND))
}
