//! The scan's cache: what was found about each image and label file, kept until either changes.
//!
//! One file per list of folders, beside the labels' folder where that can be written, else in the user's
//! cache folder. It is a header line (version, settings, checksum) and JSON. Anything unexpected in it
//! means scanning again, never an error.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Problem;
use crate::labels::ParsedLabels;

/// Raised whenever the meaning of an entry changes.
const VERSION: u32 = 2;
/// A file changed this shortly before the scan may change again within one tick of the file system's clock.
const FRESH_NANOS: i64 = 2_000_000_000;

/// Size and time of change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub changed: i64,
}

impl Stamp {
    /// The file's stamp now; `None` if it is not there.
    pub fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self { size: meta.len(), changed: meta.modified().map(nanos).unwrap_or(0) })
    }

    /// Changed so shortly before `now` (nanoseconds since 1970) that it may change again within one tick of the clock.
    pub fn is_fresh(&self, now: i64) -> bool {
        self.changed >= now.saturating_sub(FRESH_NANOS)
    }
}

fn nanos(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

/// What the scan found out about one image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Finding {
    /// Usable; sizes are those of the upright picture. No rows = background.
    Good { width: u32, height: u32, labels: ParsedLabels },
    /// Left out.
    Bad { problem: Problem, labels: ParsedLabels },
}

/// One image of a scan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The image file.
    pub image: PathBuf,
    /// Its stamp when it was scanned.
    pub image_stamp: Stamp,
    /// The label file and its stamp, if there is one.
    pub label: Option<(PathBuf, Stamp)>,
    /// The label file lies beside an image of a folder `images`, where it is not expected.
    pub neighbour: bool,
    /// Scanned so soon after a change that it is not believed a second time.
    pub fresh: bool,
    /// The result.
    pub finding: Finding,
}

impl Entry {
    /// True while neither file has changed.
    pub fn is_current(&self, image_stamp: Stamp, label: Option<&(PathBuf, Stamp)>) -> bool {
        !self.fresh && self.image_stamp == image_stamp && self.label.as_ref() == label
    }

    /// Marks entries whose files changed just before `now` (nanoseconds since 1970).
    pub fn mark_fresh(&mut self, now: i64) {
        self.fresh = self.image_stamp.is_fresh(now) || self.label.as_ref().is_some_and(|(_, s)| s.is_fresh(now));
    }

    /// Whether the numbers are what a scan can produce.
    fn is_plausible(&self) -> bool {
        let labels = match &self.finding {
            Finding::Good { width, height, labels } if *width > 0 && *height > 0 => labels,
            Finding::Good { .. } => return false,
            Finding::Bad { labels, .. } => labels,
        };
        let inside = |v: f32| (0.0..=1.0).contains(&v);
        labels.segments.len() == labels.labels.len()
            && labels.lines.len() == labels.labels.len()
            && labels.labels.iter().all(|l| [l.cx, l.cy, l.w, l.h].into_iter().all(inside))
            && labels.segments.iter().flatten().all(|p| p.len() >= 3 && p.iter().flatten().all(|&v| inside(v)))
    }
}

/// Nanoseconds since 1970.
pub fn now_nanos() -> i64 {
    nanos(SystemTime::now())
}

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    settings: String,
    sha256: String,
}

/// Hex of the SHA-256 of some parts, kept apart from one another.
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// Where the cache of a list may lie, best place first.
pub fn candidates(labels_folder: &Path, key: &str, user_folder: Option<&Path>) -> Vec<PathBuf> {
    let key = &key[..key.len().min(12)];
    let stem = labels_folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_else(|| "labels".into());
    let name = format!("{stem}.{key}.yolov9-scan");
    let beside = labels_folder.parent().map(|p| p.join(&name));
    beside.into_iter().chain(user_folder.map(|p| p.join(&name))).collect()
}

/// Entries of the first readable cache made with these settings, by image. Damaged files count as absent.
pub fn read(places: &[PathBuf], settings: &str) -> HashMap<PathBuf, Entry> {
    places.iter().find_map(|p| read_one(p, settings)).unwrap_or_default()
}

fn read_one(path: &Path, settings: &str) -> Option<HashMap<PathBuf, Entry>> {
    let bytes = crate::decode::read_file(path).ok()?;
    let split = bytes.iter().position(|&b| b == b'\n')?;
    let header: Header = serde_json::from_slice(&bytes[..split]).ok()?;
    let body = &bytes[split + 1..];
    if header.version != VERSION || header.settings != settings || header.sha256 != digest([body]) {
        return None;
    }
    let entries: Vec<Entry> = serde_json::from_slice(body).ok()?;
    Some(entries.into_iter().filter(Entry::is_plausible).map(|e| (e.image.clone(), e)).collect())
}

/// Writes the cache to the first place that takes it, through a temporary file, and says where that is.
pub fn write(places: &[PathBuf], settings: &str, entries: &[Entry]) -> Option<PathBuf> {
    // JSON has no text for paths that are not Unicode; those images are scanned each time.
    let entries: Vec<&Entry> = entries
        .iter()
        .filter(|e| e.image.to_str().is_some() && e.label.as_ref().is_none_or(|(p, _)| p.to_str().is_some()))
        .collect();
    let body = serde_json::to_vec(&entries).ok()?;
    let header = Header { version: VERSION, settings: settings.to_string(), sha256: digest([body.as_slice()]) };
    let header = serde_json::to_vec(&header).ok()?;
    places.iter().enumerate().find_map(|(i, path)| {
        let folder = path.parent()?;
        if i > 0 {
            // Only the user's own cache folder is made; nothing is added to a data set but the file.
            std::fs::create_dir_all(folder).ok()?;
        }
        // A folder without write permission is left alone even by those whom permissions do not stop.
        if std::fs::metadata(folder).ok()?.permissions().readonly() {
            return None;
        }
        let mut file = tempfile::Builder::new().prefix(".scan-").tempfile_in(folder).ok()?;
        file.write_all(&header).ok()?;
        file.write_all(b"\n").ok()?;
        file.write_all(&body).ok()?;
        file.as_file().sync_all().ok()?;
        file.persist(path).ok()?;
        Some(path.clone())
    })
}
