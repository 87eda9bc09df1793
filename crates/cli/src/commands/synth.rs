//! `yolov9 synth`.

use super::saved_to;
use crate::console::{Bar, clock, out, words};
use crate::failure::Failure;
use clap::Args;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use synth::{SetOptions, SetReport, SynthError};

#[derive(Debug, Args)]
pub struct SynthArgs {
    /// Folder to write to, new or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Pictures for training
    #[arg(long, value_name = "N")]
    images: usize,
    /// Pictures for validation, 0 for none [default: a twentieth of --images, at least 1]
    #[arg(long, value_name = "N")]
    val: Option<usize>,
    /// Classes, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 80)]
    classes: usize,
    /// Seed of pictures and labels
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Draws a set of pictures with labels.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: SynthArgs) -> Result<(), Failure> {
    let options = SetOptions {
        folder: args.out,
        train: args.images,
        val: args.val.unwrap_or((args.images / 20).max(1)),
        classes: args.classes,
        seed: args.seed,
    };
    let start = Instant::now();
    let report = write(&options, start)?;
    let pictures = report.pictures as f64;
    out(&format!(
        "{} pictures for training and {} for validation, {:.1} kB and {:.1} boxes each on average, {} classes",
        options.train,
        options.val,
        report.bytes as f64 / pictures / 1e3,
        report.boxes as f64 / pictures,
        options.classes
    ));
    let took = start.elapsed();
    out(&format!(
        "took {}, {:.0} pictures/s; the data YAML: {}",
        words(took),
        pictures / took.as_secs_f64(),
        report.yaml.display()
    ));
    saved_to(&options.folder);
    Ok(())
}

/// Draws on the threads of the pool, and a bar from this one.
fn write(options: &SetOptions, start: Instant) -> Result<SetReport, SynthError> {
    let (done, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let note = |at: usize, of: usize| {
        total.store(of, Ordering::Relaxed);
        done.fetch_max(at, Ordering::Relaxed);
    };
    let mut bar = Bar::default();
    std::thread::scope(|scope| {
        let work = scope.spawn(|| synth::write(options, &note));
        while !work.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
            if done > 0 {
                let left = start.elapsed().mul_f64((total - done) as f64 / done as f64);
                bar.show(done, total, &format!("drawing pictures, {} left", clock(left)));
            }
        }
        bar.clear();
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
