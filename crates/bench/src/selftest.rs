//! A device held against the processor in float64: every op, every model, every optimiser.
//!
//! Single ops get inputs that every number format holds exactly, so that their bounds are a few roundings of the format.
//! Models are chains of hundreds of roundings with decisions between them (which maximum, which anchor): their error in
//! half precision is stated and bounded loosely, in float32 tightly. Pictures that a card renders are held against the
//! renderer of the data path.

mod cases;
mod commits;
mod compare;
mod models;
mod net;
mod ops;
mod recipes;

use crate::{BenchError, Numbers, Target};
use compare::Worst;

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
}

/// What is told while a test runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// The card or processor under test.
    Device(&'a str),
    Progress(Progress<'a>),
    Row(&'a Row),
}

/// Rows of a part, for a device, a number format and a seed.
type Run = dyn Fn(&Target, Numbers, u64) -> Result<Vec<Row>, BenchError>;

/// A part of the test.
struct Part {
    name: String,
    run: Box<Run>,
}

fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for case in cases::all() {
        let name = case.name.clone();
        parts.push(Part { name, run: Box::new(move |t, n, seed| Ok(vec![ops::run(&case, t, n, seed)?])) });
    }
    parts.push(Part { name: ops::NOT_A_NUMBER.to_owned(), run: Box::new(|t, n, s| Ok(vec![ops::guard(t, n, s)?])) });
    for (kind, name) in commits::KINDS {
        let run = move |t: &Target, n: Numbers, seed: u64| Ok(vec![commits::run(kind, name, t, n, seed)?]);
        parts.push(Part { name: name.to_owned(), run: Box::new(run) });
    }
    parts.push(Part { name: recipes::NAME.to_owned(), run: Box::new(recipes::run) });
    for name in models::NAMES {
        parts.push(Part { name: name.to_owned(), run: Box::new(move |t, n, seed| models::run(name, t, n, seed)) });
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
    let wanted = |part: &Part| options.only.as_ref().is_none_or(|text| part.name.contains(text.as_str()));
    let parts: Vec<Part> = parts().into_iter().filter(wanted).collect();
    let total = parts.len() * targets.len();
    let (mut rows, mut done) = (Vec::new(), 0);
    for part in &parts {
        for (numbers, target) in &targets {
            tell(Event::Progress(Progress { name: &part.name, numbers: *numbers, done, total }));
            for row in (part.run)(target, *numbers, options.seed)? {
                tell(Event::Row(&row));
                rows.push(row);
            }
            done += 1;
        }
    }
    Ok(rows)
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
        for part in ["batch norm and SiLU", "channel ranges", "detection loss", "commits", "changes nothing", "gelan-t"]
        {
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
