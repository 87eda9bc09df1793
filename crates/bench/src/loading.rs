//! What the way of pictures from files to batches costs, stage by stage, and how many threads load how fast.
//!
//! Stages are measured alone, on pictures of the set's training part: reading with the system's cache emptied of the
//! files and again from it, decoding, resizing, rendering recipes, the loader as training runs it, and the copy to a card.

mod stages;
mod upload;

use crate::{BenchError, write_json};
use data::{Dataset, Sample, ScanOptions, Split};
use serde::Serialize;
use stages::Bench;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Pictures that stages other than the scan and the loader are measured on, at most; spread over the set.
const SAMPLE: usize = 2048;
/// Of these, pictures whose files are kept in memory for decoding, and decoded for resizing and rendering.
const DECODED: usize = 256;

/// What is measured.
#[derive(Clone, Debug)]
pub struct LoadingOptions {
    /// The data YAML.
    pub yaml: PathBuf,
    /// Side of the pictures in pixels.
    pub imgsz: usize,
    pub batch: usize,
    /// Numbers of threads that the loader is measured with.
    pub workers: Vec<usize>,
    /// Threads of `--workers auto`, told along with what was measured.
    pub auto: Auto,
    /// Seconds for each number of threads, at least; at least two batches are timed.
    pub seconds: f64,
    pub seed: u64,
}

/// Threads of `--workers auto` on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Auto {
    /// While a card computes.
    pub card: usize,
    /// While the CPU computes.
    pub cpu: usize,
}

/// The scan before training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScanTime {
    pub seconds: f64,
    /// Images that an earlier scan had checked.
    pub from_cache: usize,
    /// Seconds of the scan after it, when nothing has changed.
    pub again_seconds: f64,
}

/// One stage with one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// `read, cold`, `read, warm`, `decode`, `resize`, `render`, `loader`, `upload`.
    pub stage: &'static str,
    pub threads: usize,
    pub images: usize,
    pub seconds: f64,
    pub images_per_second: f64,
    /// 10^6 bytes a second: of files for reading and decoding, of pixels for the rest.
    pub megabytes_per_second: f64,
}

impl StageTime {
    fn new(stage: &'static str, threads: usize, images: usize, bytes: u64, seconds: f64) -> Self {
        let seconds = seconds.max(1e-9);
        Self {
            stage,
            threads,
            images,
            seconds,
            images_per_second: images as f64 / seconds,
            megabytes_per_second: bytes as f64 / seconds / 1e6,
        }
    }
}

/// A stage that was not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub stage: &'static str,
    pub reason: String,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LoadingReport {
    pub yaml: PathBuf,
    pub imgsz: usize,
    pub batch: usize,
    /// Threads that the system runs at once.
    pub cores: usize,
    /// Usable images of the training part.
    pub images: usize,
    /// Mean size of an image file.
    pub file_bytes: f64,
    pub scan: ScanTime,
    pub stages: Vec<StageTime>,
    pub skipped: Vec<Skipped>,
    pub auto: Auto,
    /// The fewest threads of the loader that reach 95 % of its best rate.
    pub enough: usize,
}

impl LoadingReport {
    /// The loader's rate with so many threads, where that was measured.
    pub fn loader_rate(&self, threads: usize) -> Option<f64> {
        self.loader().find(|s| s.threads == threads).map(|s| s.images_per_second)
    }

    fn loader(&self) -> impl Iterator<Item = &StageTime> {
        self.stages.iter().filter(|s| s.stage == "loader")
    }

    /// Writes everything as JSON, whole or not at all.
    ///
    /// # Errors
    /// What the system says of the file.
    pub fn write(&self, path: &Path) -> Result<(), BenchError> {
        write_json(path, self)
    }
}

/// Measures the loading of a data set. `note` hears what comes next.
///
/// The scan's cache is written as training does.
///
/// # Errors
/// What is wrong with the data set, threads that cannot be started.
pub fn loading(options: &LoadingOptions, note: &mut dyn FnMut(&str)) -> Result<LoadingReport, BenchError> {
    let dataset = Dataset::load(&options.yaml)?;
    note("scanning");
    let (samples, scan) = scan(&dataset)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let bench = Bench::new(Arc::clone(&samples), options, cores)?;
    let mut stages = Vec::new();
    let mut skipped = Vec::new();
    note("reading");
    match bench.read_cold() {
        Ok(time) => stages.push(time?),
        Err(reason) => skipped.push(Skipped { stage: "read, cold", reason }),
    }
    let warm = bench.read_warm()?;
    let file_bytes = warm.megabytes_per_second * 1e6 / warm.images_per_second;
    stages.push(warm);
    note("decoding");
    let decoded = bench.decode(&mut stages)?;
    note("resizing");
    match bench.resize(&decoded) {
        Some(time) => stages.push(time),
        None => {
            let reason = format!("pictures have a long side of {} already", options.imgsz);
            skipped.push(Skipped { stage: "resize", reason });
        }
    }
    note("rendering");
    bench.render(decoded, &mut stages)?;
    bench.loader(&mut stages, note)?;
    note("uploading");
    match upload::upload(options) {
        Ok(time) => stages.push(time),
        Err(reason) => skipped.push(Skipped { stage: "upload", reason }),
    }
    let mut report = LoadingReport {
        yaml: options.yaml.clone(),
        imgsz: options.imgsz,
        batch: options.batch,
        cores,
        images: samples.len(),
        file_bytes,
        scan,
        stages,
        skipped,
        auto: options.auto,
        enough: 0,
    };
    let best = report.loader().map(|s| s.images_per_second).fold(0.0, f64::max);
    let enough = report.loader().filter(|s| s.images_per_second >= 0.95 * best).map(|s| s.threads).min();
    report.enough = enough.unwrap_or(0);
    Ok(report)
}

fn scan(dataset: &Dataset) -> Result<(Arc<Vec<Sample>>, ScanTime), BenchError> {
    let places = dataset.split(Split::Train)?;
    let options = ScanOptions::new(&dataset.names, true);
    let start = Instant::now();
    let first = data::scan(places, &dataset.root, &options)?;
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    data::scan(places, &dataset.root, &options)?;
    let again_seconds = start.elapsed().as_secs_f64();
    Ok((Arc::new(first.samples), ScanTime { seconds, from_cache: first.report.from_cache, again_seconds }))
}
