//! The images of a run: data YAML, scan with progress, what is told about them, and the loader's settings.

use crate::options::Cache;
use crate::{Observer, Progress, TrainError};
use data::decode::ImageLimits;
use data::{CacheMode, Dataset, ImagePool, LoaderOptions, Purpose, Sample, ScanOptions, ScanReport, Split};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pictures that stay in memory whatever `--cache` says, in bytes.
const SMALL_CACHE: u64 = 256 << 20;
/// Problems that are named one by one; the others are counted.
const MAX_NAMED: usize = 50;

/// What a scan is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanWish {
    pub split: Split,
    pub for_training: bool,
    pub single_cls: bool,
    pub min_items: usize,
}

/// Loads a data YAML and tells its notes.
pub(crate) fn load_dataset(yaml: &Path, observer: &mut dyn Observer) -> Result<Dataset, TrainError> {
    if !yaml.is_file() {
        let hint = Some("it names the image folders (train, val) and the class names (names)".to_owned());
        return Err(TrainError::Missing { what: "the data YAML", path: yaml.to_path_buf(), hint });
    }
    let dataset = Dataset::load(yaml)?;
    for note in &dataset.notes {
        observer.warn(&format!("{}: {note}", yaml.display()));
    }
    Ok(dataset)
}

/// Scans one part of a data set and tells what was found.
pub(crate) fn scan(
    dataset: &Dataset,
    wish: ScanWish,
    observer: &mut dyn Observer,
) -> Result<(Arc<Vec<Sample>>, ScanReport), TrainError> {
    let places = dataset.split(wish.split)?;
    let (done, total) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let note = |at: usize, of: usize| {
        total.store(of, Ordering::Relaxed);
        done.fetch_max(at, Ordering::Relaxed);
    };
    let options = ScanOptions {
        single_cls: wish.single_cls,
        min_items: wish.min_items,
        progress: Some(&note),
        ..ScanOptions::new(&dataset.names, wish.for_training)
    };
    let split = wish.split.key();
    // The scan reports from many threads; the observer hears from this one.
    let scanned = std::thread::scope(|scope| {
        let work = scope.spawn(|| data::scan(places, &dataset.root, &options));
        while !work.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
            let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
            if total > 0 && done < total {
                observer.progress(&Progress::Scan { split, done, total });
            }
        }
        work.join()
    });
    let scanned = scanned.map_err(|_| data::DataError::LoaderStopped { reason: "the scan failed".into() })??;
    let total = scanned.report.images;
    observer.progress(&Progress::Scan { split, done: total, total });
    tell(split, &scanned.report, observer);
    Ok((Arc::new(scanned.samples), scanned.report))
}

fn tell(split: &str, report: &ScanReport, observer: &mut dyn Observer) {
    for problem in report.problems.iter().take(MAX_NAMED) {
        observer.warn(&problem.to_string());
    }
    if report.problems.len() > MAX_NAMED {
        observer.warn(&format!("and {} more problems like these", report.problems.len() - MAX_NAMED));
    }
    let mut line = format!(
        "{split}: {} images, {} with {} boxes, {} backgrounds, {} left out",
        report.images, report.labelled, report.boxes, report.backgrounds, report.dropped
    );
    let counts = [
        (report.bad_rows, "bad rows dropped"),
        (report.duplicates, "duplicate rows removed"),
        (report.below_min_items, "images below --min-items"),
    ];
    for (count, what) in counts.iter().filter(|c| c.0 > 0) {
        line += &format!(", {count} {what}");
    }
    if report.from_cache > 0 {
        line += &format!(" ({} checked before)", report.from_cache);
    }
    observer.info(&line);
}

/// Class counts and box sizes of a training part.
pub(crate) fn tell_labels(samples: &[Sample], names: &[String], observer: &mut dyn Observer) {
    let mut counts = vec![0usize; names.len()];
    let mut sides: Vec<f32> = Vec::new();
    for sample in samples {
        for label in &sample.labels {
            if let Some(count) = counts.get_mut(label.class as usize) {
                *count += 1;
            }
            // Side of the box relative to the long side, which is what the network's size refers to.
            let (w, h) = (label.w * sample.width as f32, label.h * sample.height as f32);
            sides.push((w * h).max(0.0).sqrt() / sample.width.max(sample.height).max(1) as f32);
        }
    }
    let mut order: Vec<usize> = (0..names.len()).collect();
    order.sort_by_key(|&c| std::cmp::Reverse(counts[c]));
    let shown: Vec<String> = order.iter().take(20).map(|&c| format!("{} {}", names[c], counts[c])).collect();
    let more = names.len().saturating_sub(20);
    let more = if more > 0 { format!(" and {more} more classes") } else { String::new() };
    observer.info(&format!("labels: {}{more}", shown.join(", ")));
    let absent = counts.iter().filter(|&&c| c == 0).count();
    if absent > 0 {
        observer.warn(&format!("{absent} of {} classes have no box in the training part", names.len()));
    }
    sides.sort_by(f32::total_cmp);
    if let (Some(&median), Some(&small)) = (sides.get(sides.len() / 2), sides.get(sides.len() / 10)) {
        observer.info(&format!(
            "boxes: median side {:.1} % of the picture, a tenth below {:.1} %",
            100.0 * median,
            100.0 * small
        ));
    }
}

/// A digest of the names and labels of a set, to notice that it changed between two sittings.
pub(crate) fn digest(samples: &[Sample]) -> String {
    // FNV-1a over 64 bits: a change must be noticed, nobody attacks it.
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut add =
        |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    for sample in samples {
        add(sample.path.file_name().unwrap_or_default().as_encoded_bytes());
        add(&[sample.width.to_le_bytes(), sample.height.to_le_bytes()].concat());
        for l in &sample.labels {
            add(&l.class.to_le_bytes());
            [l.cx, l.cy, l.w, l.h].iter().for_each(|v| add(&v.to_bits().to_le_bytes()));
        }
    }
    format!("{hash:016x}")
}

/// The pool that pictures come from.
pub(crate) fn pool(
    samples: Arc<Vec<Sample>>,
    size: usize,
    purpose: Purpose,
    cache: Cache,
    observer: &mut dyn Observer,
) -> Arc<ImagePool> {
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    let needed =
        ImagePool::new(Arc::clone(&samples), size, purpose, CacheMode::None, ImageLimits::default()).bytes_needed();
    let bytes = match cache {
        Cache::None => SMALL_CACHE,
        Cache::Ram | Cache::Disk => {
            if cache == Cache::Disk {
                observer.warn("--cache disk is not there yet; decoded pictures are kept in memory instead");
            }
            let room = available_memory().map_or(SMALL_CACHE, |free| free / 10 * 8);
            let gigabytes = |b: u64| b as f64 / f64::from(1 << 30);
            if needed > room {
                observer.warn(&format!(
                    "--cache ram: all pictures need {:.2} GiB, {:.2} GiB are free: the others are read each time",
                    gigabytes(needed),
                    gigabytes(room)
                ));
            }
            room
        }
    };
    // A set that does not fit keeps what was used last: mosaic partners come from a window of the order.
    let mode = if needed <= bytes { CacheMode::Ram { bytes } } else { CacheMode::Recent { bytes } };
    Arc::new(ImagePool::new(samples, size, purpose, mode, ImageLimits::default()))
}

/// Bytes that the system says are free for use.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

/// Threads and depth for `workers` threads, at most as many as the machine has.
pub(crate) fn loader_options(workers: usize) -> LoaderOptions {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    LoaderOptions { threads: workers.clamp(1, cores), prefetch: 3 }
}
