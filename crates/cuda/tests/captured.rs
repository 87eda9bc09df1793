//! Steps as CUDA graphs, and answers that come later, against the same launched one by one. Needs a GPU; without one
//! every test says so and is skipped.

mod card;

use card::Card;
use cuda::CudaOptions;
use detect::nms::NmsConfig;
use graph::{
    CommitReport, CommitStep, ExecError, Executor, GroupScalars, Level, LossScale, OptimizerKind, Precision, Recompute,
    Region, StateSpec, Ticket,
};
use parity::detections::Detector;
use parity::{Packed, Step, filled, load, pictures};
use std::rc::Rc;
use std::time::{Duration, Instant};

const CASE: &str = "yolov9-cmicro-nc5";
const BATCH: usize = 2;

fn captured(card: &Card, capture: bool) -> Card {
    Card { engine: Rc::clone(&card.engine), options: CudaOptions { capture, ..card.options } }
}

fn step_on(card: &Card, optimizer: OptimizerKind, [h, w]: [usize; 2]) -> Step<Card> {
    let model = load(CASE);
    Step::on(card.clone(), &model, &filled(&model, CASE), [BATCH, h, w], optimizer, false)
}

/// Another batch for each number.
fn batch(step: &mut Step<Card>, number: u32, [h, w]: [usize; 2]) {
    let at = 0.3 + 0.05 * number as f32;
    let rows = [[0.0, (number % 5) as f32, at, 0.5, 0.3, 0.4], [1.0, 0.0, 0.6, at, 0.2, 0.5]];
    let rows = &rows.as_flattened()[..if number % 3 == 2 { 6 } else { 12 }];
    let mut pixels = pictures("train", BATCH, h, w);
    pixels.rotate_left(97 * number as usize);
    step.upload(&pixels, &Packed::of(rows, BATCH));
}

fn commit_of(kind: OptimizerKind, number: u64) -> CommitStep {
    let group = GroupScalars { lr: 1e-3 / number as f64, momentum: 0.9, weight_decay: 5e-4 };
    let groups = [group; 3];
    CommitStep { kind, groups, beta2: 0.999, eps: 1e-8, clip: 10.0, step: number, ema_decay: Some(0.99) }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Losses, reports and weights of some steps, read `lag` steps later.
fn train(step: &mut Step<Card>, kind: OptimizerKind, size: [usize; 2], lag: usize) -> (Vec<u32>, Vec<CommitReport>) {
    let (mut losses, mut reports) = (Vec::new(), Vec::new());
    let mut under_way: Vec<(Ticket, Ticket)> = Vec::new();
    let mut hear = |step: &mut Step<Card>, under_way: &mut Vec<(Ticket, Ticket)>, lag: usize| {
        while under_way.len() > lag {
            let (loss, report) = under_way.remove(0);
            losses.extend(bits(&step.executor.finish_read(loss).expect("a loss")));
            reports.push(step.executor.finish_commit(report).expect("a report"));
        }
    };
    for number in 1..=6 {
        batch(step, number, size);
        step.write_inputs();
        step.executor.run(step.plan).expect("a run");
        let loss = step.executor.start_read(step.plan, step.loss).expect("started");
        let report = step.executor.start_commit(&commit_of(kind, u64::from(number))).expect("started");
        under_way.push((loss, report));
        hear(step, &mut under_way, lag);
    }
    hear(step, &mut under_way, 0);
    for region in [Region::Weights, Region::EmaWeights, Region::State(0), Region::Buffers, Region::EmaBuffers] {
        losses.extend(bits(&step.executor.read_region(region).expect("kept")));
    }
    (losses, reports)
}

#[test]
fn a_recorded_step_read_late_gives_the_bits_of_one_launched_and_waited_for() {
    for precision in [Precision::F32, Precision::BF16, Precision::F16] {
        let Some(card) = Card::open(precision, false) else { return };
        for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
            let size = [64, 96];
            let (want, reports) = train(&mut step_on(&card, kind, size), kind, size, 0);
            for (capture, lag) in [(true, 0), (true, 1), (true, 3), (false, 1)] {
                let (found, found_reports) =
                    train(&mut step_on(&captured(&card, capture), kind, size), kind, size, lag);
                assert!(found == want, "{precision:?} {kind:?}, captured: {capture}, {lag} steps late");
                assert_eq!(found_reports, reports);
            }
            assert!(reports.iter().all(|r| r.applied && r.grad_norm > 0.0), "{reports:?}");
        }
    }
}

