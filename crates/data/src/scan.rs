//! The scan: every image and label file of a split is checked once, in parallel, and the flaws are named.
//!
//! Image and label files are only read. By default each image is decoded in full, because nothing less
//! finds a truncated one; the cache makes that a cost of the first run.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::cache::{self, Entry, Finding, Stamp};
use crate::decode::{self, ImageLimits};
use crate::error::{DataError, Problem};
use crate::labels::{Label, MAX_LABEL_BYTES, ParsedLabels, Polygon, parse_labels};
use crate::listing;

/// One usable image.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The image file.
    pub path: PathBuf,
    /// Width of the upright picture in pixels.
    pub width: u32,
    /// Height of the upright picture in pixels.
    pub height: u32,
    /// Boxes as fractions of the picture; none = background.
    pub labels: Vec<Label>,
    /// The outline of each row that has one (fractions); as long as `labels`.
    pub segments: Vec<Option<Polygon>>,
}

/// How far an image is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Only the header; damage shows when the image is first loaded.
    Header,
    /// Decoded in full, and JPEG files a second time to find truncated ones.
    Pixels,
}

/// What is checked and what for.
pub struct ScanOptions<'a> {
    /// Class names of the data set.
    pub names: &'a [String],
    /// For training there must be labels; for validation backgrounds are enough.
    pub for_training: bool,
    /// All classes become class 0.
    pub single_cls: bool,
    /// Images with fewer labels are left out.
    pub min_items: usize,
    /// How far images are checked.
    pub verify: Verify,
    /// Bounds for pictures.
    pub limits: ImageLimits,
    /// Reads and writes the cache.
    pub use_cache: bool,
    /// Where the cache goes when it cannot lie beside the labels; `None` = the user's cache folder.
    pub cache_folder: Option<PathBuf>,
    /// Called from several threads with (images done, images in all).
    pub progress: Option<&'a (dyn Fn(usize, usize) + Sync)>,
    /// Asked before each image, from several threads; `true` ends the scan with [`DataError::Interrupted`].
    pub stop: Option<&'a (dyn Fn() -> bool + Sync)>,
}

impl<'a> ScanOptions<'a> {
    /// Full checks with the cache.
    pub fn new(names: &'a [String], for_training: bool) -> Self {
        Self {
            names,
            for_training,
            single_cls: false,
            min_items: 0,
            verify: Verify::Pixels,
            limits: ImageLimits::default(),
            use_cache: true,
            cache_folder: None,
            progress: None,
            stop: None,
        }
    }
}

/// Counts and named flaws of a scan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScanReport {
    /// Images listed.
    pub images: usize,
    /// Usable images with at least one label.
    pub labelled: usize,
    /// Usable images without a label.
    pub backgrounds: usize,
    /// Backgrounds that have no label file at all.
    pub without_file: usize,
    /// Images left out because image or labels cannot be used.
    pub dropped: usize,
    /// Images left out by `min_items`.
    pub below_min_items: usize,
    /// Labels in the usable images.
    pub boxes: usize,
    /// Rows dropped.
    pub bad_rows: usize,
    /// Equal rows removed.
    pub duplicates: usize,
    /// Coordinates clipped to the picture.
    pub clipped: usize,
    /// Label files found beside images below a folder `images`.
    pub neighbours: usize,
    /// Images whose result came from the cache.
    pub from_cache: usize,
    /// Dot files and the like that were passed over.
    pub ignored: usize,
    /// Where the cache lies.
    pub cache: Option<PathBuf>,
    /// Every named flaw, in the order of the images.
    pub problems: Vec<Problem>,
}

/// The result of a scan.
#[derive(Clone, Debug, PartialEq)]
pub struct Scanned {
    /// Usable images, sorted by path.
    pub samples: Vec<Sample>,
    /// Counts and flaws.
    pub report: ScanReport,
}

