//! A run that is stopped and resumed twenty times ends bit for bit as one that nobody disturbed.

mod common;

use common::{data_set, tiny};
use serde_json::Value;
use std::fmt;
use std::path::Path;
use train::{Observer, Optimizer, Progress, Resume, TrainEnd, TrainOptions, TrainSummary, run};

const TRAIN_IMAGES: usize = 7;
const VAL_IMAGES: usize = 9;
const EPOCHS: usize = 5;
const CLOSE_MOSAIC: usize = 2;
/// Batches of two, the last one short; batches of up to four in validation.
const BATCHES: usize = 4;
const VAL_BATCHES: usize = 3;
const INTERRUPTS: usize = 20;

/// A place in a run where it can be stopped: after that many batches of an epoch or of the validation that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Trained(usize),
    Validated(usize),
}

use Moment::{Trained, Validated};

/// A moment of an epoch.
type Place = (usize, Moment);

/// Stops at a moment, and writes down those that pass.
struct Stopper {
    epoch: usize,
    at: Option<Place>,
    hit: bool,
    passed: Vec<Place>,
}

impl Stopper {
    /// For a sitting that starts in `epoch`.
    fn new(epoch: usize, at: Option<Place>) -> Self {
        Self { epoch, at, hit: false, passed: Vec::new() }
    }
}

impl Observer for Stopper {
    fn info(&mut self, _: &str) {}
    fn warn(&mut self, line: &str) {
        panic!("nothing to warn of: {line}");
    }

    fn progress(&mut self, progress: &Progress) {
        let moment = match progress {
            Progress::Train(p) => {
                self.epoch = p.epoch;
                Trained(p.done)
            }
            Progress::Validate { done, .. } => Validated(*done),
            _ => return,
        };
        self.passed.push((self.epoch, moment));
        self.hit = self.at == Some((self.epoch, moment));
    }

    fn should_stop(&self) -> bool {
        self.hit
    }
}

/// The run's state in a checkpoint, without the options, which hold the run's name.
fn state(last: &Path) -> Value {
    let meta = model::weights::load(last).unwrap().meta.unwrap();
    let mut state: Value = serde_json::from_str(&meta.extra["run"]).unwrap();
    state.as_object_mut().unwrap().remove("options").unwrap();
    state
}

/// The bytes of a safetensors file behind its header: every tensor, in order.
fn tensor_bytes(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

/// What a run leaves that must not depend on interruptions.
#[derive(PartialEq)]
struct Left {
    /// Averages, raw weights, optimiser state.
    last: Vec<u8>,
    names: Vec<String>,
    state: Value,
    best: Vec<u8>,
    csv: String,
}

impl Left {
    fn of(summary: &TrainSummary) -> Self {
        assert_eq!((summary.end, summary.epochs), (TrainEnd::Finished, EPOCHS));
        let last = summary.last.as_ref().unwrap();
        let tensors = model::weights::load(last).unwrap().tensors;
        Self {
            last: tensor_bytes(last),
            names: tensors.iter().map(|(name, _)| name.to_owned()).collect(),
            state: state(last),
            best: std::fs::read(summary.best.as_ref().unwrap()).unwrap(),
            csv: std::fs::read_to_string(summary.folder.join("results.csv")).unwrap(),
        }
    }
}

impl fmt::Debug for Left {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let sum = |bytes: &[u8]| bytes.iter().fold(7u64, |h, &b| testkit::mix(h ^ u64::from(b)));
        write!(f, "last {:x}, best {:x}, {}\n{}", sum(&self.last), sum(&self.best), self.state, self.csv)
    }
}