#[test]
fn a_card_with_nothing_else_to_do_waits_for_its_inputs_and_is_not_busy() {
    let Some(card) = Card::open(Precision::F32, false) else { return };
    // Some megabytes, which take a while.
    let size = [640, 640];
    let mut step = step_on(&card, OptimizerKind::Sgd, size);
    let start = Instant::now();
    let mut last = Duration::ZERO;
    for number in 1..=5 {
        assert!(!step.executor.busy().expect("told"), "before batch {number}");
        batch(&mut step, number, size);
        step.write_inputs();
        step.executor.run(step.plan).expect("a run");
        card.engine.gpu().synchronize().expect("done");
        let waited = step.executor.upload_wait();
        // Of a batch it is known when its place is used again.
        assert!(if number < 3 { waited == Duration::ZERO } else { waited > last }, "{waited:?} after batch {number}");
        last = waited;
    }
    assert!(last < start.elapsed(), "{last:?}");
}

#[test]
fn ops_side_by_side_give_the_bits_of_ops_one_after_the_other() {
    for precision in [Precision::F32, Precision::BF16] {
        let Some(card) = Card::open(precision, true) else { return };
        for size in [[64, 64], [160, 192]] {
            let kind = OptimizerKind::Sgd;
            let steps = |streams| {
                card.engine.set_streams(streams);
                train(&mut step_on(&card, kind, size), kind, size, 1)
            };
            let want = steps(1);
            // Twice over, for a race may go well once.
            for streams in [2, 3, 4, 8, 2, 3, 4, 8] {
                assert!(steps(streams) == want, "{precision:?}, {size:?}, {streams} streams");
            }
        }
    }
}

#[test]
fn every_level_of_recomputation_gives_the_same_bits_side_by_side() {
    let Some(card) = Card::open(Precision::F32, true) else { return };
    let (model, kind, size) = (load(CASE), OptimizerKind::Sgd, [96, 128]);
    let weights = filled(&model, CASE);
    let steps = |level, streams| {
        card.engine.set_streams(streams);
        let shape = [BATCH, size[0], size[1]];
        let mut step = Step::at_level(card.clone(), &model, &weights, shape, kind, false, Recompute::Level(level));
        train(&mut step, kind, size, 1)
    };
    let want = steps(Level::KeepAll, 1);
    for level in Level::ALL {
        assert!(steps(level, 3) == want, "{level:?}");
    }
}

#[test]
fn predictions_side_by_side_have_the_bits_of_those_one_after_the_other() {
    for precision in [Precision::F32, Precision::BF16] {
        let Some(card) = Card::open(precision, true) else { return };
        let config = NmsConfig { conf_threshold: 0.01, ..NmsConfig::default() };
        let predictions = |streams| {
            card.engine.set_streams(streams);
            let mut plain = Detector::new(&card, CASE, None);
            let mut suppressed = Detector::new(&card, CASE, Some(config.clone()));
            let mut found = Vec::new();
            for _ in 0..4 {
                plain.run();
                found.extend(bits(&plain.predictions()));
                suppressed.run();
                suppressed.outputs().iter().for_each(|values| found.extend(bits(values)));
            }
            found
        };
        let want = predictions(1);
        for streams in [2, 3, 4] {
            assert!(predictions(streams) == want, "{precision:?}, {streams} streams");
        }
    }
}

#[test]
fn executors_that_share_an_arena_do_not_disturb_each_other() {
    let Some(card) = Card::open(Precision::F32, true) else { return };
    let (kind, small, large) = (OptimizerKind::Sgd, [64, 64], [96, 128]);
    let alone = |size| train(&mut step_on(&card, kind, size), kind, size, 1);
    let (want_small, want_large) = (alone(small), alone(large));
    let shared = Card::open(Precision::F32, true).expect("opened before");
    // The second one makes the arena move when the first has been recorded.
    let mut first = step_on(&shared, kind, small);
    let found_small = train(&mut first, kind, small, 1);
    let mut second = step_on(&shared, kind, large);
    assert_eq!(train(&mut second, kind, large, 1), want_large);
    assert_eq!(found_small, want_small);
    batch(&mut first, 1, small);
    let before = first.run();
    batch(&mut second, 1, large);
    second.run();
    assert_eq!(first.run(), before, "a run of the other one changes nothing");
}

