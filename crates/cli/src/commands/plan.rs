//! `yolov9 plan`.

use super::values;
use crate::console::out;
use crate::failure::Failure;
use ::plan::calibration::Calibration;
use ::plan::cards::{CARDS, Card};
use ::plan::memory::{Memory, Planner, Request, free_on};
use ::plan::report::{Report, Target, gibi};
use ::plan::{PlanError, picture};
use clap::Args;
use graph::{GraphError, Level, Recompute};
use model::Model;
use std::path::{Path, PathBuf};
use train::{Optimizer, Precision};

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A built-in model such as yolov9-s, or a model YAML
    #[arg(long, visible_alias = "model", value_name = "MODEL", default_value = "yolov9-s")]
    cfg: String,
    /// Number of classes [default: the model's own]
    #[arg(long, value_name = "N")]
    nc: Option<usize>,
    /// Side of the pictures in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = 640)]
    imgsz: usize,
    /// Pictures a step, of all GPUs
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 16)]
    batch_size: usize,
    /// Number format of a GPU: auto, fp32, tf32, bf16 or fp16
    #[arg(long, value_name = "FORMAT", default_value_t = Precision::Auto)]
    precision: Precision,
    /// A GPU by name, such as "RTX 4090", or its memory, such as 24GiB [default: all that are known]
    #[arg(long, value_name = "NAME|BYTES")]
    gpu: Option<String>,
    /// GPUs that share the batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    devices: usize,
    /// Most bytes of the step's arena, as in training
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    memory_budget: Option<u64>,
    /// Update rule
    #[arg(long, value_name = "NAME", default_value = "SGD", value_parser = super::train::optimizers(), ignore_case = true)]
    optimizer: Optimizer,
    /// Labels of the image that has the most: bounds the boxes of a batch of mosaics
    #[arg(long, value_name = "N", default_value_t = 100)]
    most_labels: usize,
    /// Without validation, whose batches are twice as large
    #[arg(long)]
    noval: bool,
    /// Write the plan to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw memory by category and over the ops of a step
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Predict speed from these profiles (yolov9 bench step --profile --json) instead of the built-in ones
    #[arg(long, value_name = "FILE", num_args = 1..)]
    profiles: Vec<PathBuf>,
    /// Write what was found in --profiles to this file
    #[arg(long, value_name = "FILE", requires = "profiles")]
    calibration: Option<PathBuf>,
}

/// Most pixels of a side and images of a batch, as everywhere else.
const MAX_SIDE: usize = 16_384;
const MAX_BATCH: usize = 65_536;
/// Most labels that are planned with.
const MAX_LABELS: usize = 100_000;
const MAX_DEVICES: usize = 1024;

/// Plans a run.
///
/// # Errors
/// Names that are not known, a model or size that does not fit, or a batch that does not fit the GPU that was named.
pub fn run(args: PlanArgs) -> Result<(), Failure> {
    check(&args)?;
    let target = target(args.gpu.as_deref())?;
    let calibration = calibration(&args)?;
    let model = Model::load(&args.cfg, args.nc)?;
    let multiple = model.size_multiple();
    let side = args.imgsz.next_multiple_of(multiple);
    if side != args.imgsz {
        crate::console::warning(&format!("--img {} must be a multiple of {multiple}: {side} is used", args.imgsz));
    }
    let planner = Planner::new(Request {
        model,
        side,
        formats: args.precision.formats(),
        optimizer: args.optimizer.kind(),
        most_labels: args.most_labels,
        validation: !args.noval,
        devices: args.devices,
    });
    let recompute = args.memory_budget.map_or(Recompute::Level(Level::KeepAll), Recompute::Budget);
    let batch = args.batch_size / args.devices;
    let made = Report::new(&planner, batch, recompute, target, &calibration);
    let (report, memory) = made.map_err(|error| too_large(error, batch, &planner))?;
    out(report.table().trim_end());
    if let Some(path) = &args.json {
        write(path, report.to_json())?;
    }
    if let Some(path) = &args.picture {
        report::jpeg::save_picture(path, &picture::draw(&report, &memory)?)?;
    }
    match target {
        Target::All => Ok(()),
        one => fits(&report, &memory, one),
    }
}

