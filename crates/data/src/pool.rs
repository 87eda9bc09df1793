//! Decoded pictures with their long side at the network's size, kept in memory when they fit, or on disk.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::decode::{self, ImageLimits};
use crate::disk_cache::{DiskCache, picture_wh};
use crate::error::{DataError, Problem};
use crate::letterbox::long_side_to;
use crate::picture::Picture;
use crate::resize::{Interpolation, resize};
use crate::scan::Sample;
use crate::times::{Clocks, LoadTimes};

/// What pictures are loaded for; it decides how they are shrunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Bilinear, shrinking or enlarging.
    Train,
    /// Area averages when shrinking, bilinear when enlarging.
    Validate,
}

/// Which pictures stay in memory. Only speed depends on it, never a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// None.
    None,
    /// The first ones, up to a number of bytes.
    Ram { bytes: u64 },
    /// The most recently loaded ones, up to a number of bytes (for a window of mosaic partners).
    Recent { bytes: u64 },
}

#[derive(Default)]
struct Kept {
    pictures: HashMap<usize, Arc<Picture>>,
    order: VecDeque<usize>,
    bytes: u64,
}

/// Loads pictures of a set for one network size.
pub struct ImagePool {
    samples: Arc<Vec<Sample>>,
    size: u32,
    purpose: Purpose,
    limits: ImageLimits,
    mode: CacheMode,
    disk: Option<DiskCache>,
    kept: Mutex<Kept>,
    failed: Mutex<BTreeMap<usize, Problem>>,
    decoded: AtomicUsize,
    clocks: Clocks,
}

impl ImagePool {
    /// A pool over the samples of a scan; `size` is the network's side in pixels.
    pub fn new(samples: Arc<Vec<Sample>>, size: u32, purpose: Purpose, mode: CacheMode, limits: ImageLimits) -> Self {
        Self {
            samples,
            size: size.max(1),
            purpose,
            limits,
            mode,
            disk: None,
            kept: Mutex::default(),
            failed: Mutex::default(),
            decoded: AtomicUsize::new(0),
            clocks: Clocks::default(),
        }
    }

    /// Reads pictures from a cache on disk, made for the same samples, size and purpose, and keeps them there.
    pub fn with_disk(self, disk: DiskCache) -> Self {
        Self { disk: Some(disk), ..self }
    }

    /// Why no more pictures are written to the disk, once.
    pub fn take_disk_problem(&self) -> Option<Problem> {
        self.disk.as_ref()?.take_problem()
    }

    /// The samples ids refer to.
    pub fn samples(&self) -> &Arc<Vec<Sample>> {
        &self.samples
    }

    /// The side pictures are resized to.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes that a picture takes once resized; pictures are kept at that size.
    pub fn picture_bytes(sample: &Sample, size: u32) -> u64 {
        let [w, h] = picture_wh(sample, size);
        u64::from(w) * u64::from(h) * 3
    }

    /// Bytes all pictures of the set take once resized.
    pub fn bytes_needed(&self) -> u64 {
        self.samples.iter().map(|s| Self::picture_bytes(s, self.size)).sum()
    }

    /// Which pictures stay.
    pub fn mode(&self) -> CacheMode {
        self.mode
    }

    /// Whether every picture stays once it is decoded.
    pub fn keeps_all(&self) -> bool {
        matches!(self.mode, CacheMode::Ram { bytes } | CacheMode::Recent { bytes } if bytes >= self.bytes_needed())
    }

    /// Pictures decoded so far.
    pub fn decoded(&self) -> usize {
        self.decoded.load(Ordering::Relaxed)
    }

    /// Where the time of the loaders' threads went so far.
    pub fn times(&self) -> LoadTimes {
        self.clocks.times()
    }

    pub(crate) fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Pictures that could not be loaded, by sample id. A failed picture is not tried again.
    pub fn problems(&self) -> Vec<(usize, Problem)> {
        lock(&self.failed).iter().map(|(&id, p)| (id, p.clone())).collect()
    }

