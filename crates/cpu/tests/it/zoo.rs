//! The ten models of the zoo take a training step in exactly the memory that their plan states.

use crate::common::{Packed, compile_step, pictures, step_at};
use cpu::CpuExecutor;
use graph::{CommitStep, Executor, GroupScalars, Level, OptimizerKind, Recompute, Region, StateSpec};
use model::Model;

const SHAPE: [usize; 3] = [1, 128, 128];

/// Arena in bytes at each level as stated, after checking that an executor allocates the same.
fn arenas(model: &Model) -> [u64; 3] {
    Level::ALL.map(|level| {
        let plan = compile_step(model, SHAPE, Recompute::Level(level));
        let stated = plan.memory().arena;
        let layout = plan.params().clone();
        let mut executor = CpuExecutor::<f32>::new(StateSpec { layout, optimizer: None, ema: false });
        assert_eq!(executor.arena_bytes(), 0);
        executor.prepare(plan).expect("prepared");
        assert_eq!(executor.arena_bytes(), stated.next_multiple_of(64), "{} {level:?}", model.name);
        executor.arena_bytes()
    })
}

/// Loss values and gradients of one step of a model as it is born, and how far the step moved its weights.
fn step(model: &Model, recompute: Recompute) -> (Vec<f64>, Vec<f32>, f64, u64) {
    let tensors = model::init(model, 0).expect("initial weights");
    let mut step = step_at(model, &tensors, SHAPE, recompute);
    let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4], [0.0, 0.0, 0.6, 0.3, 0.2, 0.5]];
    step.upload(&pictures("train", SHAPE[0], SHAPE[1], SHAPE[2]), &Packed::of(rows.as_flattened(), SHAPE[0]));
    let losses = step.run();
    let gradients = step.executor.read_region(Region::Gradients).expect("kept");
    let before = step.executor.read_region(Region::Weights).expect("kept");
    let group = GroupScalars { lr: 0.01, momentum: 0.937, weight_decay: 0.0 };
    let commit = CommitStep {
        kind: OptimizerKind::Sgd,
        groups: [group; 3],
        beta2: 0.999,
        eps: 1e-8,
        clip: 10.0,
        step: 1,
        ema_decay: Some(0.5),
    };
    let report = step.executor.commit(&commit).expect("commits");
    assert!(report.applied && report.grad_norm > 0.0, "{}: {report:?}", model.name);
    let after = step.executor.read_region(Region::Weights).expect("kept");
    let moved = before.iter().zip(&after).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    (losses, gradients, moved, step.executor.arena_bytes())
}

/// `runs` levels beside the first are run too, and must give the same bits.
fn check(name: &str, runs: usize) {
    let model = Model::load(name, Some(3)).expect("a model of the zoo");
    let stated = arenas(&model);
    assert!(stated[0] > stated[1] && stated[1] >= stated[2], "{name}: {stated:?}");
    let first = step(&model, Recompute::Level(Level::KeepAll));
    println!("{name}: arenas {:?} KiB, losses {:?}", stated.map(|bytes| bytes >> 10), &first.0[..4]);
    assert_eq!(first.3, stated[0], "{name}");
    assert!(first.0[..4].iter().all(|loss| loss.is_finite() && *loss > 0.0), "{name}: {:?}", first.0);
    assert!(first.1.iter().all(|g| g.is_finite()), "{name}: a gradient is not finite");
    assert!(first.2.is_finite() && first.2 > 0.0, "{name}: no weight has moved");
    for level in Level::ALL.into_iter().rev().take(runs) {
        let other = step(&model, Recompute::Level(level));
        assert_eq!(first.0, other.0, "{name}: losses at {level:?}");
        assert!(first.1 == other.1, "{name}: gradients at {level:?}");
    }
}

#[test]
fn the_small_models_step_in_the_stated_memory_at_every_level() {
    ["gelan-t", "yolov9-t", "gelan-s", "yolov9-s"].into_iter().for_each(|name| check(name, 2));
}

#[test]
fn the_medium_models_step_in_the_stated_memory_at_every_level() {
    ["gelan-m", "yolov9-m"].into_iter().for_each(|name| check(name, 1));
}

#[test]
fn the_c_models_step_in_the_stated_memory() {
    ["gelan-c", "yolov9-c"].into_iter().for_each(|name| check(name, 0));
}

#[test]
fn the_e_models_step_in_the_stated_memory() {
    ["gelan-e", "yolov9-e"].into_iter().for_each(|name| check(name, 0));
}