fn check(args: &PlanArgs) -> Result<(), Failure> {
    let within = |flag: &str, value: usize, most: usize| match (1..=most).contains(&value) {
        true => Ok(()),
        false => Err(Failure::usage(
            format!("--{flag}: {value} must be between 1 and {most}"),
            "yolov9 plan --help lists the defaults",
        )),
    };
    within("img", args.imgsz, MAX_SIDE)?;
    within("batch", args.batch_size, MAX_BATCH)?;
    within("most-labels", args.most_labels, MAX_LABELS)?;
    within("devices", args.devices, MAX_DEVICES)?;
    if !args.batch_size.is_multiple_of(args.devices) {
        let (batch, devices) = (args.batch_size, args.devices);
        let next = batch.next_multiple_of(devices);
        return Err(Failure::usage(
            format!("--batch {batch} does not divide among {devices} GPUs"),
            format!("--batch {next} does"),
        ));
    }
    Ok(())
}

/// What `--gpu` means.
fn target(typed: Option<&str>) -> Result<Target, Failure> {
    let Some(typed) = typed else { return Ok(Target::All) };
    let near = match Card::find(typed) {
        Ok(card) => return Ok(Target::Card(card)),
        Err(near) => near,
    };
    // A plain number is a name that is not known, and no memory of so many bytes.
    let has_unit = typed.trim().starts_with(|c: char| c.is_ascii_digit()) && typed.trim().ends_with(['b', 'B']);
    if has_unit {
        return values::bytes(typed)
            .map(Target::Bytes)
            .map_err(|message| Failure::usage(format!("--gpu {typed}: {message}"), "such as --gpu 24GiB"));
    }
    let known = || CARDS.iter().map(|c| c.name).collect::<Vec<_>>().join(", ");
    let hint = match near.is_empty() {
        true => format!("known are {}; or give its memory, such as --gpu 24GiB", known()),
        false => format!("did you mean {}? Or give its memory, such as --gpu 24GiB", near.join(" or ")),
    };
    Err(Failure::usage(format!("--gpu {typed}: no card of that name is known"), hint))
}

fn calibration(args: &PlanArgs) -> Result<Calibration, Failure> {
    let failed = |error: ::plan::calibration::ProfileError| Failure::new(format!("--profiles: {error}"), None);
    if args.profiles.is_empty() {
        return Calibration::built_in().map_err(failed);
    }
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|e| Failure::new(format!("cannot read {}: {e}", path.display()), None))
    };
    let texts = args.profiles.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let found = Calibration::of_profiles(&texts).map_err(failed)?;
    if let Some(path) = &args.calibration {
        write(path, found.to_json())?;
    }
    Ok(found)
}

/// Writes a JSON file, whole or not at all.
fn write(path: &Path, json: Result<String, impl std::fmt::Display>) -> Result<(), Failure> {
    let text = json.map_err(|e| Failure::new(format!("cannot write {}: {e}", path.display()), None))?;
    Ok(report::atomic::write_bytes_atomic(path, text.as_bytes())?)
}

/// A batch that no card could hold gets the largest that one can.
fn too_large(error: PlanError, batch: usize, planner: &Planner) -> Failure {
    let PlanError::Graph(GraphError::TooLarge { tensor, .. }) = &error else { return error.into() };
    let message =
        format!("batch {batch} is too large: {} would have more than 2^31 elements", tensor.trim_start_matches('.'));
    match planner.largest(Level::DropInteriors, u64::MAX) {
        Ok(Some(most)) => Failure::new(message, Some(format!("--batch {} is the most", most.batch))),
        _ => Failure::new(message, Some("lower --img".to_owned())),
    }
}

/// Whether the batch fits the one card that was asked for.
fn fits(report: &Report, memory: &Memory, target: Target) -> Result<(), Failure> {
    let (needed, free) = (memory.total(), target.memory());
    if memory.beside_the_context() <= free_on(free) {
        let left = gibi(free - needed);
        out(&format!("batch {} fits, with {left:.2} GiB to spare", report.batch));
        return Ok(());
    }
    let message =
        format!("batch {} needs {:.2} GiB of each card, it has {:.2}", report.batch, gibi(needed), gibi(free));
    let levels = report.cards.iter().flat_map(|c| &c.levels);
    let mut hints: Vec<String> = Vec::new();
    for level in levels {
        let Some(batch) = level.batch else { continue };
        let batch = batch * report.devices;
        if hints.is_empty() && batch < report.batch {
            hints.push(format!("--batch {batch} fits"));
        } else if batch >= report.batch {
            let left = free_on(free).saturating_sub(memory.beside_the_context() - memory.arena());
            let mebi = left >> 20;
            hints.push(format!(
                "--memory-budget {mebi}MiB keeps the batch and computes parts of the forward pass twice"
            ));
            break;
        }
    }
    let hint = if hints.is_empty() { "lower --img".to_owned() } else { hints.join("; ") };
    Err(Failure::new(message, Some(hint)))
}
