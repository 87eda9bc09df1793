//! Decoded pictures on disk, between epochs and between runs.
//!
//! One file a picture, in a folder for each set, size and purpose below the user's cache folder; nothing is
//! written near the images. A file's name and header are made of the image's path, length and time of change and
//! of the rule by which it was resized, so that an entry of another state of the image is never read. Whatever is
//! wrong with an entry makes the image be decoded again, never an error.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cache::{Stamp, digest, now_nanos};
use crate::error::{DataError, Problem};
use crate::letterbox::long_side_to;
use crate::picture::Picture;
use crate::pool::{ImagePool, Purpose};
use crate::scan::Sample;

/// Raised whenever decoding or resizing changes a pixel, or the form of an entry changes.
const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"yolov9px";
/// Bytes before the path: magic, version, width, height, check sum, stamp (16), length of the path.
const FIXED: usize = 8 + 4 * 4 + 16 + 4;
const SUFFIX: &str = ".picture";
const UNFINISHED: &str = ".unfinished-";
/// Files are counted in blocks of this many bytes, as file systems do.
const BLOCK: u64 = 4096;
/// Longer paths are not kept.
const MAX_PATH: usize = 1 << 16;
/// A temporary file this old belongs to a run that was killed.
const ABANDONED: Duration = Duration::from_secs(86_400);

/// The folder of all picture caches below the user's cache folder.
pub fn pictures_folder(user_folder: &Path) -> PathBuf {
    user_folder.join("pictures")
}

/// A name for a set: its folder's, and a digest of where its images are.
pub fn set_name(root: &Path, places: &[PathBuf]) -> String {
    let canonical = |p: &Path| p.canonicalize().unwrap_or_else(|_| p.to_path_buf()).to_string_lossy().into_owned();
    let paths: Vec<String> = places.iter().map(|p| canonical(p)).collect();
    let key = digest(paths.iter().map(|p| p.as_bytes()));
    let root = root.canonicalize().unwrap_or_else(|_| root.to_path_buf());
    let name = root.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_else(|| "set".into());
    let plain: String =
        name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    format!("{plain}-{}", &key[..12])
}

/// Bytes that may still be written to the disk of a path, which need not exist yet. `None` where the system does not
/// say.
pub fn free_space(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|p| p.exists())?;
    #[cfg(unix)]
    return rustix::fs::statvfs(there).ok().map(|s| s.f_bavail.saturating_mul(s.f_frsize));
    #[cfg(not(unix))]
    return {
        let _ = there;
        None
    };
}

/// Refuses pictures that take more than nine tenths of what is free: checkpoints need room too.
///
/// # Errors
/// [`DataError::CacheSpace`].
pub fn check_space(folder: &Path, needed: u64, free: Option<u64>) -> Result<(), DataError> {
    match free {
        Some(free) if needed > free / 10 * 9 => {
            Err(DataError::CacheSpace { folder: folder.to_path_buf(), needed, free })
        }
        _ => Ok(()),
    }
}

/// What a cache holds when it is opened, and what is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Pictures of the set that are there.
    pub pictures: usize,
    /// Bytes of all pictures of the set, there or not, in whole blocks.
    pub bytes: u64,
    /// Bytes of those that are not there.
    pub missing: u64,
    /// Entries dropped because their image is gone or has changed.
    pub dropped: usize,
}

/// The state of an image that an entry is of.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    name: String,
    path: String,
    stamp: Stamp,
}

/// The pictures of one set at one size on disk.
#[derive(Debug)]
pub struct DiskCache {
    folder: PathBuf,
    size: u32,
    purpose: Purpose,
    /// Set by the first entry that cannot be written: a full disk is not tried again for each image.
    closed: AtomicBool,
    problem: Mutex<Option<Problem>>,
}

impl DiskCache {
    /// Opens the cache of a set (see [`set_name`]) below `folder` (see [`pictures_folder`]) for the network's side in
    /// pixels, and drops entries whose images are gone or have changed. Writes nothing.
    pub fn open(folder: &Path, set: &str, samples: &[Sample], size: u32, purpose: Purpose) -> (Self, Contents) {
        let kind = match purpose {
            Purpose::Train => "train",
            Purpose::Validate => "val",
        };
        let folder = folder.join(format!("{set}-{size}-{kind}"));
        let cache = Self { folder, size, purpose, closed: AtomicBool::new(false), problem: Mutex::new(None) };
        let mut there = cache.list();
        let mut contents = Contents::default();
        for sample in samples {
            let Some(key) = cache.key(&sample.path) else { continue };
            let length = (FIXED + key.path.len()) as u64 + ImagePool::picture_bytes(sample, size);
            let blocks = length.next_multiple_of(BLOCK);
            contents.bytes += blocks;
            match there.remove(&key.name) {
                Some(found) if found == length => contents.pictures += 1,
                _ => contents.missing += blocks,
            }
        }
        // Another run may use images of the set that this one leaves out: those entries stay.
        for name in there.keys() {
            let path = cache.folder.join(name);
            if !cache.is_current(&path, name) && std::fs::remove_file(&path).is_ok() {
                contents.dropped += 1;
            }
        }
        (cache, contents)
    }

