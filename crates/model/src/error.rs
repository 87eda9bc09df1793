//! What can be wrong with a model description or a weight file.

use graph::GraphError;
use std::path::PathBuf;

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A model that cannot be read, built or filled. Messages name the file, the line or row, and both sides
/// of a mismatch.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("no model is called '{name}', and there is no such file\n  hint: known models are {known}")]
    UnknownModel { name: String, known: String },
    #[error("{file}: {message}")]
    Yaml { file: String, message: String },
    #[error("{file}:{line}: row {row} ({module}): {message}")]
    Row { file: String, line: u64, row: usize, module: String, message: String },
    #[error(
        "picture of {height}x{width}: both sides must be multiples of {multiple}\n  hint: use {hint_height}x{hint_width}"
    )]
    ImageSize { height: usize, width: usize, multiple: usize, hint_height: usize, hint_width: usize },
    #[error("the picture has {channels} channels, the model takes {expected}")]
    ImageChannels { channels: usize, expected: usize },
    #[error("layer {layer} gives the head {found} cells on a picture where stride {stride} means {expected}")]
    HeadGrid { layer: usize, stride: usize, found: String, expected: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("{}: truncated: {have} of {need} bytes", path.display())]
    Truncated { path: PathBuf, have: u64, need: u64 },
    #[error("{}: {message}", path.display())]
    Damaged { path: PathBuf, message: String },
    #[error("{}: not a weight file: {message}", path.display())]
    Format { path: PathBuf, message: String },
    #[error("{}: format version {found} is newer than this program reads ({known})", path.display())]
    Version { path: PathBuf, found: u64, known: u64 },
    #[error("{what}: it does not say which model it belongs to\n  hint: name one, such as --cfg yolov9-s")]
    NoDescription { what: String },
    #[error("{what} does not fit {model}: {detail}\n  hint: {hint}")]
    Misfit { what: String, model: String, detail: String, hint: String },
    #[error("{what} does not fit the model: {detail}")]
    Tensors { what: String, detail: String },
    #[error("tensor {name}: {message}")]
    Tensor { name: String, message: String },
}

/// The first five of a list, and how many there are beyond.
pub(crate) fn first_five(items: &[String]) -> String {
    let shown = items.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    match items.len() {
        0..=5 => shown,
        n => format!("{shown} and {} more", n - 5),
    }
}