/// Scans folders and list files (as a [`crate::Dataset`] names them; `root` is its folder). Besides what is
/// wrong with the data, [`DataError::Interrupted`] where [`ScanOptions::stop`] asked for it.
pub fn scan(places: &[PathBuf], root: &Path, options: &ScanOptions) -> Result<Scanned, DataError> {
    let listing = listing::list_images(places, root)?;
    let places_text = places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
    let mut report = ScanReport { images: listing.images.len(), ignored: listing.ignored, ..Default::default() };
    report.problems = listing.problems;

    let settings = settings_key(options);
    let key = places_key(places);
    let labels_folder = listing::label_path(&listing.images[0]).parent().map(Path::to_path_buf).unwrap_or_default();
    let user = options.cache_folder.clone().or_else(files::user_cache_folder);
    let cache_places = cache::candidates(&labels_folder, &key, user.as_deref());
    let known = if options.use_cache { cache::read(&cache_places, &settings) } else { HashMap::new() };

    let started = cache::now_nanos();
    let done = AtomicUsize::new(0);
    let hits = AtomicUsize::new(0);
    let total = listing.images.len();
    let found: Vec<Option<Entry>> = listing
        .images
        .par_iter()
        .map(|image| {
            if options.stop.is_some_and(|stop| stop()) {
                return None;
            }
            let entry = entry_of(image, &known, options, started, &hits);
            let count = done.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(progress) = options.progress {
                progress(count, total);
            }
            Some(entry)
        })
        .collect();
    let checked = found.iter().flatten().count();
    if checked < total {
        if options.use_cache {
            // What an earlier scan knew of the images that were not reached is kept.
            let images = listing.images.iter().zip(found);
            let kept = images.filter_map(|(image, entry)| entry.or_else(|| known.get(image).cloned()));
            cache::write(&cache_places, &settings, &kept.collect::<Vec<_>>());
        }
        return Err(DataError::Interrupted { done: checked, images: total });
    }
    let entries: Vec<Entry> = found.into_iter().flatten().collect();
    report.from_cache = hits.into_inner();
    if options.use_cache {
        let unchanged = report.from_cache == total && known.len() == total;
        report.cache = if unchanged {
            cache_places.iter().find(|p| p.is_file()).cloned()
        } else {
            cache::write(&cache_places, &settings, &entries)
        };
    }
    warn_shared_labels(&entries, &mut report);
    let samples = finish(entries, options, &places_text, &mut report)?;
    Ok(Scanned { samples, report })
}

/// Images that two splits have in common, as paths of the first.
pub fn shared_images(a: &[Sample], b: &[Sample]) -> Vec<PathBuf> {
    let canonical = |p: &Path| p.canonicalize().unwrap_or_else(|_| p.to_path_buf());
    let of_b: HashSet<PathBuf> = b.iter().map(|s| canonical(&s.path)).collect();
    a.iter().map(|s| &s.path).filter(|p| of_b.contains(&canonical(p))).cloned().collect()
}

fn settings_key(options: &ScanOptions) -> String {
    let limits = options.limits;
    let head = format!("{:?} {} {}", options.verify, limits.max_pixels, limits.min_side);
    cache::digest(std::iter::once(head.as_bytes()).chain(options.names.iter().map(|n| n.as_bytes())))
}

fn places_key(places: &[PathBuf]) -> String {
    let paths: Vec<String> =
        places.iter().map(|p| p.canonicalize().unwrap_or_else(|_| p.clone()).to_string_lossy().into_owned()).collect();
    cache::digest(paths.iter().map(|p| p.as_bytes()))
}

fn entry_of(
    image: &Path,
    known: &HashMap<PathBuf, Entry>,
    options: &ScanOptions,
    started: i64,
    hits: &AtomicUsize,
) -> Entry {
    let found = listing::find_label(image);
    let neighbour = found.as_ref().is_some_and(|(_, n)| *n);
    let label = found.and_then(|(path, _)| Stamp::of(&path).map(|stamp| (path, stamp)));
    let image_stamp = Stamp::of(image).unwrap_or(Stamp { size: 0, changed: 0 });
    if let Some(entry) = known.get(image).filter(|e| e.is_current(image_stamp, label.as_ref())) {
        hits.fetch_add(1, Ordering::Relaxed);
        return entry.clone();
    }
    let label_file = label.as_ref().map(|(p, _)| p.as_path());
    // A decoder that panics costs the file that made it panic, not the run.
    let finding = catch_unwind(AssertUnwindSafe(|| examine(image, label_file, options))).unwrap_or_else(|_| {
        let problem = Problem::of_file(image, "the decoder failed on this file; the image is left out");
        Finding::Bad { problem, labels: ParsedLabels::default() }
    });
    let mut entry = Entry { image: image.to_path_buf(), image_stamp, label, neighbour, fresh: false, finding };
    entry.mark_fresh(started);
    entry
}

fn examine(image: &Path, label: Option<&Path>, options: &ScanOptions) -> Finding {
    let labels = match label.map(|file| read_labels(file, options.names)).transpose() {
        Ok(labels) => labels.unwrap_or_default(),
        Err(problem) => {
            let problem = Problem { reason: format!("{}; the image is left out", problem.reason), ..problem };
            return Finding::Bad { problem, labels: ParsedLabels::default() };
        }
    };
    let size = decode::read_file(image).and_then(|bytes| match options.verify {
        Verify::Header => decode::probe(image, &bytes, &options.limits).map(|h| (h.width, h.height)),
        Verify::Pixels => decode::decode_verified(image, &bytes, &options.limits).map(|p| (p.width, p.height)),
    });
    match size {
        Err(e) => {
            let problem = e.to_problem(image);
            Finding::Bad { problem: Problem { reason: format!("{}; left out", problem.reason), ..problem }, labels }
        }
        Ok(_) if labels.is_unusable() => {
            let file = label.unwrap_or(image);
            let reason = format!("none of its {} rows can be used; the image is left out", labels.bad_rows);
            Finding::Bad { problem: Problem::of_file(file, reason), labels }
        }
        Ok((width, height)) => Finding::Good { width, height, labels },
    }
}