    /// Where the entries lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Why nothing more is written, once.
    pub fn take_problem(&self) -> Option<Problem> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Lengths of entries by name; removes what killed runs left behind.
    fn list(&self) -> HashMap<String, u64> {
        let mut found = HashMap::new();
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let (Ok(name), Ok(meta)) = (entry.file_name().into_string(), entry.metadata()) else { continue };
            if name.ends_with(SUFFIX) {
                found.insert(name, meta.len());
            } else if name.starts_with(UNFINISHED)
                && meta.modified().is_ok_and(|t| t.elapsed().is_ok_and(|age| age > ABANDONED))
            {
                let _ = std::fs::remove_file(entry.path());
            }
        }
        found
    }

    /// The key of an image as it is now; `None` for images that are not there or cannot be kept.
    pub(crate) fn key(&self, image: &Path) -> Option<Key> {
        let path = std::path::absolute(image).ok()?.into_os_string().into_string().ok()?;
        let stamp = Stamp::of(image)?;
        (path.len() < MAX_PATH).then(|| Key { name: self.name(&path, stamp), path, stamp })
    }

    fn name(&self, path: &str, stamp: Stamp) -> String {
        let purpose = format!("{:?}", self.purpose);
        let numbers = [stamp.size.to_le_bytes(), stamp.changed.to_le_bytes(), u64::from(self.size).to_le_bytes()];
        let version = VERSION.to_le_bytes();
        let parts = [path.as_bytes(), &numbers.concat(), purpose.as_bytes(), &version];
        format!("{}{SUFFIX}", &digest(parts)[..32])
    }

    /// Whether the image of an entry is there in the state that the entry is of.
    fn is_current(&self, entry: &Path, name: &str) -> bool {
        let header = File::open(entry).ok().and_then(|mut file| Header::read(&mut file));
        header.is_some_and(|h| Stamp::of(Path::new(&h.path)) == Some(h.stamp) && self.name(&h.path, h.stamp) == name)
    }

    /// The picture of an entry, if it is there, whole, and of the given width and height.
    pub(crate) fn read(&self, key: &Key, wh: [u32; 2]) -> Option<Picture> {
        let mut file = File::open(self.folder.join(&key.name)).ok()?;
        let header = Header::read(&mut file)?;
        let bytes = wh[0] as usize * wh[1] as usize * 3;
        let length = (FIXED + header.path.len() + bytes) as u64;
        if header.wh != wh
            || header.path != key.path
            || header.stamp != key.stamp
            || file.metadata().ok()?.len() != length
        {
            return None;
        }
        let mut data = vec![0; bytes];
        file.read_exact(&mut data).ok()?;
        if crc32fast::hash(&data) != header.check {
            return None;
        }
        Picture::from_data(wh[0], wh[1], data)
    }

    /// Keeps a picture, unless its image changed so recently that it may change again unseen.
    pub(crate) fn write(&self, key: &Key, picture: &Picture) {
        if self.closed.load(Ordering::Relaxed) || key.stamp.is_fresh(now_nanos()) {
            return;
        }
        if let Err(error) = self.try_write(key, picture)
            && !self.closed.swap(true, Ordering::Relaxed)
        {
            let reason = format!("{error}; no more pictures are written there in this run");
            let problem = Problem::of_file(&self.folder, reason);
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
        }
    }

    /// A file that a power cut leaves half written is noticed by its check sum, so it need not be synced.
    fn try_write(&self, key: &Key, picture: &Picture) -> std::io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)?;
        file.write_all(&Header::of(key, picture).bytes())?;
        file.write_all(&picture.data)?;
        file.persist(self.folder.join(&key.name)).map_err(|e| e.error)?;
        Ok(())
    }
}

/// What an entry says about itself.
struct Header {
    wh: [u32; 2],
    check: u32,
    stamp: Stamp,
    path: String,
}

impl Header {
    fn of(key: &Key, picture: &Picture) -> Self {
        let (wh, check) = ([picture.width, picture.height], crc32fast::hash(&picture.data));
        Self { wh, check, stamp: key.stamp, path: key.path.clone() }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for number in [VERSION, self.wh[0], self.wh[1], self.check] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.stamp.size.to_le_bytes());
        bytes.extend(self.stamp.changed.to_le_bytes());
        bytes.extend((self.path.len() as u32).to_le_bytes());
        bytes.extend(self.path.as_bytes());
        bytes
    }

    fn read(file: &mut File) -> Option<Self> {
        let mut fixed = [0u8; FIXED];
        file.read_exact(&mut fixed).ok()?;
        let (magic, rest) = fixed.split_first_chunk::<8>()?;
        let number = |at: usize| rest[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        let long = |at: usize| rest[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        if *magic != MAGIC || number(0)? != VERSION {
            return None;
        }
        let length = number(32)? as usize;
        if length >= MAX_PATH {
            return None;
        }
        let mut path = vec![0; length];
        file.read_exact(&mut path).ok()?;
        let stamp = Stamp { size: long(16)?, changed: long(24)?.cast_signed() };
        Some(Self { wh: [number(4)?, number(8)?], check: number(12)?, stamp, path: String::from_utf8(path).ok()? })
    }
}

/// Width and height of a sample's picture in a cache of this size.
pub(crate) fn picture_wh(sample: &Sample, size: u32) -> [u32; 2] {
    long_side_to(sample.width, sample.height, size.max(1)).0
}
