//! Mosaics of training and validation batches.

use crate::TrainError;
use crate::evaluate::{DrawnBatch, corners_of};
use data::Batch;
use report::mosaic::{MosaicOptions, Tile, TileBox, save_mosaic};
use std::path::{Path, PathBuf};

/// Pictures of a batch with their labels.
pub(crate) fn draw_labels(path: &Path, batch: &Batch, names: &[String]) -> Result<(), TrainError> {
    let [_, height, width, _] = batch.shape;
    draw(path, batch, names, |i| {
        let targets = &batch.targets[batch.offsets[i]..batch.offsets[i + 1]];
        let tile = |t: &data::loader::Target| TileBox {
            xyxy: corners_of(t.xywh, width, height),
            class: t.class as usize,
            confidence: None,
        };
        targets.iter().map(tile).collect()
    })
}

/// Pictures of a validation batch with labels, and with predictions; returns both paths.
pub(crate) fn draw_validation(
    folder: &Path,
    drawn: &[DrawnBatch],
    names: &[String],
) -> Result<Vec<PathBuf>, TrainError> {
    let mut paths = Vec::new();
    for (number, DrawnBatch { batch, detections }) in drawn.iter().enumerate() {
        let labels = folder.join(format!("val_batch{number}_labels.jpg"));
        draw_labels(&labels, batch, names)?;
        let predictions = folder.join(format!("val_batch{number}_pred.jpg"));
        draw(&predictions, batch, names, |i| {
            let tile = |d: &detect::nms::Detection| TileBox {
                xyxy: d.corners,
                class: d.class as usize,
                confidence: Some(d.score),
            };
            detections[i].iter().map(tile).collect()
        })?;
        paths.extend([labels, predictions]);
    }
    Ok(paths)
}

fn draw(path: &Path, batch: &Batch, names: &[String], boxes: impl Fn(usize) -> Vec<TileBox>) -> Result<(), TrainError> {
    let [images, height, width, channels] = batch.shape;
    let pitch = height * width * channels;
    let captions: Vec<String> =
        batch.images.iter().map(|i| i.path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect();
    let options = MosaicOptions::default();
    let tiles: Vec<Tile> = (0..images.min(options.max_tiles))
        .map(|i| Tile {
            pixels: &batch.pixels[i * pitch..(i + 1) * pitch],
            width,
            height,
            caption: &captions[i],
            boxes: boxes(i),
        })
        .collect();
    if tiles.is_empty() {
        return Ok(());
    }
    Ok(save_mosaic(path, &tiles, names, options)?)
}
