//! What can go wrong with a data set, said with files and lines.

use std::fmt;
use std::path::{Path, PathBuf};

/// One named flaw of a data set that does not stop the run.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Problem {
    /// The image, label or list file.
    pub file: PathBuf,
    /// Line in `file`, counted from 1.
    pub line: Option<usize>,
    /// What is wrong and what was done about it.
    pub reason: String,
}

impl Problem {
    /// A flaw of a whole file.
    pub fn of_file(file: &Path, reason: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), line: None, reason: reason.into() }
    }

    /// A flaw of one line.
    pub fn of_line(file: &Path, line: usize, reason: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), line: Some(line), reason: reason.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.file.display(), self.reason),
            None => write!(f, "{}: {}", self.file.display(), self.reason),
        }
    }
}

/// An error of this crate. [`DataError::hint`] says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// The data YAML is not text in UTF-8 or not YAML of the expected form.
    #[error("{}{}: {reason}", path.display(), line_suffix(*line))]
    Yaml { path: PathBuf, line: Option<usize>, reason: String, hint: Option<String> },
    /// A path named by the data YAML does not exist or, for `path`, is no folder.
    #[error("{}{}: {key}: {} {}", yaml.display(), line_suffix(*line), looked_for.display(), absence(looked_for))]
    MissingPath { yaml: PathBuf, line: Option<usize>, key: &'static str, looked_for: PathBuf, hint: Option<String> },
    /// The data YAML has no such split.
    #[error("{}: '{split}:' is missing", yaml.display())]
    MissingSplit { yaml: PathBuf, split: &'static str },
    /// A folder or list holds no image that can be used.
    #[error("no images in {places}")]
    NoImages { places: String, hint: Option<String> },
    /// Images were found but every one was dropped.
    #[error("none of the {count} images in {places} can be used; the first: {first}")]
    AllImagesBad { places: String, count: usize, first: Problem },
    /// Training without any label file.
    #[error("no label file for any of the {images} images; for {} a file {} was expected", example_image.display(), expected_label.display())]
    NoLabels { images: usize, example_image: PathBuf, expected_label: PathBuf },
    /// Training where every image is a background.
    #[error("all {images} images are backgrounds: no label file has a row; looked for instance into {}", expected_label.display())]
    OnlyBackgrounds { images: usize, expected_label: PathBuf },
    /// A class id the data set does not have.
    #[error("{}:{line}: class {class} but the data set has {nc} {}: ids go from 0 to {}{}", file.display(), plural(*nc, "class", "classes"), nc.saturating_sub(1), more(*others))]
    ClassOutOfRange { file: PathBuf, line: usize, class: u32, nc: usize, others: usize },
    /// A picture that cannot be decoded.
    #[error("{}: {reason}", path.display())]
    Image { path: PathBuf, reason: String },
    /// A picture above the size limit.
    #[error("{}: {width}x{height} = {} pixels is too large: the limit is {limit} pixels", path.display(), u64::from(*width) * u64::from(*height))]
    TooLarge { path: PathBuf, width: u32, height: u32, limit: u64 },
    /// The scan was told to stop. What it had found is in the cache, where one is used.
    #[error("interrupted: {done} of {images} images were checked")]
    Interrupted { done: usize, images: usize },
    /// A value of the configuration is out of its range.
    #[error("{name} = {value}: {range}")]
    Config { name: &'static str, value: String, range: &'static str },
    /// Decoded pictures that do not fit on the disk that they are to be kept on.
    #[error("decoded pictures need {} below {}, {} are free there and a tenth of that stays free", bytes(*needed), folder.display(), bytes(*free))]
    CacheSpace { folder: PathBuf, needed: u64, free: u64 },
    /// Nothing could be loaded at all.
    #[error("every image failed to load; the last: {last}")]
    AllLoadsFailed { last: Problem },
    /// The loader's threads are gone.
    #[error("the data loader stopped: {reason}")]
    LoaderStopped { reason: String },
}

impl DataError {
    /// What the user can do, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Yaml { hint, .. } | Self::MissingPath { hint, .. } | Self::NoImages { hint, .. } => hint.clone(),
            Self::MissingSplit { split, .. } => Some(match *split {
                "val" => "add a line such as `val: images/val`, or train without validation (--noval)".to_string(),
                other => format!("add a line such as `{other}: images/{other}`"),
            }),
            Self::NoLabels { .. } => Some(
                "labels are text files with the image's name; the last folder `images` in the path becomes `labels`, \
                 or the .txt lies beside the image"
                    .to_string(),
            ),
            Self::OnlyBackgrounds { .. } => Some(
                "each row of a label file is `class cx cy width height`, the last four between 0 and 1".to_string(),
            ),
            Self::ClassOutOfRange { .. } => {
                Some("ids start at 0; correct the label file or complete `names` in the data YAML".to_string())
            }
            Self::CacheSpace { .. } => Some(
                "leave --cache disk out, train with a smaller --img, delete old caches there, or name a folder on \
                 another disk in XDG_CACHE_HOME"
                    .to_string(),
            ),
            Self::TooLarge { .. } => Some("scale the picture down".to_string()),
            _ => None,
        }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// The same flaw as a list entry, for errors about one file.
    pub fn to_problem(&self, file: &Path) -> Problem {
        let reason = match self {
            Self::Io { source, .. } => source.to_string(),
            Self::Image { reason, .. } => reason.clone(),
            Self::TooLarge { width, height, limit, .. } => {
                format!("{width}x{height} is too large: the limit is {limit} pixels")
            }
            other => other.to_string(),
        };
        Problem::of_file(file, reason)
    }
}

fn line_suffix(line: Option<usize>) -> String {
    line.map(|l| format!(":{l}")).unwrap_or_default()
}

/// What is wrong with a path that cannot be used as it was meant.
fn absence(path: &Path) -> &'static str {
    if path.exists() { "is not a folder; expected a folder" } else { "does not exist" }
}

/// `1.25 GiB`, or MiB below one.
fn bytes(bytes: u64) -> String {
    let mebi = bytes as f64 / f64::from(1 << 20);
    if mebi < 1024.0 { format!("{mebi:.1} MiB") } else { format!("{:.2} GiB", mebi / 1024.0) }
}

fn plural(n: usize, one: &'static str, many: &'static str) -> &'static str {
    if n == 1 { one } else { many }
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more rows like it)") }
}
