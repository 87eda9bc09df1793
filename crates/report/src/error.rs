//! The errors of this crate: each names the file, and the line or the sizes, that it is about.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong while a run's files are written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an action on a file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },

    /// The pixels handed over are not `height * width * 3` bytes.
    #[error("a picture of {width}x{height} needs {expected} bytes of RGB, got {got}")]
    PixelCount { width: usize, height: usize, expected: usize, got: usize },

    /// A picture without pixels, or one too large for its file format.
    #[error("cannot save {}: a picture of {width}x{height} is outside 1..={limit} pixels a side", path.display())]
    PictureSize { path: PathBuf, width: usize, height: usize, limit: usize },

    /// The encoder failed on a picture.
    #[error("cannot encode {}: {source}", path.display())]
    Encode { path: PathBuf, source: image::ImageError },

    /// The file name does not say in which known format a picture is to be saved.
    #[error("cannot save {}: the suffix must be one of jpg, jpeg, png, bmp, webp, tif, tiff", path.display())]
    UnknownPictureFormat { path: PathBuf },

    /// A mosaic of no pictures.
    #[error("a mosaic needs at least one picture")]
    EmptyMosaic,

    /// A table holds other columns than this run writes.
    #[error("{}: the columns are `{got}`, expected `{expected}`", path.display())]
    ColumnMismatch { path: PathBuf, expected: String, got: String },

    /// A row of results.csv cannot be read.
    #[error("{}:{line}: {message}", path.display())]
    BadRow { path: PathBuf, line: usize, message: String },

    /// A row with more or fewer values than there are columns for them.
    #[error("{}: {got} values for {expected} columns", path.display())]
    ExtraCount { path: PathBuf, expected: usize, got: usize },

    /// A column name that would break the header row.
    #[error("column name {name:?} is empty or holds a comma, a quote or a line break")]
    BadColumnName { name: String },

    /// A run name that no folder below the project can have.
    #[error("{name:?} cannot be the name of a run: {reason}")]
    BadRunName { name: String, reason: &'static str },

    /// The folder of a run exists already, as something that is not a folder.
    #[error("{} exists and is not a folder", path.display())]
    NotAFolder { path: PathBuf },

    /// A detection whose box or score is not finite; JSON has no such numbers.
    #[error("detection of category {category} in {image} is not finite: box {bbox:?}, score {score}")]
    NotFinite { image: String, category: u32, bbox: [f64; 4], score: f64 },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    }
}

impl From<files::WriteError> for Error {
    fn from(e: files::WriteError) -> Self {
        Error::Io { action: e.action, path: e.path, source: e.source }
    }
}
