//! `yolov9 bench`.

use super::values;
use crate::console::{Bar, out};
use crate::failure::Failure;
use bench::Numbers;
use bench::loading::{Auto, LoadingOptions, LoadingReport, loading};
use bench::step::{Profile, Spread, StepOptions, StepReport, step};
use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::path::PathBuf;
use train::Workers;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Time training steps on random pictures: forward, loss, backward, commit
    Step(StepArgs),
    /// Time the loading of a data set: scan, reading, decoding, rendering, whole batches by threads, upload
    Data(DataArgs),
}

#[derive(Debug, Args)]
struct StepArgs {
    /// A built-in model such as yolov9-s, or a model YAML
    #[arg(long, value_name = "MODEL", default_value = "yolov9-s")]
    model: String,
    /// Side of the pictures in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = 640)]
    imgsz: usize,
    /// Pictures a step
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 64)]
    batch_size: usize,
    /// Number format: f32, tf32, bf16 or f16 [default: bf16; f32 on the CPU]
    #[arg(long, value_name = "FORMAT")]
    precision: Option<Numbers>,
    /// Steps that are timed
    #[arg(long, value_name = "N", default_value_t = 20)]
    steps: usize,
    /// Steps before them
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: usize,
    /// Where to compute: the number of a GPU, or cpu
    #[arg(long, default_value = "0")]
    device: String,
    /// Fixed gradients in place of the loss
    #[arg(long)]
    without_loss: bool,
    /// Most bytes of the step's arena, such as 10GiB, as in training: parts of the forward pass are computed twice where
    /// needed
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    memory_budget: Option<u64>,
    /// Launch kernel by kernel, without a CUDA graph
    #[arg(long)]
    uncaptured: bool,
    /// Ops of the CUDA graph that may run side by side, 1 for one after the other [default: as in training]
    #[arg(long, value_name = "N", conflicts_with = "uncaptured")]
    streams: Option<usize>,
    /// Time every op, and list those that lose the most against the card's bounds
    #[arg(long)]
    profile: bool,
    /// Rows of that list
    #[arg(long, value_name = "N", default_value_t = 30, requires = "profile")]
    rows: usize,
    /// Write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of weights and pictures
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Args)]
struct DataArgs {
    /// Data YAML; its training part is loaded
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// Numbers of threads that load [default: 1, 2, 4 and so on up to one a core]
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    workers: Vec<usize>,
    /// Side of the pictures in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = 640)]
    imgsz: usize,
    /// Pictures a batch
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 64)]
    batch_size: usize,
    /// Seconds for each number of threads
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Seed of the order and of augmentation
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Most pictures of a batch, and threads, and seconds, of `bench data`.
const MAX_BATCH: usize = 4096;
const MAX_WORKERS: usize = 1024;
const MAX_SECONDS: f64 = 3600.0;

/// Most ops side by side: a card runs no more kernels at once.
const MAX_STREAMS: usize = 128;

/// Most pixels of a side, as everywhere else.
const MAX_SIDE: usize = 16_384;

/// Times what was asked for.
///
/// # Errors
/// A device that is not there, a model or size that does not fit, no memory.
pub fn run(args: BenchArgs) -> Result<(), Failure> {
    match args.what {
        What::Step(args) => run_step(args),
        What::Data(args) => run_data(args),
    }
}

fn check_side(side: usize) -> Result<(), Failure> {
    if !(1..=MAX_SIDE).contains(&side) {
        let hint = "the sizes that models are trained for are about 320 to 1280";
        return Err(Failure::usage(format!("--img: {side} must be between 1 and {MAX_SIDE}"), hint));
    }
    Ok(())
}

fn run_data(args: DataArgs) -> Result<(), Failure> {
    check_side(args.imgsz)?;
    if !(1..=MAX_BATCH).contains(&args.batch_size) {
        let message = format!("--batch: {} must be between 1 and {MAX_BATCH}", args.batch_size);
        return Err(Failure::usage(message, "leave it out for 64"));
    }
    if !(0.0..=MAX_SECONDS).contains(&args.seconds) {
        let message = format!("--seconds: {} must be between 0 and {MAX_SECONDS}", args.seconds);
        return Err(Failure::usage(message, "leave it out for 3"));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let auto = Auto { card: Workers::automatic(cores, true), cpu: Workers::automatic(cores, false) };
    let workers = match args.workers.as_slice() {
        [] => {
            let doubled = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < cores);
            doubled.chain([auto.cpu, auto.card, cores]).collect::<BTreeSet<usize>>().into_iter().collect()
        }
        asked if asked.iter().all(|n| (1..=MAX_WORKERS).contains(n)) => args.workers,
        _ => {
            let message = format!("--workers: numbers must be between 1 and {MAX_WORKERS}");
            return Err(Failure::usage(message, "such as --workers 1,4,16"));
        }
    };
    let total = workers.len() + 6;
    let options = LoadingOptions {
        yaml: args.data,
        imgsz: args.imgsz,
        batch: args.batch_size,
        workers,
        auto,
        seconds: args.seconds,
        seed: args.seed,
    };
    let (mut bar, mut done) = (Bar::default(), 0);
    let report = loading(&options, &mut |stage| {
        bar.show(done, total, stage);
        done += 1;
    })?;
    bar.clear();
    print_loading(&report);
    match args.json {
        Some(path) => Ok(report.write(&path)?),
        None => Ok(()),
    }
}

