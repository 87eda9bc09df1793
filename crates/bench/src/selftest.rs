//! A device held against the processor in float64: every op, every model, every optimiser.
//!
//! Single ops get inputs that every number format holds exactly, so that their bounds are a few roundings of the format.
//! Models are chains of hundreds of roundings with decisions between them (which maximum, which anchor): their error in
//! half precision is stated and bounded loosely, in float32 tightly. Pictures that a card renders are held against the
//! renderer of the data path.

mod cases;
mod commits;
mod compare;
mod detections;
mod models;
mod net;
mod ops;
mod recipes;

use crate::{BenchError, Numbers, Target};
use compare::Worst;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What is tested.
#[derive(Clone, Debug)]
pub struct SelfTestOptions {
    /// `cpu`, or a card by its number.
    pub device: String,
    pub numbers: Vec<Numbers>,
    /// Seed of weights and pictures.
    pub seed: u64,
    /// Only rows whose name contains this text.
    pub only: Option<String>,
    /// Convolutions are timed and the fastest way is used, as in training.
    pub tune: bool,
}

impl Default for SelfTestOptions {
    fn default() -> Self {
        let numbers = vec![Numbers::F32, Numbers::Bf16, Numbers::F16];
        Self { device: "0".to_owned(), numbers, seed: 0, only: None, tune: false }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub name: String,
    pub numbers: Numbers,
    /// Largest relative L2 error over all runs and tensors. Of pictures, the share of pixels that are more than one grey
    /// level off.
    pub error: f64,
    /// Where it is.
    pub tensor: String,
    pub bound: f64,
}

impl Row {
    fn new(name: &str, numbers: Numbers, worst: Worst, bound: f64) -> Self {
        Self { name: name.to_owned(), numbers, error: worst.error, tensor: worst.tensor, bound }
    }

    pub fn ok(&self) -> bool {
        self.error <= self.bound
    }
}

/// Where a test stands.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is tested next.
    pub name: &'a str,
    pub numbers: Numbers,
    pub done: usize,
    pub total: usize,
    /// About the time until the end; `None` at the start.
    pub left: Option<Duration>,
}

