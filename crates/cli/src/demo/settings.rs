//! How the demo trains: small enough for minutes on two cores, large enough to find cells.

use std::path::{Path, PathBuf};
use train::{Cache, DetectOptions, Optimizer, TrainOptions};

/// Settings of the demo.
#[derive(Clone, Debug, PartialEq)]
pub struct DemoSettings {
    /// A built-in model.
    pub model: &'static str,
    /// A built-in file of hyper-parameters.
    pub hyp: &'static str,
    pub optimizer: Optimizer,
    /// Side of the network input in pixels.
    pub image_size: usize,
    /// Images a step.
    pub batch_size: usize,
    pub epochs: usize,
    /// Validate once at the end instead of after every epoch.
    pub validate_once: bool,
    pub seed: u64,
    /// Boxes below are not drawn.
    pub confidence: f64,
}

impl Default for DemoSettings {
    fn default() -> Self {
        Self {
            model: "yolov9-t",
            hyp: "hyp.demo.yaml",
            optimizer: Optimizer::AdamW,
            image_size: 224,
            batch_size: 8,
            epochs: 40,
            validate_once: false,
            seed: 0,
            confidence: 0.25,
        }
    }
}

impl DemoSettings {
    /// Options of the training run below `folder`.
    pub fn train_options(&self, folder: &Path, data: &Path) -> TrainOptions {
        TrainOptions {
            cfg: Some(PathBuf::from(self.model)),
            hyp: PathBuf::from(self.hyp),
            data: data.to_path_buf(),
            optimizer: self.optimizer,
            imgsz: self.image_size,
            batch_size: i64::try_from(self.batch_size).unwrap_or(i64::MAX),
            epochs: self.epochs,
            noval: self.validate_once,
            seed: self.seed,
            cache: Cache::Ram,
            project: folder.to_path_buf(),
            name: "train".to_owned(),
            ..TrainOptions::default()
        }
    }

    /// Options of the detection on `images`.
    pub fn detect_options(&self, folder: &Path, weights: &Path, images: &Path) -> DetectOptions {
        DetectOptions {
            weights: weights.to_path_buf(),
            source: images.display().to_string(),
            imgsz: vec![self.image_size],
            conf_thres: self.confidence,
            project: folder.to_path_buf(),
            name: "detect".to_owned(),
            ..DetectOptions::default()
        }
    }
}
