//! The images of a run: data YAML, scan with progress, what is told about them, and the loader's settings.

use crate::device::Device;
use crate::footprint::{self, Room};
use crate::options::Cache;
use crate::{Observer, Progress, TrainError, Workers};
use data::decode::ImageLimits;
use data::disk_cache::{self, Contents, DiskCache};
use data::{CacheMode, DataError, Dataset, ImagePool, LoaderOptions, Purpose, Sample, ScanOptions, ScanReport, Split};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes of pictures that stay in memory without `--cache`, where there is room, even if the window needs fewer.
const SMALL_CACHE: u64 = 256 << 20;
/// Problems that are named one by one; the others are counted.
const MAX_NAMED: usize = 50;

/// Which pictures are to stay in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheWish {
    /// As [`crate::cache_choice::settle`] says.
    pub cache: Cache,
    /// Images that the partners of a mosaic come from; `None` without mosaics.
    pub partners: Option<usize>,
    /// Images of the batches that are being made.
    pub on_the_way: usize,
}

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

/// Names of the classes in a data YAML.
///
/// # Errors
/// No such file, or what is wrong with it.
pub fn load_class_names(yaml: &Path, observer: &mut dyn Observer) -> Result<Vec<String>, TrainError> {
    Ok(load_dataset(yaml, observer)?.names)
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
    let stop = AtomicBool::new(false);
    let asked = || stop.load(Ordering::Relaxed);
    let options = ScanOptions {
        single_cls: wish.single_cls,
        min_items: wish.min_items,
        progress: Some(&note),
        stop: Some(&asked),
        ..ScanOptions::new(&dataset.names, wish.for_training)
    };
    let split = wish.split.key();
    // The scan reports from many threads; the observer hears from this one.
    let scanned = std::thread::scope(|scope| {
        let work = scope.spawn(|| data::scan(places, &dataset.root, &options));
        while !work.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
            if observer.should_stop() {
                stop.store(true, Ordering::Relaxed);
            }
            let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
            if total > 0 && done < total {
                observer.progress(&Progress::Scan { split, done, total });
            }
        }
        work.join()
    });
    let scanned = scanned.map_err(|_| DataError::LoaderStopped { reason: "the scan failed".into() })?;
    if let Err(DataError::Interrupted { .. }) = scanned {
        return Err(TrainError::Stopped { what: "the scan" });
    }
    let scanned = scanned?;
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

/// Where [`Cache::Disk`] keeps the pictures of a data set.
#[derive(Clone, Debug)]
pub(crate) struct PictureFolder {
    folder: PathBuf,
    train: String,
    val: String,
}

impl PictureFolder {
    /// Below `folder`, or below the user's cache folder.
    ///
    /// # Errors
    /// No folder is named and the environment does not say where the user's caches are.
    pub fn of(dataset: &Dataset, folder: Option<PathBuf>) -> Result<Self, TrainError> {
        let usual = || files::user_cache_folder().map(|folder| disk_cache::pictures_folder(&folder));
        let folder = folder.or_else(usual).ok_or_else(|| {
            let hint = "set HOME or XDG_CACHE_HOME, or take --cache ram";
            TrainError::option("cache", "the user's cache folder is not known", Some(hint))
        })?;
        let name = |split| match dataset.has(split) {
            true => Ok::<_, DataError>(disk_cache::set_name(&dataset.root, dataset.split(split)?)),
            false => Ok(String::new()),
        };
        Ok(Self { folder, train: name(Split::Train)?, val: name(Split::Val)? })
    }

    /// Opens the caches of both parts, tells what they hold, and checks that the rest fits.
    fn open(
        &self,
        train: &[Sample],
        val: Option<&[Sample]>,
        side: u32,
        observer: &mut dyn Observer,
    ) -> Result<(DiskCache, Option<DiskCache>), TrainError> {
        let open = |set: &str, samples: &[Sample], purpose| DiskCache::open(&self.folder, set, samples, side, purpose);
        let (train, of_train) = open(&self.train, train, Purpose::Train);
        let (val, of_val) = match val.map(|samples| open(&self.val, samples, Purpose::Validate)) {
            Some((cache, contents)) => (Some(cache), contents),
            None => (None, Contents::default()),
        };
        let sum = |part: fn(&Contents) -> u64| part(&of_train) + part(&of_val);
        let (bytes, missing, free) = (sum(|c| c.bytes), sum(|c| c.missing), disk_cache::free_space(&self.folder));
        disk_cache::check_space(&self.folder, missing, free)?;
        let free = free.map_or(String::new(), |free| format!(" of {} that are free", footprint::size(free)));
        let dropped = match of_train.dropped + of_val.dropped {
            0 => String::new(),
            count => format!("; {count} outdated ones were removed"),
        };
        observer.info(&format!(
            "pictures on disk in {}: {} in all, {} to be written{free}{dropped}",
            self.folder.display(),
            footprint::size(bytes),
            footprint::size(missing),
        ));
        Ok((train, val))
    }
}

