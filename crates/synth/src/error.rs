//! What can go wrong.

use std::path::PathBuf;

/// A set that could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// Only new and empty folders are written to.
    #[error("{} is not empty", folder.display())]
    NotEmpty { folder: PathBuf },
    /// An option out of its range.
    #[error("--{flag} {value}: must be {range}")]
    Option { flag: &'static str, value: usize, range: &'static str },
    #[error("cannot {action} {}: {source}", path.display())]
    Folder { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Write(#[from] files::WriteError),
    #[error("{}: {source}", path.display())]
    Encode { path: PathBuf, source: jpeg_encoder::EncodingError },
}

impl SynthError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NotEmpty { .. } => Some("name a new folder with --out"),
            _ => None,
        }
    }
}
