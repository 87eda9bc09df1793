//! Pictures on a grey canvas.

use super::{FILL, Fetch, LoadFailure, fill_polygon};
use crate::error::DataError;
use crate::picture::Picture;
use crate::recipe::{Layer, Placement};
use crate::resize::{Interpolation, resize};
use std::sync::Arc;

/// Fills the canvas and draws the layer's pictures.
pub(super) fn draw(layer: &Layer, fetch: &Fetch, canvas: &mut Picture, failures: &mut Vec<LoadFailure>) {
    let [w, h] = layer.canvas_wh;
    (canvas.width, canvas.height) = (w, h);
    let pitch = w as usize * 3;
    canvas.data.clear();
    canvas.data.resize(pitch * h as usize, FILL);
    for placement in layer.placements.iter().filter(|p| !p.place.is_empty()) {
        let entry = match entry(placement, fetch) {
            Ok(entry) => entry,
            Err(e) => {
                failures.push((placement.sample, e));
                continue;
            }
        };
        let again;
        let picture = if placement.wh == placement.entry_wh {
            entry.as_ref()
        } else {
            again = resize(&entry, placement.wh[0], placement.wh[1], Interpolation::Bilinear);
            &again
        };
        let [x0, y0, x1, y1] = placement.place.visible.map(|v| v as usize);
        let [dx, dy] = placement.place.offset;
        // `visible` is cut to the picture and the canvas, so these are inside both.
        let (from_x, count) = ((x0 as i32 - dx) as usize * 3, (x1 - x0) * 3);
        for y in y0..y1 {
            let source = &picture.row((y as i32 - dy) as usize)[from_x..from_x + count];
            canvas.data[y * pitch + x0 * 3..][..count].copy_from_slice(source);
        }
    }
}

/// The picture of a placement, at the size that it was drawn for.
pub(crate) fn entry(placement: &Placement, fetch: &Fetch) -> Result<Arc<Picture>, DataError> {
    let entry = fetch(placement.sample)?;
    let (expected, found) = (placement.entry_wh, [entry.width, entry.height]);
    if found == expected {
        return Ok(entry);
    }
    let reason = format!(
        "expected {}x{} after resizing, got {}x{}: the file changed since the scan",
        expected[0], expected[1], found[0], found[1]
    );
    Err(DataError::Image { path: Default::default(), reason })
}

/// Copy-paste: each pixel whose mirror image lies in one of the outlines takes the mirrored canvas's colour.
pub fn paste_mirrored(canvas: &mut Picture, outlines: &[Vec<[i32; 2]>], mask: &mut Vec<u8>) {
    let (w, h) = (canvas.width as usize, canvas.height as usize);
    mask.clear();
    mask.resize(w * h, 0);
    for outline in outlines {
        fill_polygon(mask, w, h, outline);
    }
    let mut before = vec![0u8; w * 3];
    for y in 0..h {
        let marks = &mask[y * w..(y + 1) * w];
        if marks.iter().all(|&m| m == 0) {
            continue;
        }
        let row = &mut canvas.data[y * w * 3..(y + 1) * w * 3];
        before.copy_from_slice(row);
        for (x, _) in marks.iter().enumerate().filter(|(_, m)| **m != 0) {
            let to = w - 1 - x;
            row[to * 3..to * 3 + 3].copy_from_slice(&before[x * 3..x * 3 + 3]);
        }
    }
}