/// The seed, from the environment where one is given there.
fn seed() -> u64 {
    let given = std::env::var("YOLOV9_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or(20);
    println!("seed {seed} (YOLOV9_TEST_SEED)");
    seed
}

/// Twenty random moments of a run in order, among them one of each kind that has its own way to go wrong.
fn moments(all: &[Place], seed: &mut u64) -> Vec<Place> {
    type Kind = fn(&[Place]) -> bool;
    let kinds: [Kind; 7] = [
        // Before the first optimiser step, where steps take several batches from the start.
        |chosen| chosen.contains(&(0, Trained(1))),
        |chosen| chosen.iter().any(|m| matches!(m.1, Trained(done) if done > 1 && done < BATCHES)),
        // All batches are done, validation has not begun.
        |chosen| chosen.iter().any(|m| m.1 == Trained(BATCHES)),
        |chosen| chosen.iter().any(|m| matches!(m.1, Validated(done) if done < VAL_BATCHES)),
        // Validation is done, nothing is written yet.
        |chosen| chosen.iter().any(|m| m.1 == Validated(VAL_BATCHES)),
        |chosen| chosen.iter().any(|m| m.0 + CLOSE_MOSAIC >= EPOCHS && m.1 < Trained(BATCHES)),
        // One batch after a resume.
        |chosen| {
            chosen
                .windows(2)
                .any(|m| m[0].0 == m[1].0 && matches!((m[0].1, m[1].1), (Trained(a), Trained(b)) if b == a + 1))
        },
    ];
    loop {
        let mut order = all.to_vec();
        order.sort_by_cached_key(|moment| {
            *seed = testkit::mix(*seed);
            (*seed, *moment)
        });
        let mut chosen = order[..INTERRUPTS].to_vec();
        chosen.sort_unstable();
        if kinds.iter().all(|kind| kind(&chosen)) {
            return chosen;
        }
    }
}

fn twenty_interrupts(hyp: &str, change: impl Fn(TrainOptions) -> TrainOptions) {
    let mut seed = seed();
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), TRAIN_IMAGES, VAL_IMAGES);
    let options = |name: &str| {
        let base = tiny(folder.path(), &data, name);
        std::fs::write(&base.hyp, hyp).unwrap();
        change(TrainOptions {
            epochs: EPOCHS,
            batch_size: 2,
            close_mosaic: CLOSE_MOSAIC,
            workers: train::Workers::Count(1),
            ..base
        })
    };
    let mut whole = Stopper::new(0, None);
    let want = Left::of(&run(&options("whole"), &mut whole).unwrap());
    let all = &whole.passed[..EPOCHS * (BATCHES + VAL_BATCHES)];
    assert_eq!(all.last(), Some(&(EPOCHS - 1, Validated(VAL_BATCHES))));

    let chosen = moments(all, &mut seed);
    println!("{chosen:?}");
    let mut wish = options("cut");
    let (mut epoch, mut pending, mut updates) = (0, Vec::new(), Vec::new());
    for &(stop, moment) in &chosen {
        let mut stopper = Stopper::new(epoch, Some((stop, moment)));
        let cut = run(&wish, &mut stopper).unwrap();
        assert_eq!(cut.end, TrainEnd::Interrupted, "{moment:?} of epoch {stop}");
        let state = state(cut.last.as_ref().unwrap());
        let batch = if let Trained(done) = moment { done } else { BATCHES };
        assert_eq!((state["epoch"].as_u64(), state["batch"].as_u64()), (Some(stop as u64), Some(batch as u64)));
        pending.push(state["accumulator"]["pending"].as_u64().unwrap());
        updates.push(state["updates"].as_u64().unwrap());
        wish = TrainOptions { resume: Some(Resume::From(cut.folder)), ..TrainOptions::default() };
        epoch = stop;
    }
    assert!(pending.iter().any(|&p| p > 0), "none inside of an accumulation: {pending:?}");
    if hyp.starts_with("warmup_epochs: 0\nwarmup_min_iterations: 0\n") {
        assert_eq!(updates[0], 0, "none before the first step");
    }
    let got = Left::of(&run(&wish, &mut Stopper::new(epoch, None)).unwrap());
    let parts = ["resume/weights/", "resume/state0/"];
    assert!(parts.iter().all(|part| got.names.iter().any(|name| name.starts_with(part))), "{:?}", got.names);
    assert_eq!(got.csv.lines().count(), 1 + EPOCHS);
    assert!(got == want, "got {got:?}\nwant {want:?}");
}

#[test]
fn twenty_interrupts_change_no_bit_of_a_run_with_sgd_and_a_warm_up() {
    let hyp =
        "warmup_epochs: 0\nwarmup_min_iterations: 6\nnominal_batch: 6\nmosaic: 1.0\nmixup: 0.5\ncopy_paste: 0.3\n";
    twenty_interrupts(hyp, |options| options);
}

#[test]
fn twenty_interrupts_change_no_bit_of_a_run_with_adamw_that_saves_at_its_end_only() {
    let hyp = "warmup_epochs: 0\nwarmup_min_iterations: 0\nnominal_batch: 6\nmosaic: 1.0\nmixup: 0.5\n";
    twenty_interrupts(hyp, |options| TrainOptions {
        optimizer: Optimizer::AdamW,
        nosave: true,
        cos_lr: true,
        ..options
    });
}

/// Asks to stop from the start.
struct Impatient;

impl Observer for Impatient {
    fn info(&mut self, _: &str) {}
    fn warn(&mut self, _: &str) {}
    fn progress(&mut self, _: &Progress) {}

    fn should_stop(&self) -> bool {
        true
    }
}

#[test]
fn a_stop_before_the_first_batch_leaves_no_folder_and_touches_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), TRAIN_IMAGES, VAL_IMAGES);
    let options = tiny(folder.path(), &data, "early");
    let error = run(&options, &mut Impatient).unwrap_err();
    assert!(matches!(error, train::TrainError::Stopped { .. }), "{error}");
    assert!(!folder.path().join("runs").exists());
    let cut = run(&options, &mut Stopper::new(0, Some((0, Trained(2))))).unwrap();
    let last = cut.last.unwrap();
    let before = std::fs::read(&last).unwrap();
    let wish = TrainOptions { resume: Some(Resume::From(cut.folder)), ..TrainOptions::default() };
    let error = run(&wish, &mut Impatient).unwrap_err();
    assert!(matches!(error, train::TrainError::Stopped { .. }), "{error}");
    assert!(std::fs::read(&last).unwrap() == before);
}

#[test]
fn twenty_interrupts_change_no_bit_of_a_run_with_lion_and_rectangles() {
    let hyp = "warmup_epochs: 1\nwarmup_min_iterations: 0\nnominal_batch: 4\nlr0: 0.001\n";
    twenty_interrupts(hyp, |options| TrainOptions {
        optimizer: Optimizer::Lion,
        rect: true,
        flat_cos_lr: true,
        ..options
    });
}

#[test]
fn twenty_interrupts_change_no_bit_of_a_run_with_changing_sizes_and_weighted_images() {
    let hyp = "warmup_epochs: 0\nwarmup_min_iterations: 2\nnominal_batch: 6\nmosaic: 1.0\nmixup: 0.5\n";
    twenty_interrupts(hyp, |options| TrainOptions { multi_scale: true, image_weights: true, ..options });
}
