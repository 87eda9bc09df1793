//! The tables of the terminal: one row an epoch while training, one row a class when validating. Lines come without a line break.

use crate::number::format_g;

/// Header of the validation table: Class, Images, Instances, P, R, mAP50, mAP50-95.
pub fn validation_header() -> String {
    let mut line = format!("{:>22}", "Class");
    for name in ["Images", "Instances", "P", "R", "mAP50", "mAP50-95"] {
        line += &format!("{name:>11}");
    }
    line
}

/// One row of the validation table.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationRow<'a> {
    /// Name of the class, or `all`.
    pub class: &'a str,
    /// Number of pictures.
    pub images: usize,
    /// Number of ground-truth boxes.
    pub instances: usize,
    /// Precision, 0..=1.
    pub precision: f64,
    /// Recall, 0..=1.
    pub recall: f64,
    /// AP at IoU 0.5, 0..=1.
    pub map50: f64,
    /// Mean AP over IoU 0.50..=0.95, 0..=1.
    pub map50_95: f64,
}

/// A row under [`validation_header`]: metrics with three significant digits.
pub fn validation_row(row: &ValidationRow) -> String {
    let mut line = format!("{:>22}{:>11}{:>11}", row.class, row.images, row.instances);
    for metric in [row.precision, row.recall, row.map50, row.map50_95] {
        line += &format!("{:>11}", format_g(metric, 3));
    }
    line
}

/// Header of the training table: Epoch, GPU_mem, box_loss, cls_loss, dfl_loss, Instances, Size.
pub fn training_header() -> String {
    ["Epoch", "GPU_mem", "box_loss", "cls_loss", "dfl_loss", "Instances", "Size"].map(|n| format!("{n:>11}")).concat()
}

/// One row of the training table.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingRow<'a> {
    /// Epoch counted from 0.
    pub epoch: usize,
    /// Number of epochs of the run; the row shows `epoch/(epochs - 1)`.
    pub epochs: usize,
    /// Memory in use as text, for example `3.21G`.
    pub memory: &'a str,
    /// Running means of the box, class and DFL loss.
    pub losses: [f64; 3],
    /// Ground-truth boxes in the last batch.
    pub instances: usize,
    /// Side of the training pictures in pixels.
    pub image_size: usize,
}

/// A row under [`training_header`]: losses with four significant digits.
pub fn training_row(row: &TrainingRow) -> String {
    let epoch = format!("{}/{}", row.epoch, row.epochs.saturating_sub(1));
    let mut line = format!("{epoch:>11}{:>11}", row.memory);
    for value in row.losses {
        line += &format!("{:>11}", format_g(value, 4));
    }
    // Counts keep all their digits, where four significant ones would turn 12345 into 1.234e+04.
    line + &format!("{:>11}{:>11}", row.instances, row.image_size)
}
