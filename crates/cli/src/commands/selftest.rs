//! `yolov9 selftest`.

use crate::console::{Bar, clock, out};
use crate::failure::Failure;
use bench::Numbers;
use bench::selftest::{Event, Row, SelfTestOptions, selftest};
use clap::Args;

#[derive(Debug, Args)]
pub struct SelftestArgs {
    /// Where to compute: the number of a GPU, or cpu
    #[arg(long, default_value = "0")]
    device: String,
    /// Number formats, separated by commas: f32, tf32, bf16, f16 [default: f32,bf16,f16; f32 on the CPU]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    precision: Vec<Numbers>,
    /// Only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Seed of weights and pictures
    #[arg(long, value_name = "N", default_value_t = SelfTestOptions::default().seed)]
    seed: u64,
    /// Choose the fastest way to compute each convolution first, as training does
    #[arg(long)]
    tune: bool,
}

/// Runs the self-test and prints a row for each part.
///
/// # Errors
/// A device that is not there, and results beyond their bounds.
pub fn run(args: SelftestArgs) -> Result<(), Failure> {
    let defaults = SelfTestOptions::default();
    let numbers = match args.precision {
        given if !given.is_empty() => given,
        _ if args.device.trim().eq_ignore_ascii_case("cpu") => vec![Numbers::F32],
        _ => defaults.numbers,
    };
    let options = SelfTestOptions { device: args.device, numbers, seed: args.seed, only: args.only, tune: args.tune };
    let mut bar = Bar::default();
    let rows = selftest(&options, &mut |event| match event {
        Event::Device(name) => {
            out(&format!("self-test of {name} against the processor in float64, seed {}", options.seed));
            out(&header());
        }
        Event::Progress(p) => {
            let left = p.left.map_or(String::new(), |left| format!(", about {} left", clock(left)));
            bar.show(p.done, p.total, &format!("{} {}{left}", p.name, p.numbers.name()));
        }
        Event::Row(row) => bar.print(&line(row)),
    })?;
    bar.clear();
    let missed = rows.iter().filter(|row| !row.ok()).count();
    match (rows.len(), missed) {
        (0, _) => Err(Failure::usage("no test has such a name", "leave --only out for all of them")),
        (all, 0) => {
            out(&format!("all {all} within their bounds"));
            Ok(())
        }
        (all, missed) => Err(Failure::new(format!("{missed} of {all} results are beyond their bounds"), None)),
    }
}

fn header() -> String {
    format!("{:<4} {:<5} {:>9} {:>9}  {:<48} {}", "", "", "error", "bound", "what", "where the error is")
}

fn line(row: &Row) -> String {
    let verdict = if row.ok() { "ok" } else { "MISS" };
    let (error, bound) = (row.error, row.bound);
    format!("{verdict:<4} {:<5} {error:>9.1e} {bound:>9.1e}  {:<48} {}", row.numbers.name(), row.name, row.tensor)
        .trim_end()
        .to_owned()
}
