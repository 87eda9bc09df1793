//! Why a command stopped, and what can be done about it.

use crate::footprint::size;
use std::path::{Path, PathBuf};

/// An error of this crate. [`TrainError::hint`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    #[error(transparent)]
    Data(#[from] data::DataError),
    #[error(transparent)]
    Model(#[from] model::ModelError),
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    #[error(transparent)]
    Exec(#[from] graph::ExecError),
    #[error(transparent)]
    Report(#[from] report::Error),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    /// An option that cannot be obeyed.
    #[error("--{flag}: {message}")]
    Option { flag: &'static str, message: String, hint: Option<String> },
    /// A hyper-parameter file that is not YAML of numbers.
    #[error("{file}{}: {message}", line.map(|l| format!(":{l}")).unwrap_or_default())]
    HypFile { file: String, line: Option<u64>, message: String },
    /// A key that no hyper-parameter has.
    #[error("{file}: unknown hyper-parameter '{key}'")]
    HypKey { file: String, key: String, nearest: Option<&'static str> },
    /// A value outside of its range.
    #[error("{file}: {key} = {}: must be {range}", number(*value))]
    HypRange { file: String, key: &'static str, value: f64, range: String },
    /// A file that the user named and that is not there.
    #[error("{what} {} {}", path.display(), absence(path))]
    Missing { what: &'static str, path: PathBuf, hint: Option<String> },
    /// A file of weights or of a run's state that is damaged.
    #[error("{}: {message}", path.display())]
    Checkpoint { path: PathBuf, message: String },
    /// A file that ends early.
    #[error("{}: truncated, {have} of {need} bytes", path.display())]
    Truncated { path: PathBuf, have: u64, need: u64 },
    /// A run that cannot go on as asked.
    #[error("cannot resume {}: {message}", path.display())]
    Resume { path: PathBuf, message: String, hint: Option<String> },
    /// Another process writes into the run's folder.
    #[error("{} is in use by another run", path.display())]
    InUse { path: PathBuf },
    /// An option that a run which goes on cannot follow.
    #[error("cannot resume {}: --{flag} {asked} was asked for, but the run has {kept}", path.display())]
    ResumeOption { path: PathBuf, flag: String, asked: String, kept: String },
    /// A file of the run could not be written; the run has ended.
    #[error("cannot write {}: {source}", path.display())]
    Save { path: PathBuf, source: std::io::Error, kept: Option<PathBuf> },
    /// The loss or the gradient left the numbers.
    #[error("{term} is not finite in epoch {epoch}, batch {batch}")]
    NotFinite { epoch: usize, batch: usize, term: String, kept: Option<PathBuf> },
    /// Weights for other classes than those of the data.
    #[error("{} knows {model} classes, {} has {data}", weights.display(), yaml.display())]
    ClassCount { weights: PathBuf, model: usize, yaml: PathBuf, data: usize },
    /// The observer asked for it before there was a result.
    #[error("{what} was stopped")]
    Stopped { what: &'static str },
    /// A command that would take more memory than there is.
    #[error("{what} needs {} of {memory}, {} are available ({parts})", size(*needed), size(*available))]
    Memory { what: &'static str, memory: &'static str, needed: u64, available: u64, parts: String, hint: String },
    /// A card that cannot be used, or what it says while it works.
    #[error("{0}")]
    Card(#[source] Box<cuda::CudaError>),
    /// None of the images could be used.
    #[error("none of the {count} images of {source_text} can be read; the first: {first}")]
    AllImagesBad { count: usize, source_text: String, first: String },
}

/// A number as it is read easily: `1e308` rather than 309 digits.
fn number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e7).contains(&value.abs()) { format!("{value}") } else { format!("{value:e}") }
}

impl From<plan::PlanError> for TrainError {
    fn from(error: plan::PlanError) -> Self {
        match error {
            plan::PlanError::Model(e) => e.into(),
            plan::PlanError::Graph(e) => e.into(),
            plan::PlanError::Cuda(e) => e.into(),
        }
    }
}

impl TrainError {
    /// What the user can do, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Data(e) => e.hint(),
            Self::Option { hint, .. } | Self::Missing { hint, .. } | Self::Resume { hint, .. } => hint.clone(),
            Self::InUse { .. } => Some("wait for it to end, or write elsewhere with --name".to_owned()),
            Self::ResumeOption { .. } => {
                Some("leave the flag out, or start a new run from its weights with --weights".to_owned())
            }
            Self::Save { kept, .. } => Some(match kept {
                Some(last) => format!(
                    "the run has ended. The checkpoint before is whole: make room on the disk and go on with --resume {}",
                    last.display()
                ),
                None => "the run has ended without a checkpoint: make room on the disk and start again".to_owned(),
            }),
            Self::HypFile { .. } => Some("a hyper-parameter file has one `key: number` a line".to_owned()),
            Self::HypRange { .. } => Some("take the value out of the file to use the default".to_owned()),
            Self::HypKey { nearest, .. } => nearest.map(|key| format!("did you mean '{key}'?")),
            Self::Truncated { .. } => Some(
                "the copy was cut short: fetch it again, or take best.safetensors of the same run with --weights"
                    .to_owned(),
            ),
            Self::Checkpoint { .. } => Some("take best.safetensors of a run, or another copy of the file".to_owned()),
            Self::NotFinite { kept, .. } => {
                let weights = kept.as_ref().map(|p| format!("the last good weights are in {}; ", p.display()));
                Some(format!("{}lower lr0, or look for boxes without area", weights.unwrap_or_default()))
            }
            Self::ClassCount { model: 1, .. } => Some(
                "add --single-cls where the weights were trained with it; otherwise use the data YAML of their training"
                    .to_owned(),
            ),
            Self::ClassCount { .. } => {
                Some("use the data YAML that the weights were trained with, or train on this one first".to_owned())
            }
            Self::Graph(graph::GraphError::Budget { .. }) => {
                Some("raise --memory-budget, or lower --batch or --img".to_owned())
            }
            Self::Graph(graph::GraphError::TooLarge { .. }) | Self::Exec(graph::ExecError::Memory { .. }) => {
                Some("lower --batch or --img".to_owned())
            }
            Self::Memory { hint, .. } => Some(hint.clone()),
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn option(flag: &'static str, message: impl Into<String>, hint: Option<&str>) -> Self {
        Self::Option { flag, message: message.into(), hint: hint.map(str::to_owned) }
    }
}

/// What is wrong with a path that should be a file.
fn absence(path: &Path) -> &'static str {
    match std::fs::metadata(path) {
        Ok(there) if there.is_dir() => "is a folder, not a file",
        Ok(_) => "is a device or a pipe, not a file",
        Err(_) if path.symlink_metadata().is_ok() => "is a link that leads nowhere",
        Err(_) => "does not exist",
    }
}
