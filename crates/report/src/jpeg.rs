//! Pictures written to files, each whole or not at all: JPEG for pictures of data, PNG for plots, or what the file's suffix says.

use std::io::Cursor;
use std::path::Path;

use image::codecs::bmp::BmpEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::codecs::tiff::TiffEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::atomic::write_bytes_atomic;
use crate::draw::Canvas;
use crate::error::{Error, Result};

/// JPEG quality at which text on boxes stays clean and files stay a third of their size at quality 100.
pub const JPEG_QUALITY: u8 = 90;

/// Saves `picture` as JPEG of `quality` 1..=100 (values outside are brought inside), whatever the suffix of `path`.
///
/// # Errors
/// [`Error::PictureSize`] for an empty picture or one above 65535 pixels a side, [`Error::Encode`], [`Error::Io`].
pub fn save_jpeg(path: &Path, picture: &Canvas, quality: u8) -> Result<()> {
    save(path, picture, 65_535, |out, w, h| {
        JpegEncoder::new_with_quality(out, quality.clamp(1, 100)).write_image(
            picture.pixels(),
            w,
            h,
            ExtendedColorType::Rgb8,
        )
    })
}

/// Saves `picture` as PNG, whatever the suffix of `path`.
///
/// # Errors
/// As [`save_jpeg`], with the format's own limit.
pub fn save_png(path: &Path, picture: &Canvas) -> Result<()> {
    save(path, picture, i32::MAX as usize, |out, w, h| {
        PngEncoder::new(out).write_image(picture.pixels(), w, h, ExtendedColorType::Rgb8)
    })
}

/// Saves `picture` in the format of the suffix (any case): jpg and jpeg at [`JPEG_QUALITY`], png, bmp, webp (lossless), tif and tiff.
///
/// # Errors
/// [`Error::UnknownPictureFormat`] for another suffix, else as [`save_jpeg`].
pub fn save_picture(path: &Path, picture: &Canvas) -> Result<()> {
    let suffix = path.extension().map(|s| s.to_string_lossy().to_lowercase()).unwrap_or_default();
    let colour = ExtendedColorType::Rgb8;
    match suffix.as_str() {
        "jpg" | "jpeg" => save_jpeg(path, picture, JPEG_QUALITY),
        "png" => save_png(path, picture),
        "bmp" => {
            save(path, picture, 65_535, |out, w, h| BmpEncoder::new(out).write_image(picture.pixels(), w, h, colour))
        }
        "webp" => save(path, picture, 16_383, |out, w, h| {
            WebPEncoder::new_lossless(out).write_image(picture.pixels(), w, h, colour)
        }),
        "tif" | "tiff" => save(path, picture, i32::MAX as usize, |out, w, h| {
            TiffEncoder::new(out).write_image(picture.pixels(), w, h, colour)
        }),
        _ => Err(Error::UnknownPictureFormat { path: path.to_path_buf() }),
    }
}

/// Encodes into memory (TIFF needs to seek), then writes the file at once.
fn save(
    path: &Path,
    picture: &Canvas,
    limit: usize,
    encode: impl FnOnce(&mut Cursor<Vec<u8>>, u32, u32) -> image::ImageResult<()>,
) -> Result<()> {
    let (width, height) = (picture.width(), picture.height());
    let fits = |side: usize| (1..=limit).contains(&side);
    let (Ok(w), Ok(h), true) = (u32::try_from(width), u32::try_from(height), fits(width) && fits(height)) else {
        return Err(Error::PictureSize { path: path.to_path_buf(), width, height, limit });
    };
    let mut bytes = Cursor::new(Vec::new());
    encode(&mut bytes, w, h).map_err(|source| Error::Encode { path: path.to_path_buf(), source })?;
    write_bytes_atomic(path, bytes.get_ref())
}
