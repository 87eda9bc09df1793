//! Image files to upright RGB pictures, by content and not by suffix.
//!
//! Alpha is dropped without blending, so hidden colours show, as OpenCV's reader does. JPEG goes through
//! zune-jpeg in strict mode: a file that ends early is an error here and not a half grey picture.

use std::io::Cursor;
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::error::DataError;
use crate::picture::Picture;

/// Bounds for pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Pixels of the largest accepted picture.
    pub max_pixels: u64,
    /// Shortest accepted side in pixels.
    pub min_side: u32,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { max_pixels: 178_956_970, min_side: 10 }
    }
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// Found from the first bytes.
    pub format: ImageFormat,
    /// Width of the upright picture.
    pub width: u32,
    /// Height of the upright picture.
    pub height: u32,
}

/// Reads a whole file, trying three times: files on network mounts fail now and then. Folders, and pipes and
/// devices, whose reading may never end, are errors.
pub fn read_file(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut attempt = 0;
    loop {
        match regular(path).and_then(|()| std::fs::read(path)) {
            Ok(bytes) => return Ok(bytes),
            Err(e) if attempt < 2 && is_passing(&e) => {
                attempt += 1;
                std::thread::sleep(std::time::Duration::from_millis(50 << attempt));
            }
            Err(e) => return Err(DataError::io(path, e)),
        }
    }
}

/// An error unless the path, links followed, is a regular file.
fn regular(path: &Path) -> std::io::Result<()> {
    let meta = std::fs::metadata(path)?;
    let reason = if meta.is_file() {
        return Ok(());
    } else if meta.is_dir() {
        "is a folder; expected a file"
    } else {
        "is a pipe, a socket or a device; expected a regular file"
    };
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason))
}

fn is_passing(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidInput, IsADirectory, NotFound, PermissionDenied};
    !matches!(e.kind(), NotFound | PermissionDenied | IsADirectory | InvalidInput)
}

/// Size and kind from the header. `bytes` is the whole file; `path` is for messages.
pub fn probe(path: &Path, bytes: &[u8], limits: &ImageLimits) -> Result<ImageHeader, DataError> {
    let format = format_of(path, bytes)?;
    let (width, height, orientation) = if format == ImageFormat::Jpeg {
        let mut decoder = jpeg_decoder(bytes, true);
        if decoder.decode_headers().is_err() {
            decoder = jpeg_decoder(bytes, false);
            decoder.decode_headers().map_err(|e| jpeg_error(path, &e.to_string()))?;
        }
        let info = decoder.info().ok_or_else(|| jpeg_error(path, "no frame header"))?;
        (u32::from(info.width), u32::from(info.height), exif_orientation(decoder.exif()))
    } else {
        let mut decoder = other_decoder(path, bytes, format)?;
        let (width, height) = decoder.dimensions();
        (width, height, decoder.orientation().unwrap_or(Orientation::NoTransforms))
    };
    check_size(path, width, height, limits)?;
    let turned = matches!(
        orientation,
        Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH
    );
    let (width, height) = if turned { (height, width) } else { (width, height) };
    Ok(ImageHeader { format, width, height })
}

/// Decodes a file's bytes to an upright RGB picture.
pub fn decode(path: &Path, bytes: &[u8], limits: &ImageLimits) -> Result<Picture, DataError> {
    let format = format_of(path, bytes)?;
    let (picture, orientation) = if format == ImageFormat::Jpeg {
        decode_jpeg(path, bytes, limits)?
    } else {
        decode_other(path, bytes, format, limits)?
    };
    upright(path, picture, orientation)
}

/// Decodes a file's bytes and makes sure that they are all there, at the price of decoding a JPEG twice:
/// a decoder makes up what is missing at the end of a cut file (also when an end marker was glued on), so
/// a picture that changes with what follows the data was cut.
pub fn decode_verified(path: &Path, bytes: &[u8], limits: &ImageLimits) -> Result<Picture, DataError> {
    let picture = decode(path, bytes, limits)?;
    if format_of(path, bytes)? != ImageFormat::Jpeg {
        return Ok(picture);
    }
    let end = end_of_scans(bytes);
    let mut probe = bytes[..end].to_vec();
    // Bytes without markers that decode to noise.
    probe.extend((0u32..4096).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 % 251));
    probe.extend([0xFF, 0xD9]);
    let mut decoder = jpeg_decoder(&probe, false);
    let orientation = decoder.decode_headers().map(|()| exif_orientation(decoder.exif()));
    let other = decoder.decode().ok().and_then(|data| {
        let info = decoder.info()?;
        let whole = Picture::from_data(u32::from(info.width), u32::from(info.height), data)?;
        upright(path, whole, orientation.unwrap_or(Orientation::NoTransforms)).ok()
    });
    if other.as_ref() != Some(&picture) {
        return Err(jpeg_error(path, "the file is truncated, its data end before the picture does"));
    }
    Ok(picture)
}

