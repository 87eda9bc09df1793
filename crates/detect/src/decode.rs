//! Evaluation decoding: raw head maps to boxes in network pixels and class scores.

use rayon::prelude::*;

use crate::boxes::corners_to_xywh;
use crate::dfl::{BOX_CHANNELS, decode_corners};
use crate::loss::Branch;
use crate::{Levels, Real};

/// What is wrong with the arguments of [`decode`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    #[error("{boxes} box maps and {classes} class maps for {strides} strides (none may be 0)")]
    Levels { boxes: usize, classes: usize, strides: usize },
    #[error("level {level}: {what} of {len} values do not hold {batch} maps of {h}x{w} cells with {channels} channels")]
    Map { level: usize, what: &'static str, batch: usize, h: usize, w: usize, channels: usize, len: usize },
    #[error("output of {len} values with pitch {pitch} does not hold {rows} rows of {columns}")]
    Output { len: usize, pitch: usize, rows: usize, columns: usize },
}

/// Anchors per image of a branch: the sum of its maps' cells.
pub fn anchors_per_image<T>(branch: &Branch<'_, T>) -> usize {
    branch.boxes.iter().map(|map| map.h * map.w).sum()
}

/// Decodes a branch to (batch, anchors, 4 + nc): box centre x, centre y, width, height in network pixels, then
/// `nc` scores after the sigmoid. Anchors run level by level, row by row. `pitch` elements lie between
/// consecutive rows of `out`; elements beyond 4 + nc are left alone.
///
/// # Errors
/// [`DecodeError`] when maps, strides and output do not fit together.
pub fn decode<T: Real>(
    branch: &Branch<'_, T>,
    strides: &[usize],
    batch: usize,
    nc: usize,
    out: &mut [T],
    pitch: usize,
) -> Result<(), DecodeError> {
    let (boxes, classes) = (branch.boxes.len(), branch.classes.len());
    let sizes = branch.boxes.iter().zip(strides).map(|(map, &stride)| (map.h, map.w, stride));
    let levels = Levels::new(sizes)
        .filter(|levels| [boxes, classes, strides.len()] == [levels.as_slice().len(); 3])
        .ok_or(DecodeError::Levels { boxes, classes, strides: strides.len() })?;
    for (level, (b, c)) in branch.boxes.iter().zip(branch.classes).enumerate() {
        let size = &levels.as_slice()[level];
        for (what, map, channels) in [("box logits", b, BOX_CHANNELS), ("class logits", c, nc)] {
            if (map.h, map.w) != (size.h, size.w) || !map.holds(batch, channels) {
                let (h, w, len) = (map.h, map.w, map.data.len());
                return Err(DecodeError::Map { level, what, batch, h, w, channels, len });
            }
        }
    }
    let per_image = levels.anchors();
    let columns = 4 + nc;
    let rows = batch.saturating_mul(per_image);
    if pitch < columns || rows.saturating_mul(pitch) > out.len().saturating_add(pitch - columns) {
        return Err(DecodeError::Output { len: out.len(), pitch, rows, columns });
    }
    out.par_chunks_mut(pitch).take(rows).enumerate().for_each(|(row, out)| {
        let (image, anchor) = (row / per_image, row % per_image);
        let (level, cell) = levels.locate(anchor);
        let size = &levels.as_slice()[level];
        let (boxes, classes) = (&branch.boxes[level], &branch.classes[level]);
        let cell_row = image * size.cells() + cell;
        let logits = boxes.data[cell_row * boxes.pitch..].first_chunk().expect("map lengths were checked");
        let stride = T::of(size.stride as f64);
        let corners = decode_corners(logits, size.centre(cell));
        out[..4].copy_from_slice(&corners_to_xywh(&corners).map(|v| v * stride));
        let logits = &classes.data[cell_row * classes.pitch..][..nc];
        for (score, logit) in out[4..columns].iter_mut().zip(logits) {
            *score = logit.sigmoid();
        }
    });
    Ok(())
}