#[test]
fn a_loss_scale_leaves_losses_and_gradients_as_they_are() {
    let Some(card) = Card::open(Precision::F16, true) else { return };
    let size = [64, 64];
    let mut step = step_on(&card, OptimizerKind::Sgd, size);
    batch(&mut step, 1, size);
    let mut gradients = |scale: f32| {
        step.executor.set_loss_scale(LossScale { scale, good_commits: 0 }).expect("set");
        let zeros = vec![0.0; step.compiled.params().weight_elements()];
        step.executor.write_region(Region::Gradients, &zeros).expect("kept");
        let loss = step.run();
        assert_eq!(step.executor.loss_scale().expect("read"), Some(LossScale { scale, good_commits: 0 }));
        (loss, step.executor.read_region(Region::Gradients).expect("kept"))
    };
    let (loss, plain) = gradients(1.0);
    let (scaled_loss, scaled) = gradients(1024.0);
    assert_eq!(scaled_loss, loss);
    let error: f64 = plain.iter().zip(&scaled).map(|(&p, &s)| f64::from(p - s / 1024.0).powi(2)).sum();
    let norm: f64 = plain.iter().map(|&p| f64::from(p).powi(2)).sum();
    // Small gradients that fp16 cannot hold come back with the scale, so that some difference is wanted.
    assert!(error.sqrt() < 0.3 * norm.sqrt(), "{} of {}", error.sqrt(), norm.sqrt());
    assert!(norm > 0.0);
}

#[test]
fn gradients_too_large_for_half_precision_halve_the_scale_and_change_no_weight() {
    let Some(card) = Card::open(Precision::F16, true) else { return };
    let size = [64, 64];
    let mut step = step_on(&card, OptimizerKind::Sgd, size);
    step.executor.set_loss_scale(LossScale { scale: LossScale::MOST, good_commits: 9 }).expect("set");
    let before = step.executor.read_region(Region::Weights).expect("kept");
    batch(&mut step, 1, size);
    let loss = step.run();
    assert!(loss.iter().all(|l| l.is_finite()), "the loss is not scaled: {loss:?}");
    let report = step.executor.commit(&commit_of(OptimizerKind::Sgd, 1)).expect("a report");
    assert!(!report.applied && report.loss_scale == LossScale::MOST / 2.0, "{report:?}");
    assert_eq!(bits(&step.executor.read_region(Region::Weights).expect("kept")), bits(&before));
}

#[test]
fn an_answer_is_given_once_and_not_after_many_others() {
    let Some(card) = Card::open(Precision::F32, true) else { return };
    let size = [64, 64];
    let mut step = step_on(&card, OptimizerKind::Sgd, size);
    batch(&mut step, 1, size);
    let loss = step.run();
    let mut read = || step.executor.start_read(step.plan, step.loss).expect("started");
    let (first, second) = (read(), read());
    let again = Ticket(first.0);
    let later: Vec<Ticket> = (0..Ticket::KEPT - 1).map(|_| read()).collect();
    assert!(matches!(step.executor.finish_read(first), Err(ExecError::Ticket)), "it made room");
    assert!(matches!(step.executor.finish_read(again), Err(ExecError::Ticket)));
    for ticket in [second].into_iter().chain(later) {
        let values = step.executor.finish_read(ticket).expect("there");
        assert_eq!(values.into_iter().map(f64::from).collect::<Vec<_>>(), loss);
    }
}

#[test]
fn an_executor_takes_to_the_byte_what_was_said_before_there_was_a_card() {
    for precision in [Precision::F32, Precision::BF16, Precision::F16] {
        for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
            let Some(card) = Card::open(precision, true) else { return };
            let mut small = step_on(&card, optimizer, [64, 64]);
            let large =
                Step::on(card.clone(), &load(CASE), &filled(&load(CASE), CASE), [2 * BATCH, 96, 64], optimizer, false);
            small.executor.prepare(large.compiled.clone()).expect("prepared");
            let layout = small.compiled.params().clone();
            let spec = StateSpec { layout, optimizer: Some(optimizer), ema: true };
            let plans = [small.compiled.as_ref(), large.compiled.as_ref()];
            let said = cuda::footprint(&spec, plans, &card.options).expect("a format that kernels take");
            let took = (small.executor.state_bytes(), small.executor.arena_bytes());
            assert_eq!(took, (said.state(), said.arena), "{precision:?} {optimizer:?}");
        }
    }
}