/// Where the entropy-coded data of a JPEG's last scan end: at the first marker after them, or the file's end.
fn end_of_scans(bytes: &[u8]) -> usize {
    let mut at = 2;
    let mut end = bytes.len();
    while at + 4 <= bytes.len() {
        if bytes[at] != 0xFF {
            at += 1;
            continue;
        }
        match bytes[at + 1] {
            0xD9 => break,
            0x00 | 0x01 | 0xD0..=0xD8 => at += 2,
            0xFF => at += 1,
            marker => {
                at += 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
                if marker == 0xDA {
                    let data = at.min(bytes.len());
                    let stop = bytes[data..]
                        .windows(2)
                        .position(|w| w[0] == 0xFF && !matches!(w[1], 0x00 | 0xD0..=0xD7 | 0xFF));
                    end = stop.map_or(bytes.len(), |s| data + s);
                    at = end;
                }
            }
        }
    }
    end
}

/// Reads and decodes a file.
pub fn decode_file(path: &Path, limits: &ImageLimits) -> Result<Picture, DataError> {
    decode(path, &read_file(path)?, limits)
}

fn bad(path: &Path, reason: impl Into<String>) -> DataError {
    DataError::Image { path: path.to_path_buf(), reason: reason.into() }
}

fn jpeg_error(path: &Path, reason: &str) -> DataError {
    let reason = if reason.contains("Exhausted data") { "the file is truncated" } else { reason.trim() };
    bad(path, format!("damaged JPEG: {reason}"))
}

/// A decoder's error in words that need no knowledge of the decoder.
fn other_error(path: &Path, bytes: &[u8], format: ImageFormat, error: &ImageError) -> DataError {
    let text = error.to_string();
    let ended = |e: &std::io::Error| e.kind() == std::io::ErrorKind::UnexpectedEof;
    let name = match format {
        ImageFormat::Png => "PNG",
        ImageFormat::WebP => "WebP",
        ImageFormat::Tiff => "TIFF",
        ImageFormat::Bmp => "BMP",
        _ => "image",
    };
    if matches!(error, ImageError::IoError(e) if ended(e)) || text.contains("unexpected end of file") {
        bad(path, format!("damaged {name}: the file is truncated"))
    } else if format == ImageFormat::Png && text.contains("CRC error") {
        bad(path, "damaged PNG (checksum)")
    } else if format == ImageFormat::Tiff && matches!(error, ImageError::Unsupported(_)) {
        match tiff_float_bits(bytes) {
            Some(bits) => bad(path, format!("{bits}-bit float TIFF; convert it to 8 bits")),
            None => bad(path, "TIFF with pixels of a kind that is not supported; convert it to 8-bit RGB"),
        }
    } else {
        bad(path, format!("damaged or unsupported {name}: {text}"))
    }
}

/// Bits of a sample of a TIFF's first picture where the samples are floats (tag 339 = 3).
fn tiff_float_bits(bytes: &[u8]) -> Option<u16> {
    let little = match bytes.get(..4)? {
        b"II*\0" => true,
        b"MM\0*" => false,
        _ => return None,
    };
    let u16_at = |at: usize| {
        let b = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) })
    };
    let u32_at = |at: usize| {
        let b = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) } as usize)
    };
    let start = u32_at(4)?;
    // Up to two values lie in the entry itself, more of them where it points.
    let first = |tag: u16| {
        let entry = (0..usize::from(u16_at(start)?)).map(|i| start + 2 + 12 * i).find(|&at| u16_at(at) == Some(tag))?;
        u16_at(if u32_at(entry + 4)? <= 2 { entry + 8 } else { u32_at(entry + 8)? })
    };
    (first(339)? == 3).then(|| first(258)).flatten()
}

fn check_size(path: &Path, width: u32, height: u32, limits: &ImageLimits) -> Result<(), DataError> {
    if u64::from(width) * u64::from(height) > limits.max_pixels {
        return Err(DataError::TooLarge { path: path.to_path_buf(), width, height, limit: limits.max_pixels });
    }
    if width.min(height) < limits.min_side {
        return Err(bad(
            path,
            format!("image size {width}x{height}: both sides must have at least {} px", limits.min_side),
        ));
    }
    Ok(())
}