fn read_labels(file: &Path, names: &[String]) -> Result<ParsedLabels, Problem> {
    let size = std::fs::metadata(file).map(|m| m.len()).unwrap_or(0);
    if size > MAX_LABEL_BYTES {
        return Err(Problem::of_file(
            file,
            format!("{size} bytes are too many for a label file (limit {MAX_LABEL_BYTES})"),
        ));
    }
    let bytes = decode::read_file(file).map_err(|e| e.to_problem(file))?;
    parse_labels(file, &bytes, names)
}

/// One label file read by two images (a.jpg and a.png): one of them is wrong.
fn warn_shared_labels(entries: &[Entry], report: &mut ScanReport) {
    let mut owner: HashMap<&Path, &Path> = HashMap::new();
    for entry in entries {
        let Some((label, _)) = &entry.label else { continue };
        if let Some(first) = owner.insert(label, &entry.image).filter(|first| *first != entry.image) {
            let reason = format!("is the label file of both {} and {}", first.display(), entry.image.display());
            report.problems.push(Problem::of_file(label, reason));
        }
    }
}

fn finish(
    entries: Vec<Entry>,
    options: &ScanOptions,
    places: &str,
    report: &mut ScanReport,
) -> Result<Vec<Sample>, DataError> {
    let nc = options.names.len();
    let mut samples = Vec::with_capacity(entries.len());
    let mut out_of_range: Option<(PathBuf, u32, u32)> = None;
    let mut others = 0;
    let mut first_bad = None;
    let mut label_files = 0;
    let example = entries.first().map(|e| e.image.clone()).unwrap_or_default();
    for entry in entries {
        report.neighbours += usize::from(entry.neighbour);
        label_files += usize::from(entry.label.is_some());
        let (found, labels) = match entry.finding {
            Finding::Good { width, height, labels } => (Some((width, height)), labels),
            Finding::Bad { problem, labels } => {
                report.problems.extend(labels.problems.iter().cloned());
                report.bad_rows += labels.bad_rows;
                report.dropped += 1;
                first_bad.get_or_insert_with(|| problem.clone());
                report.problems.push(problem);
                (None, ParsedLabels::default())
            }
        };
        let Some((width, height)) = found else { continue };
        report.problems.extend(labels.problems);
        report.bad_rows += labels.bad_rows;
        report.duplicates += labels.duplicates;
        report.clipped += labels.clipped;
        let mut rows = labels.labels;
        if options.single_cls {
            rows.iter_mut().for_each(|l| l.class = 0);
        } else {
            for (label, line) in rows.iter().zip(&labels.lines).filter(|(l, _)| l.class as usize >= nc) {
                match &out_of_range {
                    None => {
                        let file = entry.label.as_ref().map_or_else(|| entry.image.clone(), |(p, _)| p.clone());
                        out_of_range = Some((file, *line, label.class));
                    }
                    Some(_) => others += 1,
                }
            }
        }
        if rows.len() < options.min_items {
            report.below_min_items += 1;
            continue;
        }
        if rows.is_empty() {
            report.backgrounds += 1;
            report.without_file += usize::from(entry.label.is_none());
        } else {
            report.labelled += 1;
            report.boxes += rows.len();
        }
        samples.push(Sample { path: entry.image, width, height, labels: rows, segments: labels.segments });
    }
    if let Some((file, line, class)) = out_of_range {
        return Err(DataError::ClassOutOfRange { file, line: line as usize, class, nc, others });
    }
    if report.neighbours > 0 {
        let reason = format!(
            "{} images below a folder `images` have their .txt beside them and not below `labels`; those are used",
            report.neighbours
        );
        report.problems.push(Problem::of_file(&example, reason));
    }
    if samples.is_empty() {
        return Err(match first_bad {
            Some(first) => DataError::AllImagesBad { places: places.to_string(), count: report.images, first },
            None => DataError::NoImages {
                places: places.to_string(),
                hint: Some(format!("every image has fewer than {} labels (min_items)", options.min_items)),
            },
        });
    }
    if options.for_training && report.labelled == 0 {
        let image = &samples[0].path;
        let expected_label = listing::label_path(image);
        return Err(if label_files == 0 {
            DataError::NoLabels { images: samples.len(), example_image: image.clone(), expected_label }
        } else {
            DataError::OnlyBackgrounds { images: samples.len(), expected_label }
        });
    }
    Ok(samples)
}
