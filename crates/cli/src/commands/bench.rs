//! `yolov9 bench`.

use crate::console::{Bar, out};
use crate::failure::Failure;
use bench::Numbers;
use bench::step::{Profile, Spread, StepOptions, StepReport, step};
use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Time training steps on random pictures: forward, loss, backward, commit
    Step(StepArgs),
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
    /// Launch kernel by kernel, without a CUDA graph
    #[arg(long)]
    uncaptured: bool,
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

/// Most pixels of a side, as everywhere else.
const MAX_SIDE: usize = 16_384;

/// Times what was asked for.
///
/// # Errors
/// A device that is not there, a model or size that does not fit, no memory.
pub fn run(args: BenchArgs) -> Result<(), Failure> {
    let What::Step(args) = args.what;
    if !(1..=MAX_SIDE).contains(&args.imgsz) {
        let hint = "the sizes that models are trained for are about 320 to 1280";
        return Err(Failure::usage(format!("--img: {} must be between 1 and {MAX_SIDE}", args.imgsz), hint));
    }
    if args.batch_size == 0 || args.steps == 0 {
        return Err(Failure::usage("--batch and --steps must be at least 1", "leave them out for 64 and 20"));
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
        capture: !args.uncaptured,
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
    out(&format!("  host      {} to start a step", spread(&report.host_ms)));
    out(&format!("  upload    {} to write its batch", spread(&report.upload_ms)));
    out(&format!("images/s    {:.1}", report.images_per_second));
    out(&format!("loss        {:.4}", report.loss_value));
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    out(&format!("arena       {:.3} GiB, {} bytes", gib(report.arena_bytes), report.arena_bytes));
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
