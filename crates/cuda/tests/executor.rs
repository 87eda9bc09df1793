//! Whole plans on a card, against the fixtures of the running reference. Needs a GPU; without one every test says so and
//! is skipped.

mod card;

use card::Card;
use cuda::external::assigned_host_loss;
use cuda::{CudaExecutor, Engine};
use detect::FixedAssignment;
use detect::external::DetectionLoss;
use graph::{Backend, Executor, Level, OptimizerKind, Precision, Recompute, Region, StateSpec};
use parity::{DOUBLE, Device, Packed, Step, detections, filled, forward, load, pictures, tensors, training};
use std::sync::Arc;

/// A card in float32, with a loss on the host whose assignment is given.
struct Assigned(Card, Arc<[FixedAssignment]>);

impl Device for Assigned {
    type Executor = CudaExecutor;

    fn backend(&self) -> Box<dyn Backend> {
        self.0.backend()
    }

    fn slack(&self) -> f64 {
        self.0.slack()
    }

    fn executor(&self, spec: StateSpec) -> CudaExecutor {
        let mut executor = self.0.executor(spec);
        executor.register_host(DetectionLoss::NAME, assigned_host_loss(self.1.clone()));
        executor
    }
}

macro_rules! on_the_card {
    ($($name:ident: $body:expr),* $(,)?) => {$(
        #[test]
        fn $name() {
            if let Some(card) = Card::open(Precision::F32, true) {
                $body(&card);
            }
        }
    )*};
}

on_the_card! {
    predictions_of_every_model_agree: forward::predictions_of_every_model_agree,
    training_mode_head_maps_agree: forward::training_mode_head_maps_agree,
    detections_are_those_of_the_predictions: detections::detections_are_those_of_the_predictions,
    every_tensor_agrees: |card: &Card| tensors::every_tensor_agrees(card, &DOUBLE),
    losses_and_gradients_agree: training::losses_and_gradients_agree,
    gradients_with_the_recorded_assignment_agree: |card: &Card| {
        training::gradients_with_the_recorded_assignment_agree(|fixed| Assigned(card.clone(), fixed))
    },
    three_sgd_steps_agree_in_float32: |card: &Card| training::three_sgd_steps_agree(card, false),
    assignments_and_head_maps_agree: training::assignments_and_head_maps_agree,
    every_level_gives_the_same_bits_in_exactly_the_stated_memory: levels,
    a_plan_that_moves_the_arena_leaves_the_others_as_they_were: moved_arena,
}

/// A step of the micro model at a level, ready to run.
fn micro(card: &Card, shape: [usize; 3], level: Level) -> Step<Card> {
    let case = "yolov9-cmicro-nc5";
    let model = load(case);
    let recompute = Recompute::Level(level);
    let mut step =
        Step::at_level(card.clone(), &model, &filled(&model, case), shape, OptimizerKind::Sgd, false, recompute);
    let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4], [1.0, 0.0, 0.6, 0.3, 0.2, 0.5]];
    step.upload(&pictures("train", shape[0], shape[1], shape[2]), &Packed::of(rows.as_flattened(), shape[0]));
    step
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn levels(card: &Card) {
    let mut first: Option<(Vec<f64>, Vec<u32>)> = None;
    for level in Level::ALL {
        // An engine of its own, for its arena keeps the size of the largest plan.
        let engine = Engine::new(card.engine.gpu()).expect("an engine");
        let card = Card { engine, options: card.options };
        let mut step = micro(&card, [2, 64, 96], level);
        assert_eq!(step.executor.arena_bytes(), step.compiled.memory().arena, "{level:?}");
        let found = (step.run(), bits(&step.executor.read_region(Region::Gradients).expect("kept")));
        let expected = first.get_or_insert_with(|| found.clone());
        assert!(*expected == found, "{level:?} gives other bits");
    }
}

fn moved_arena(card: &Card) {
    let mut step = micro(card, [2, 64, 64], Level::KeepAll);
    let before = step.run();
    let larger = micro(card, [4, 96, 128], Level::KeepAll).compiled;
    let room = larger.memory().arena;
    step.executor.prepare(larger).expect("prepared");
    assert_eq!(step.executor.arena_bytes(), room);
    assert_eq!(step.run(), before);
}
