//! Copy-paste: objects with an outline appear a second time, mirrored on the canvas.

use crate::geometry::intersection_over_second;
use crate::mosaic::CanvasRow;

/// A mirrored copy covers at most this share of any box that is there.
pub const MAX_COVER: f32 = 0.30;

fn mirrored(xyxy: [f32; 4], width: f32) -> [f32; 4] {
    [width - xyxy[2], xyxy[1], width - xyxy[0], xyxy[3]]
}

/// Rows with an outline whose mirrored copy covers every box by less than [`MAX_COVER`] of that box's area.
pub fn candidates(rows: &[CanvasRow], canvas_width: u32) -> Vec<usize> {
    (0..rows.len())
        .filter(|&i| {
            let copy = mirrored(rows[i].xyxy, canvas_width as f32);
            rows[i].polygon.is_some() && rows.iter().all(|r| intersection_over_second(copy, r.xyxy) < MAX_COVER)
        })
        .collect()
}

/// How many of `n` candidates are pasted: p * n, half to even.
pub fn count(p: f64, n: usize) -> usize {
    ((p * n as f64).round_ties_even().max(0.0) as usize).min(n)
}

/// Appends the mirrored rows. Returns the outlines that are pasted, unmirrored, in whole pixels: a canvas
/// pixel whose mirror image lies inside one of them takes the mirrored canvas's colour.
pub fn paste(rows: &mut Vec<CanvasRow>, chosen: &[usize], canvas_width: u32) -> Vec<Vec<[i32; 2]>> {
    let width = canvas_width as f32;
    let mut outlines = Vec::with_capacity(chosen.len());
    for &i in chosen {
        let Some(polygon) = rows[i].polygon.clone() else { continue };
        outlines.push(polygon.iter().map(|&[x, y]| [x as i32, y as i32]).collect());
        rows.push(CanvasRow {
            class: rows[i].class,
            xyxy: mirrored(rows[i].xyxy, width),
            polygon: Some(polygon.iter().map(|&[x, y]| [width - x, y]).collect()),
            sample: rows[i].sample,
        });
    }
    outlines
}