/// What is told while a test runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// The card or processor under test.
    Device(&'a str),
    Progress(Progress<'a>),
    Row(&'a Row),
}

/// The row of a part, for a device, a number format and a seed.
type Run = dyn Fn(&Target, Numbers, u64) -> Result<Row, BenchError>;

/// A part of the test, for each number format a row. Models are apart.
struct Part {
    name: String,
    run: Box<Run>,
}

/// All parts that a device has: the processor does not render recipes for itself to be tested.
fn parts(device: &Target) -> Vec<Part> {
    let mut parts = Vec::new();
    for case in cases::all() {
        let name = case.name.clone();
        parts.push(Part { name, run: Box::new(move |t, n, seed| ops::run(&case, t, n, seed)) });
    }
    parts.push(Part { name: detections::NAME.to_owned(), run: Box::new(detections::run) });
    parts.push(Part { name: ops::NOT_A_NUMBER.to_owned(), run: Box::new(ops::guard) });
    for (kind, name) in commits::KINDS {
        let run = move |t: &Target, n: Numbers, seed: u64| commits::run(kind, name, t, n, seed);
        parts.push(Part { name: name.to_owned(), run: Box::new(run) });
    }
    if let Target::Cuda { engine, .. } = device {
        let engine = Rc::clone(engine);
        let run = move |_: &Target, n: Numbers, seed: u64| recipes::run(engine.gpu(), n, seed);
        parts.push(Part { name: recipes::NAME.to_owned(), run: Box::new(run) });
    }
    parts
}

/// Runs the test; `tell` hears of every row as it comes. The rows are the result.
///
/// # Errors
/// A device that is not there, or one that refuses to run what it is asked. What is computed wrongly is a row.
pub fn selftest(options: &SelfTestOptions, tell: &mut dyn FnMut(Event<'_>)) -> Result<Vec<Row>, BenchError> {
    let first = options.numbers.first().copied().unwrap_or(Numbers::F32);
    let device = Target::open(&options.device, first, options.tune)?;
    let with = |&numbers: &Numbers| Ok((numbers, device.with(numbers)?));
    let targets = options.numbers.iter().map(with).collect::<Result<Vec<_>, BenchError>>()?;
    tell(Event::Device(&device.name()));
    let wanted = |name: &str| options.only.as_ref().is_none_or(|text| name.contains(text.as_str()));
    let parts: Vec<Part> = parts(&device).into_iter().filter(|part| wanted(&part.name)).collect();
    let models: Vec<_> = models::MODELS.into_iter().filter(|model| wanted(model.0)).collect();
    let names = models.iter().map(|model| model.0).collect();
    let work = parts.iter().map(|_| 1).chain(models.iter().map(|model| model.1)).sum::<u32>();
    let mut under_way = UnderWay::new((parts.len() + models.len()) * targets.len(), work * targets.len() as u32, tell);
    std::thread::scope(|scope| {
        // Under way while the card computes something else.
        let truths = models::truths(scope, names, options.seed);
        for part in &parts {
            for (numbers, target) in &targets {
                under_way.next(&part.name, *numbers);
                under_way.done(vec![(part.run)(target, *numbers, options.seed)?], 1);
            }
        }
        for ((name, work), truth) in models.iter().zip(truths) {
            let truth = truth?;
            for (numbers, target) in &targets {
                under_way.next(name, *numbers);
                under_way.done(models::run(&truth, target, *numbers)?, *work);
            }
        }
        Ok(under_way.rows)
    })
}

/// Rows so far, and what is told of them.
struct UnderWay<'a> {
    rows: Vec<Row>,
    done: usize,
    total: usize,
    /// Work behind and in all, in cases of single ops.
    work: (u32, u32),
    start: Instant,
    tell: &'a mut dyn FnMut(Event<'_>),
}

impl<'a> UnderWay<'a> {
    fn new(total: usize, work: u32, tell: &'a mut dyn FnMut(Event<'_>)) -> Self {
        Self { rows: Vec::new(), done: 0, total, work: (0, work), start: Instant::now(), tell }
    }

    fn next(&mut self, name: &str, numbers: Numbers) {
        let (behind, all) = self.work;
        let left = (behind > 0).then(|| self.start.elapsed() * all.saturating_sub(behind) / behind);
        (self.tell)(Event::Progress(Progress { name, numbers, done: self.done, total: self.total, left }));
    }

    fn done(&mut self, rows: Vec<Row>, work: u32) {
        rows.iter().for_each(|row| (self.tell)(Event::Row(row)));
        self.rows.extend(rows);
        self.done += 1;
        self.work.0 += work;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_the_cpu(only: &str) -> Vec<Row> {
        let options = SelfTestOptions {
            device: "cpu".to_owned(),
            numbers: vec![Numbers::F32],
            only: Some(only.to_owned()),
            ..SelfTestOptions::default()
        };
        selftest(&options, &mut |_| {}).unwrap()
    }

    #[test]
    fn float32_on_the_processor_is_within_the_bounds() {
        let parts = ["batch norm and SiLU", "channel ranges", "detection loss", "suppression", "commits"];
        for part in parts.into_iter().chain(["changes nothing", "gelan-t"]) {
            let rows = on_the_cpu(part);
            assert!(!rows.is_empty() && rows.iter().all(Row::ok), "{part}: {rows:?}");
        }
    }

    #[test]
    fn the_processor_has_no_renderer_of_its_own_to_test() {
        assert_eq!(on_the_cpu(recipes::NAME), []);
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let options = SelfTestOptions { device: "tpu".to_owned(), ..SelfTestOptions::default() };
        assert!(matches!(selftest(&options, &mut |_| {}), Err(BenchError::Device(_))));
        let half = SelfTestOptions { device: "cpu".to_owned(), ..SelfTestOptions::default() };
        assert!(matches!(selftest(&half, &mut |_| {}), Err(BenchError::Numbers { .. })));
    }
}
