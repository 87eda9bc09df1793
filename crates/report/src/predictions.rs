//! Files of predictions: COCO-style JSON for evaluation tools, and one YOLO text row a box.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;

use crate::atomic::write_atomic;
use crate::error::{Error, Result};
use crate::number::{format_g, round_to};

/// The id of a picture in a prediction file: COCO's numbers where the file stem is one, else the stem.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
pub enum ImageId {
    Number(u64),
    Stem(String),
}

impl ImageId {
    /// `000000000139` is number 139; `img_7`, and a number too large for 64 bits, stay text.
    pub fn from_stem(stem: &str) -> ImageId {
        let numeric = !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_digit());
        match stem.parse() {
            Ok(number) if numeric => ImageId::Number(number),
            _ => ImageId::Stem(stem.to_owned()),
        }
    }
}

impl std::fmt::Display for ImageId {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            ImageId::Number(number) => write!(f, "{number}"),
            ImageId::Stem(stem) => f.write_str(stem),
        }
    }
}

/// Hands out the ids of one file's images, whose stems differ. A number that two stems spell, `7` and `007`, goes to
/// the first; the others keep their text.
#[derive(Debug, Default)]
pub struct ImageIds {
    taken: HashSet<ImageId>,
}

impl ImageIds {
    /// The id for a stem.
    pub fn assign(&mut self, stem: &str) -> ImageId {
        let id = ImageId::from_stem(stem);
        if self.taken.insert(id.clone()) { id } else { ImageId::Stem(stem.to_owned()) }
    }
}

/// One row of a COCO results file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CocoDetection {
    pub image_id: ImageId,
    pub category_id: u32,
    /// Left, top, width and height in pixels of the original picture, three decimals.
    pub bbox: [f64; 4],
    /// Confidence 0..=1, five decimals.
    pub score: f64,
}

impl CocoDetection {
    /// A row from a box `[x1, y1, x2, y2]` in pixels of the original picture.
    ///
    /// # Errors
    /// [`Error::NotFinite`] where the box or the score is NaN or infinite, which JSON cannot hold.
    pub fn new(image_id: ImageId, category_id: u32, xyxy: [f32; 4], score: f32) -> Result<CocoDetection> {
        let [x1, y1, x2, y2] = xyxy.map(f64::from);
        let (bbox, score) = ([x1, y1, x2 - x1, y2 - y1], f64::from(score));
        if !bbox.iter().chain([&score]).all(|v| v.is_finite()) {
            return Err(Error::NotFinite { image: image_id.to_string(), category: category_id, bbox, score });
        }
        Ok(CocoDetection { image_id, category_id, bbox: bbox.map(|v| round_to(v, 3)), score: round_to(score, 5) })
    }
}

/// Writes `detections` as a COCO results file, whole or not at all: one JSON list, one row a line.
pub fn write_coco_json(path: &Path, detections: &[CocoDetection]) -> Result<()> {
    write_atomic(path, |w| {
        w.write_all(b"[")?;
        for (index, detection) in detections.iter().enumerate() {
            w.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *w, detection)?;
        }
        w.write_all(b"\n]\n")
    })
}

/// A YOLO text row `class cx cy w h [confidence]` with six significant digits, without a line break. The box is relative to the
/// picture: centre and size in 0..=1.
pub fn yolo_row(class: usize, cxcywh: [f32; 4], confidence: Option<f32>) -> String {
    let mut row = class.to_string();
    for value in cxcywh.into_iter().chain(confidence) {
        row.push(' ');
        row += &format_g(f64::from(value), 6);
    }
    row
}

/// Writes `rows` to a label file, whole or not at all, each followed by a line break. An older file of that name is replaced, never
/// appended to, so that running again gives the same file.
pub fn write_yolo_rows(path: &Path, rows: &[String]) -> Result<()> {
    write_atomic(path, |w| rows.iter().try_for_each(|row| writeln!(w, "{row}")))
}
