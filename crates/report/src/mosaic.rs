//! A grid of up to 16 pictures with captions and boxes: `train_batchN.jpg`, `val_batchN_labels.jpg`, `val_batchN_pred.jpg`.

use std::path::Path;

use image::ImageBuffer;
use image::imageops::{FilterType, resize};

use crate::draw::{BoxStyle, Canvas, LabelledBox, check_size, label_text};
use crate::error::{Error, Result};
use crate::font;
use crate::jpeg::{JPEG_QUALITY, save_jpeg};

/// One picture of the grid.
#[derive(Debug, Clone)]
pub struct Tile<'a> {
    /// RGB pixels, `height * width * 3` bytes.
    pub pixels: &'a [u8],
    pub width: usize,
    pub height: usize,
    /// Text above the picture, usually the file name.
    pub caption: &'a str,
    pub boxes: Vec<TileBox>,
}

/// A box on a picture of the grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileBox {
    /// Left, top, right, bottom in pixels of the tile.
    pub xyxy: [f32; 4],
    pub class: usize,
    /// Confidence of a prediction, 0..=1; `None` for a label.
    pub confidence: Option<f32>,
}

/// Limits of the grid.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MosaicOptions {
    /// Longest side of the whole picture in pixels.
    pub max_side: usize,
    /// Pictures after the first `max_tiles` are left out.
    pub max_tiles: usize,
    /// Predictions below are left out; labels are always drawn.
    pub min_confidence: f32,
}

impl Default for MosaicOptions {
    fn default() -> MosaicOptions {
        MosaicOptions { max_side: 1920, max_tiles: 16, min_confidence: 0.25 }
    }
}

/// Pictures smaller than this are enlarged by a whole factor, or their captions and labels could not be read.
const SMALL: usize = 240;
/// Pixels between neighbouring pictures.
const GAP: usize = 2;

/// Draws `tiles` row by row in a grid as square as their number allows. Pictures keep their aspect and share one scale.
///
/// # Errors
/// [`Error::EmptyMosaic`] without tiles, [`Error::PixelCount`] for a tile whose pixels do not match its size.
pub fn draw_mosaic(tiles: &[Tile], class_names: &[String], options: MosaicOptions) -> Result<Canvas> {
    let tiles = &tiles[..tiles.len().min(options.max_tiles.max(1))];
    for tile in tiles {
        check_size(tile.width, tile.height, tile.pixels.len())?;
    }
    if tiles.is_empty() {
        return Err(Error::EmptyMosaic);
    }
    let columns = (1..=tiles.len()).find(|n| n * n >= tiles.len()).unwrap_or(1);
    let rows = tiles.len().div_ceil(columns);
    let widest = tiles.iter().map(|t| t.width).max().unwrap_or(0).max(1);
    let tallest = tiles.iter().map(|t| t.height).max().unwrap_or(0).max(1);

    // Room for one cell, and the text in it.
    let room = |count: usize| (options.max_side / count).saturating_sub(GAP).max(1) as f32;
    let longest = widest.max(tallest);
    let enlarge = if longest < SMALL { SMALL.div_ceil(longest) } else { 1 };
    let guess = (room(columns) / widest as f32).min(room(rows) / tallest as f32).min(enlarge as f32);
    let text_size = (0.035 * guess * longest as f32).clamp(14.0, 28.0).round();
    let strip = text_size as usize + 4;
    let for_height = (room(rows) - strip as f32).max(1.0) / tallest as f32;
    let scale = (room(columns) / widest as f32).min(for_height).min(enlarge as f32);
    let scaled = |side: usize| ((side as f32 * scale).round() as usize).max(1);
    let (cell_width, cell_height) = (scaled(widest) + GAP, scaled(tallest) + strip + GAP);

    let mut canvas = Canvas::filled(columns * cell_width, rows * cell_height, [255, 255, 255])?;
    for (index, tile) in tiles.iter().enumerate() {
        let (left, top) = (index % columns * cell_width, index / columns * cell_height);
        let caption = font::fit(&font::drawable(tile.caption), text_size, cell_width as f32 - 6.0);
        canvas.text(&caption, left as i64 + 2, top as i64 + 2, text_size, [0, 0, 0]);
        if tile.width > 0 && tile.height > 0 {
            let picture = draw_tile(tile, scaled(tile.width), scaled(tile.height), class_names, text_size, options)?;
            canvas.paste(&picture, left, top + strip);
        }
    }
    Ok(canvas)
}

/// [`draw_mosaic`], saved as JPEG.
///
/// # Errors
/// Those of [`draw_mosaic`] and [`save_jpeg`].
pub fn save_mosaic(path: &Path, tiles: &[Tile], class_names: &[String], options: MosaicOptions) -> Result<()> {
    save_jpeg(path, &draw_mosaic(tiles, class_names, options)?, JPEG_QUALITY)
}

fn draw_tile(
    tile: &Tile,
    width: usize,
    height: usize,
    class_names: &[String],
    text_size: f32,
    options: MosaicOptions,
) -> Result<Canvas> {
    let mut picture = Canvas::from_rgb(width, height, resized(tile, width, height)?)?;
    let (scale_x, scale_y) = (width as f32 / tile.width as f32, height as f32 / tile.height as f32);
    let boxes: Vec<LabelledBox> = tile
        .boxes
        .iter()
        .filter(|b| b.confidence.is_none_or(|c| c >= options.min_confidence))
        .map(|b| LabelledBox {
            xyxy: [b.xyxy[0] * scale_x, b.xyxy[1] * scale_y, b.xyxy[2] * scale_x, b.xyxy[3] * scale_y],
            class: b.class,
            label: label_text(class_names, b.class, b.confidence, 1),
        })
        .collect();
    picture.boxes(&boxes, BoxStyle { text_size, ..BoxStyle::for_picture(width, height) });
    Ok(picture)
}

fn resized(tile: &Tile, width: usize, height: usize) -> Result<Vec<u8>> {
    if (width, height) == (tile.width, tile.height) {
        return Ok(tile.pixels.to_vec());
    }
    let wrong = || Error::PixelCount {
        width: tile.width,
        height: tile.height,
        expected: tile.width.saturating_mul(tile.height).saturating_mul(3),
        got: tile.pixels.len(),
    };
    let side = |side: usize| u32::try_from(side).map_err(|_| wrong());
    let source: ImageBuffer<image::Rgb<u8>, &[u8]> =
        ImageBuffer::from_raw(side(tile.width)?, side(tile.height)?, tile.pixels).ok_or_else(wrong)?;
    // The triangle filter averages over all source pixels when it shrinks: thin things stay visible.
    Ok(resize(&source, side(width)?, side(height)?, FilterType::Triangle).into_raw())
}