fn format_of(path: &Path, bytes: &[u8]) -> Result<ImageFormat, DataError> {
    if bytes.is_empty() {
        return Err(bad(path, "the file is empty"));
    }
    let format = match image::guess_format(bytes) {
        Ok(format) => format,
        Err(_) => {
            let start: String = String::from_utf8_lossy(&bytes[..bytes.len().min(256)]).trim_start().to_lowercase();
            let text = start.starts_with("<html") || start.starts_with("<!doctype") || start.starts_with("<?xml");
            let why = if text { "a web page saved as an image" } else { "not an image of a known kind" };
            return Err(bad(path, why));
        }
    };
    match format {
        ImageFormat::Jpeg | ImageFormat::Png | ImageFormat::WebP | ImageFormat::Tiff | ImageFormat::Bmp => Ok(format),
        other => Err(bad(
            path,
            format!("{other:?} content is not supported (supported: JPEG, PNG, WebP, TIFF, BMP); convert the file"),
        )),
    }
}

fn jpeg_decoder(bytes: &[u8], strict: bool) -> JpegDecoder<ZCursor<&[u8]>> {
    let options = DecoderOptions::default()
        .jpeg_set_out_colorspace(ColorSpace::RGB)
        .set_strict_mode(strict)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX));
    JpegDecoder::new_with_options(ZCursor::new(bytes), options)
}

fn exif_orientation(exif: Option<&Vec<u8>>) -> Orientation {
    exif.and_then(|chunk| Orientation::from_exif_chunk(chunk)).unwrap_or(Orientation::NoTransforms)
}

fn decode_jpeg(path: &Path, bytes: &[u8], limits: &ImageLimits) -> Result<(Picture, Orientation), DataError> {
    let attempt = |strict: bool| -> Result<(Picture, Orientation), DataError> {
        let mut decoder = jpeg_decoder(bytes, strict);
        decoder.decode_headers().map_err(|e| jpeg_error(path, &e.to_string()))?;
        let info = decoder.info().ok_or_else(|| jpeg_error(path, "no frame header"))?;
        let (width, height) = (u32::from(info.width), u32::from(info.height));
        check_size(path, width, height, limits)?;
        let data = decoder.decode().map_err(|e| jpeg_error(path, &e.to_string()))?;
        let orientation = exif_orientation(decoder.exif());
        let picture =
            Picture::from_data(width, height, data).ok_or_else(|| jpeg_error(path, "wrong amount of pixels"))?;
        Ok((picture, orientation))
    };
    match attempt(true) {
        // Strict mode also refuses oddities that lose no pixel, such as stray bytes between headers.
        Err(DataError::Image { reason, .. }) if is_harmless(&reason) => attempt(false),
        other => other,
    }
}

fn is_harmless(reason: &str) -> bool {
    reason.contains("Extra bytes between headers")
}

fn other_decoder<'a>(path: &Path, bytes: &'a [u8], format: ImageFormat) -> Result<impl ImageDecoder + 'a, DataError> {
    ImageReader::with_format(Cursor::new(bytes), format)
        .into_decoder()
        .map_err(|e| other_error(path, bytes, format, &e))
}

fn decode_other(
    path: &Path,
    bytes: &[u8],
    format: ImageFormat,
    limits: &ImageLimits,
) -> Result<(Picture, Orientation), DataError> {
    let mut decoder = other_decoder(path, bytes, format)?;
    let (width, height) = decoder.dimensions();
    check_size(path, width, height, limits)?;
    if matches!(decoder.color_type(), image::ColorType::Rgb32F | image::ColorType::Rgba32F) {
        return Err(bad(path, "32-bit float TIFF; convert it to 8 bits"));
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut room = Limits::no_limits();
    room.max_alloc = Some(limits.max_pixels.saturating_mul(8).saturating_add(64 << 20));
    decoder.set_limits(room).map_err(|e| bad(path, e.to_string()))?;
    let image = DynamicImage::from_decoder(decoder).map_err(|e| other_error(path, bytes, format, &e))?;
    let rgb = image.into_rgb8();
    let picture = Picture::from_data(rgb.width(), rgb.height(), rgb.into_raw())
        .ok_or_else(|| bad(path, "wrong amount of pixels"))?;
    Ok((picture, orientation))
}

fn upright(path: &Path, picture: Picture, orientation: Orientation) -> Result<Picture, DataError> {
    if orientation == Orientation::NoTransforms {
        return Ok(picture);
    }
    let buffer = image::RgbImage::from_raw(picture.width, picture.height, picture.data)
        .ok_or_else(|| bad(path, "wrong amount of pixels"))?;
    let mut image = DynamicImage::ImageRgb8(buffer);
    image.apply_orientation(orientation);
    let rgb = image.into_rgb8();
    Picture::from_data(rgb.width(), rgb.height(), rgb.into_raw()).ok_or_else(|| bad(path, "wrong amount of pixels"))
}