fn print_loading(report: &LoadingReport) {
    out(&format!(
        "{}: {} images of {:.1} kB; {} pixels, batch {}, recipes of hyp.scratch-high.yaml; {} threads at once",
        report.yaml.display(),
        report.images,
        report.file_bytes / 1e3,
        report.imgsz,
        report.batch,
        report.cores
    ));
    out(&format!(
        "scan         {:.2} s, {} images checked before; unchanged {:.2} s",
        report.scan.seconds, report.scan.from_cache, report.scan.again_seconds
    ));
    out(&format!("{:<12} {:>7} {:>9} {:>10} {:>9}", "stage", "threads", "ms/image", "images/s", "MB/s"));
    for s in &report.stages {
        let each = 1e3 / s.images_per_second;
        out(&format!(
            "{:<12} {:>7} {each:>9.3} {:>10.1} {:>9.1}",
            s.stage, s.threads, s.images_per_second, s.megabytes_per_second
        ));
    }
    for skipped in &report.skipped {
        out(&format!("{:<12} skipped: {}", skipped.stage, skipped.reason));
    }
    out("MB/s: of files for reading and decoding, of pixels for the rest");
    let rate = |threads: usize| report.loader_rate(threads).map_or(String::new(), |r| format!(" ({r:.0} images/s)"));
    out(&format!(
        "--workers auto: {}{} beside a card, {}{} beside a step on the CPU; {} reach 95 % of the best",
        report.auto.card,
        rate(report.auto.card),
        report.auto.cpu,
        rate(report.auto.cpu),
        report.enough
    ));
}

fn run_step(args: StepArgs) -> Result<(), Failure> {
    check_side(args.imgsz)?;
    if args.batch_size == 0 || args.steps == 0 {
        return Err(Failure::usage("--batch and --steps must be at least 1", "leave them out for 64 and 20"));
    }
    if args.streams.is_some_and(|n| !(1..=MAX_STREAMS).contains(&n)) {
        return Err(Failure::usage(format!("--streams must be between 1 and {MAX_STREAMS}"), "leave it out"));
    }
    let on_cpu = args.device.trim().eq_ignore_ascii_case("cpu");
    let options = StepOptions {
        model: args.model,
        imgsz: args.imgsz,
        batch: args.batch_size,
        numbers: args.precision.unwrap_or(if on_cpu { Numbers::F32 } else { Numbers::Bf16 }),
        steps: args.steps,
        warmup: args.warmup,
        device: args.device,
        without_loss: args.without_loss,
        memory_budget: args.memory_budget,
        capture: !args.uncaptured,
        streams: args.streams,
        profile: args.profile,
        seed: args.seed,
    };
    let mut bar = Bar::default();
    let report = step(&options, &mut |done, total| bar.show(done, total, "steps"))?;
    bar.clear();
    print(&report);
    if let Some(profile) = &report.profile {
        print_profile(profile, args.rows);
    }
    match args.json {
        Some(path) => Ok(report.write(&path)?),
        None => Ok(()),
    }
}

fn print(report: &StepReport) {
    let loss = if report.loss { "" } else { ", fixed gradients in place of the loss" };
    out(&format!(
        "{}, {} pixels, batch {}, {} on {}{loss}",
        report.model, report.imgsz, report.batch, report.precision, report.device
    ));
    let spread = |s: &Spread| format!("{:.2} ms (fastest {:.2}, slowest {:.2})", s.median, s.fastest, s.slowest);
    out(&format!("step        {} of {} steps", spread(&report.step_ms), report.steps));
    if report.captured {
        out(&format!("  streams   {}", report.streams));
    }
    out(&format!("  host      {} to start a step", spread(&report.host_ms)));
    out(&format!("  upload    {} to write its batch", spread(&report.upload_ms)));
    out(&format!("images/s    {:.1}", report.images_per_second));
    out(&format!("loss        {:.4}", report.loss_value));
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    out(&format!("arena       {:.3} GiB, {} bytes", gib(report.arena_bytes), report.arena_bytes));
    out(&format!("  level     {}", report.level));
    out(&format!("state       {:.3} GiB", gib(report.state_bytes)));
    if report.used_bytes > 0 {
        out(&format!("card        {:.3} GiB in use", gib(report.used_bytes)));
    }
    out(&format!("preparation {:.1} s", report.preparation_s));
}

fn print_profile(profile: &Profile, rows: usize) {
    out("");
    out(&format!(
        "single ops: {:.2} ms, bound {:.2} ms; rates: {}",
        profile.ms, profile.bound_ms, profile.peaks.source
    ));
    out(&format!("{:>9} {:>9} {:>9} {:>5} {:>5}  {}", "lost ms", "ms", "bound ms", "ratio", "ops", "kind"));
    for kind in &profile.kinds {
        let ratio = kind.bound_ms / kind.ms;
        out(&format!(
            "{:>9.3} {:>9.3} {:>9.3} {ratio:>5.2} {:>5}  {}",
            kind.lost_ms, kind.ms, kind.bound_ms, kind.count, kind.kind
        ));
    }
    out("");
    out(&format!(
        "{:>9} {:>9} {:>9} {:>5} {:>5}  {}",
        "lost ms", "ms", "bound ms", "ratio", "ops", "op, shape, by, first"
    ));
    for row in profile.rows.iter().take(rows) {
        out(&format!(
            "{:>9.3} {:>9.3} {:>9.3} {:>5.2} {:>5}  {} {}, {}, {}",
            row.lost_ms, row.ms, row.bound_ms, row.ratio, row.count, row.op, row.shape, row.server, row.scope
        ));
    }
}
