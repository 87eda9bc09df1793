//! Small data sets in temporary folders.
#![allow(dead_code)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use data::{DataError, ScanOptions, Scanned, scan};
use image::codecs::jpeg::JpegEncoder;
use image::{DynamicImage, ImageEncoder, ImageFormat, RgbImage};

pub const ROW: &str = "0 0.5 0.5 0.2 0.4\n";

/// A noisy picture whose top left quarter is red.
pub fn picture(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        if x < width / 2 && y < height / 2 {
            image::Rgb([250, 5, 5])
        } else {
            let v = (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)).wrapping_mul(2_246_822_519);
            image::Rgb([(v >> 26) as u8, 128 + (v >> 26) as u8, (v >> 25) as u8])
        }
    })
}

pub fn jpeg_with_exif(picture: &RgbImage, exif: Option<Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = JpegEncoder::new_with_quality(&mut bytes, 95);
    if let Some(exif) = exif {
        encoder.set_exif_metadata(exif).unwrap();
    }
    encoder.encode_image(picture).unwrap();
    bytes
}

pub fn jpeg(width: u32, height: u32) -> Vec<u8> {
    jpeg_with_exif(&picture(width, height), None)
}

pub fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// A minimal EXIF block with an orientation.
pub fn exif(orientation: u8) -> Vec<u8> {
    let mut e = b"II*\0\x08\0\0\0\x01\0".to_vec();
    e.extend([0x12, 0x01, 0x03, 0, 1, 0, 0, 0, orientation, 0, 0, 0]);
    e.extend([0, 0, 0, 0]);
    e
}

/// A data set folder with `images/` and `labels/`.
pub struct Set {
    pub dir: tempfile::TempDir,
}

impl Set {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("images")).unwrap();
        fs::create_dir_all(dir.path().join("labels")).unwrap();
        Self { dir }
    }

    /// One good image and label.
    pub fn with_one() -> Self {
        let set = Self::new();
        set.write("images/good.jpg", jpeg(100, 40));
        set.write("labels/good.txt", ROW);
        set
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    pub fn scan_with(&self, change: impl Fn(&mut ScanOptions)) -> Result<Scanned, DataError> {
        let names = ["a".to_string(), "b".to_string()];
        let mut options = ScanOptions::new(&names, true);
        options.use_cache = false;
        options.cache_folder = Some(self.path("user-cache"));
        change(&mut options);
        scan(&[self.path("images")], self.dir.path(), &options)
    }

    pub fn scan(&self) -> Result<Scanned, DataError> {
        self.scan_with(|_| {})
    }
}

/// Every file below a folder with its bytes.
pub fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { out.push((path.clone(), fs::read(path).unwrap())) }
        }
    }
    out.sort();
    out
}

/// A 16x16 JPEG with Adobe's inverted CMYK samples, one flat colour; written by hand, as no encoder here does it.
pub fn cmyk_jpeg(inverted: [u8; 4]) -> Vec<u8> {
    let mut out = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        out.extend([0xFF, marker]);
        out.extend(((body.len() + 2) as u16).to_be_bytes());
        out.extend(body);
    };
    segment(0xEE, b"Adobe\0\x64\0\0\0\0\0");
    let mut table = vec![0u8];
    table.extend([1u8; 64]);
    segment(0xDB, &table);
    let mut frame = vec![8, 0, 16, 0, 16, 4];
    for id in 1..=4 {
        frame.extend([id, 0x11, 0]);
    }
    segment(0xC0, &frame);
    // DC categories 0 to 11 have 4-bit codes; the only AC code is "end of block", one bit.
    let mut dc = vec![0x00, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    dc.extend(0..12);
    segment(0xC4, &dc);
    segment(0xC4, &[0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    segment(0xDA, &[4, 1, 0, 2, 0, 3, 0, 4, 0, 0, 63, 0]);
    let mut bits = String::new();
    let mut previous = [0i32; 4];
    for _ in 0..4 {
        for (c, &v) in inverted.iter().enumerate() {
            let dc = (i32::from(v) - 128) * 8;
            let diff = dc - previous[c];
            previous[c] = dc;
            let size = (32 - diff.unsigned_abs().leading_zeros()) as usize;
            bits += &format!("{size:04b}");
            if size > 0 {
                let value = if diff > 0 { diff } else { diff + (1 << size) - 1 };
                bits += &format!("{value:0size$b}");
            }
            bits.push('0');
        }
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    for byte in bits.as_bytes().chunks(8) {
        let byte = u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap();
        out.push(byte);
        if byte == 0xFF {
            out.push(0);
        }
    }
    out.extend([0xFF, 0xD9]);
    out
}
