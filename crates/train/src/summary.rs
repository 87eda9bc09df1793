//! What the three commands hand back.

use std::path::PathBuf;

/// Result of [`crate::run`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSummary {
    /// The run's folder.
    pub folder: PathBuf,
    /// `weights/last.safetensors`, where it was written.
    pub last: Option<PathBuf>,
    /// `weights/best.safetensors`, where it was written.
    pub best: Option<PathBuf>,
    /// Epochs finished in all, those before a resume included.
    pub epochs: usize,
    /// Why the run ended.
    pub end: TrainEnd,
    /// Metrics of the best epoch on the validation part.
    pub metrics: Option<Metrics>,
    /// Pictures that the run wrote.
    pub pictures: Vec<PathBuf>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainEnd {
    /// All epochs are done.
    Finished,
    /// No improvement for `--patience` epochs.
    EarlyStop,
    /// The observer asked for it; `--resume` goes on.
    Interrupted,
}

/// Detection quality over a set of images; all but the losses between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Metrics {
    pub precision: f64,
    pub recall: f64,
    /// Mean average precision at IoU 0.5.
    pub map50: f64,
    /// Mean over IoU 0.50 to 0.95.
    pub map50_95: f64,
    /// Box, class and DFL loss; NaN where they are no finite numbers.
    #[serde(deserialize_with = "nan_where_null")]
    pub losses: [f64; 3],
}

/// JSON has no NaN: what is written as `null` comes back as such. A run that diverges must leave a checkpoint that can
/// be read.
fn nan_where_null<'de, D: serde::Deserializer<'de>>(from: D) -> Result<[f64; 3], D::Error> {
    let found: [Option<f64>; 3] = serde::Deserialize::deserialize(from)?;
    Ok(found.map(|value| value.unwrap_or(f64::NAN)))
}

/// Metrics of one class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassMetrics {
    pub class: usize,
    pub name: String,
    /// Images that hold the class.
    pub images: usize,
    pub instances: usize,
    pub precision: f64,
    pub recall: f64,
    pub map50: f64,
    pub map50_95: f64,
}

/// Result of [`crate::validate`].
#[derive(Clone, Debug, PartialEq)]
pub struct ValSummary {
    pub folder: PathBuf,
    pub metrics: Metrics,
    /// Classes that the validation part holds.
    pub classes: Vec<ClassMetrics>,
    pub images: usize,
    pub instances: usize,
    /// Images that could not be read and were left out.
    pub skipped: usize,
    /// The reference's table, one line an entry: header, `all`, classes. Already given to the observer.
    pub table: Vec<String>,
}

/// One box that detection found, in the pixels of the original picture.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundBox {
    pub class: usize,
    pub confidence: f32,
    /// Left, top, right, bottom.
    pub xyxy: [f32; 4],
}

/// One picture that detection looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundImage {
    pub source: PathBuf,
    pub width: u32,
    pub height: u32,
    /// The picture with boxes, where it was written.
    pub picture: Option<PathBuf>,
    /// Strongest first.
    pub boxes: Vec<FoundBox>,
}

/// Result of [`crate::detect`].
#[derive(Clone, Debug, PartialEq)]
pub struct DetectSummary {
    pub folder: PathBuf,
    /// Class names of the weights.
    pub names: Vec<String>,
    pub images: Vec<FoundImage>,
    /// Images that could not be read and were left out.
    pub skipped: usize,
    /// COCO results, with `json`.
    pub json: Option<PathBuf>,
}