    /// Whether no picture of the set can be loaded.
    pub fn all_failed(&self) -> bool {
        lock(&self.failed).len() >= self.samples.len()
    }

    /// The picture of a sample, its long side at the network's size (other side truncated, at least 1).
    pub fn get(&self, id: usize) -> Result<Arc<Picture>, DataError> {
        if let Some(picture) = lock(&self.kept).pictures.get(&id) {
            return Ok(Arc::clone(picture));
        }
        if let Some(problem) = lock(&self.failed).get(&id) {
            return Err(DataError::Image { path: problem.file.clone(), reason: problem.reason.clone() });
        }
        let loaded = catch_unwind(AssertUnwindSafe(|| self.load(id))).unwrap_or_else(|_| {
            let path = self.samples.get(id).map(|s| s.path.clone()).unwrap_or_default();
            Err(DataError::Image { path, reason: "the decoder failed on this file".into() })
        });
        match loaded {
            Ok(picture) => {
                let picture = Arc::new(picture);
                self.keep(id, &picture);
                Ok(picture)
            }
            Err(e) => {
                let file = self.samples.get(id).map(|s| s.path.clone()).unwrap_or_default();
                lock(&self.failed).insert(id, e.to_problem(&file));
                Err(e)
            }
        }
    }

    fn load(&self, id: usize) -> Result<Picture, DataError> {
        let sample = self.samples.get(id).ok_or_else(|| DataError::Image {
            path: Default::default(),
            reason: format!("sample {id} of {} does not exist", self.samples.len()),
        })?;
        let [w, h] = picture_wh(sample, self.size);
        // The key is taken before the image is read: one that changes meanwhile is not the key's any more.
        let on_disk = self.disk.as_ref().and_then(|disk| Some((disk, disk.key(&sample.path)?)));
        if let Some((disk, key)) = &on_disk
            && let Some(picture) = self.clocks.disk(|| disk.read(key, [w, h]))
        {
            return Ok(picture);
        }
        let bytes = self.clocks.disk(|| decode::read_file(&sample.path))?;
        let picture = self.clocks.decode(|| self.decode(sample, &bytes))?;
        if let Some((disk, key)) = &on_disk {
            self.clocks.disk(|| disk.write(key, &picture));
        }
        Ok(picture)
    }

    /// The picture that a file holds, resized.
    fn decode(&self, sample: &Sample, bytes: &[u8]) -> Result<Picture, DataError> {
        let picture = decode::decode(&sample.path, bytes, &self.limits)?;
        self.decoded.fetch_add(1, Ordering::Relaxed);
        if (picture.width, picture.height) != (sample.width, sample.height) {
            let reason = format!(
                "is {}x{} now and was {}x{} when scanned",
                picture.width, picture.height, sample.width, sample.height
            );
            return Err(DataError::Image { path: sample.path.clone(), reason });
        }
        let ([w, h], ratio) = long_side_to(picture.width, picture.height, self.size);
        let interpolation = match self.purpose {
            Purpose::Validate if ratio < 1.0 => Interpolation::Area,
            _ => Interpolation::Bilinear,
        };
        Ok(if ratio == 1.0 { picture } else { resize(&picture, w, h, interpolation) })
    }

    fn keep(&self, id: usize, picture: &Arc<Picture>) {
        let size = picture.data.len() as u64;
        let (limit, evict) = match self.mode {
            CacheMode::None => return,
            CacheMode::Ram { bytes } => (bytes, false),
            CacheMode::Recent { bytes } => (bytes, true),
        };
        let mut kept = lock(&self.kept);
        while evict && kept.bytes + size > limit {
            let Some(oldest) = kept.order.pop_front() else { break };
            if let Some(old) = kept.pictures.remove(&oldest) {
                kept.bytes -= old.data.len() as u64;
            }
        }
        if kept.bytes + size <= limit && kept.pictures.insert(id, Arc::clone(picture)).is_none() {
            kept.bytes += size;
            kept.order.push_back(id);
        }
    }
}

/// A thread that panicked while holding the lock left whole entries behind, so its data is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