/// The pools of a run, training and validation, which share the room that its plans leave.
///
/// # Errors
/// Pictures that are to lie on disk and do not fit there.
pub(crate) fn pools(
    train: Arc<Vec<Sample>>,
    val: Option<Arc<Vec<Sample>>>,
    size: usize,
    wish: CacheWish,
    disk: Option<PictureFolder>,
    room: Room,
    observer: &mut dyn Observer,
) -> Result<(Arc<ImagePool>, Option<Arc<ImagePool>>), TrainError> {
    let side = u32::try_from(size).unwrap_or(u32::MAX);
    let all = |samples: &[Sample]| samples.iter().map(|s| ImagePool::picture_bytes(s, side)).sum::<u64>();
    let (train_need, val_need) = (all(&train), val.as_ref().map_or(0, |v| all(v)));
    let free = room.for_pictures();
    let (train_mode, val_mode);
    if wish.cache != Cache::Ram {
        // A window's pictures and those of the batches on their way, at the mean size of a picture.
        let images = wish.partners.map_or(0, |w| w.min(train.len()) + wish.on_the_way).min(train.len());
        let window = (train_need as f64 * images as f64 / train.len().max(1) as f64).ceil() as u64;
        let most = free.map_or(SMALL_CACHE, |free| free / 4);
        let bytes = window.max(SMALL_CACHE).min(most);
        if bytes < window.min(train_need) && !matches!(wish.cache, Cache::Disk | Cache::Gpu) {
            observer.info(&format!(
                "mosaics draw from {images} images of {}, {} are free for them: images are decoded several times an \
                 epoch (--partners window:N with fewer images, or --cache ram)",
                footprint::size(window),
                footprint::size(bytes)
            ));
        }
        train_mode = mode_of(bytes, train_need);
        // Validation passes over a set in order: the first pictures of a pass are worth as much as the last.
        let small = SMALL_CACHE.min(most.saturating_sub(bytes.min(train_need)));
        let val_bytes = match wish.cache {
            Cache::Val | Cache::Gpu => val_need.min(free.unwrap_or(SMALL_CACHE).saturating_sub(bytes.min(train_need))),
            _ => small,
        };
        if wish.cache == Cache::Val && val_bytes < val_need {
            observer.warn(&format!(
                "--cache val: all pictures need {}, {} are free for them: the others are read each time",
                footprint::size(val_need),
                footprint::size(val_bytes)
            ));
        }
        val_mode = CacheMode::Ram { bytes: val_bytes };
    } else {
        let free = free.unwrap_or(SMALL_CACHE);
        let train_bytes = train_need.min(free);
        let val_bytes = val_need.min(free - train_bytes);
        if train_need + val_need > free {
            observer.warn(&format!(
                "--cache: all pictures need {}, {} are free for them: the others are read each time",
                footprint::size(train_need + val_need),
                footprint::size(free)
            ));
        }
        train_mode = mode_of(train_bytes, train_need);
        val_mode = CacheMode::Ram { bytes: val_bytes };
    }
    let (train_disk, val_disk) = match disk {
        Some(folder) => {
            let (train, val) = folder.open(&train, val.as_ref().map(|v| v.as_slice()), side, observer)?;
            (Some(train), val)
        }
        None => (None, None),
    };
    let pool = |samples, purpose, mode, disk: Option<DiskCache>| {
        let pool = ImagePool::new(samples, side, purpose, mode, ImageLimits::default());
        Arc::new(match disk {
            Some(disk) => pool.with_disk(disk),
            None => pool,
        })
    };
    Ok((
        pool(train, Purpose::Train, train_mode, train_disk),
        val.map(|v| pool(v, Purpose::Validate, val_mode, val_disk)),
    ))
}

/// A set that fits stays; of one that does not, what was used last, for mosaics draw from a window.
fn mode_of(bytes: u64, needed: u64) -> CacheMode {
    if needed <= bytes { CacheMode::Ram { bytes } } else { CacheMode::Recent { bytes } }
}

/// A pool for one pass over a set, which keeps nothing.
pub(crate) fn passing_pool(samples: Arc<Vec<Sample>>, size: usize) -> Arc<ImagePool> {
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    Arc::new(ImagePool::new(samples, size, Purpose::Validate, CacheMode::None, ImageLimits::default()))
}

/// Threads that the machine runs at once.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Threads that load images.
pub(crate) fn threads(workers: Workers, device: &Device, observer: &mut dyn Observer) -> usize {
    let cores = cores();
    match workers {
        Workers::Count(count) => loader_options(count).threads,
        Workers::Auto => {
            let threads = Workers::automatic(cores, matches!(device, Device::Card(_)));
            let why = if threads < cores { ", for the step needs them too" } else { "" };
            observer.info(&format!("--workers auto: {threads} of {cores} cores load images{why}"));
            threads
        }
    }
}

/// Threads and depth for `workers` threads, at most as many as the machine has.
pub(crate) fn loader_options(workers: usize) -> LoaderOptions {
    LoaderOptions { threads: workers.clamp(1, cores()), prefetch: LoaderOptions::PREFETCH }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    /// 100 training and 50 validation pictures of 100 x 100 pixels, 30 000 bytes each, with `bytes` free for pictures.
    fn modes(cache: Cache, partners: Option<usize>, bytes: u64) -> (CacheMode, CacheMode) {
        let sample = Sample { path: "a.png".into(), width: 100, height: 100, labels: vec![], segments: vec![] };
        let set = |n: usize| Arc::new(vec![sample.clone(); n]);
        let room = Room::new(Some(bytes / 4 * 5), &Device::Cpu).unwrap();
        let wish = CacheWish { cache, partners, on_the_way: 5 };
        let (train, val) = pools(set(100), Some(set(50)), 100, wish, None, room, &mut Silent).unwrap();
        (train.mode(), val.unwrap().mode())
    }

    #[test]
    fn both_pools_together_stay_within_the_free_memory() {
        let (train, val) = modes(Cache::Ram, None, 3_900_000);
        assert_eq!((train, val), (CacheMode::Ram { bytes: 3_000_000 }, CacheMode::Ram { bytes: 900_000 }));
        let (train, val) = modes(Cache::Ram, None, 1_000_000);
        assert_eq!((train, val), (CacheMode::Recent { bytes: 1_000_000 }, CacheMode::Ram { bytes: 0 }));
    }

    #[test]
    fn without_a_wish_a_quarter_of_the_free_memory_is_the_most() {
        let (train, val) = modes(Cache::None, Some(20), 4_000_000);
        assert_eq!((train, val), (CacheMode::Recent { bytes: 1_000_000 }, CacheMode::Ram { bytes: 0 }));
    }

    #[test]
    fn the_pictures_of_the_validation_stay_where_it_is_asked_for() {
        let (train, val) = modes(Cache::Val, Some(20), 3_000_000);
        assert_eq!((train, val), (CacheMode::Recent { bytes: 750_000 }, CacheMode::Ram { bytes: 1_500_000 }));
        let (_, val) = modes(Cache::Val, Some(20), 1_000_000);
        assert_eq!(val, CacheMode::Ram { bytes: 750_000 });
    }

    #[test]
    fn the_window_of_partners_fits_where_there_is_room_for_it() {
        let sample = Sample { path: "a.png".into(), width: 1000, height: 1000, labels: vec![], segments: vec![] };
        let set = Arc::new(vec![sample; 2000]);
        let wish = CacheWish { cache: Cache::None, partners: Some(1024), on_the_way: 16 };
        let room = Room::new(Some(64 << 30), &Device::Cpu).unwrap();
        let (train, _) = pools(set, None, 1000, wish, None, room, &mut Silent).unwrap();
        assert_eq!(train.mode(), CacheMode::Recent { bytes: 1040 * 3_000_000 });
    }
}
