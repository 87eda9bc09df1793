//! Validation samples: resized, letterboxed without enlarging, nothing random.

use crate::letterbox::{Letterbox, LetterboxOptions, letterbox, long_side_to};
use crate::mosaic::rows_on_canvas;
use crate::picture::Picture;
use crate::recipe::{FinishedBox, normalised};
use crate::render::FILL;
use crate::resize::{Interpolation, resize};
use crate::scan::Sample;

/// Where a validation picture lies in its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValGeometry {
    /// Width and height with the long side at the network's size.
    pub entry_wh: [u32; 2],
    /// From that size into the frame.
    pub fit: Letterbox,
    /// Height and width of the frame over those of the original picture: (h, w), before letterboxing.
    pub ratio_hw: [f64; 2],
}

impl ValGeometry {
    /// Geometry of a `width` x `height` picture for network size `size` in a frame of height x width.
    /// A frame smaller than the network's size shrinks further; nothing is enlarged but by `size` itself.
    pub fn new(width: u32, height: u32, size: u32, frame_hw: [u32; 2]) -> Self {
        let (entry_wh, _) = long_side_to(width, height, size);
        let fit = letterbox(entry_wh[0], entry_wh[1], &LetterboxOptions::frame(frame_hw[0], frame_hw[1], false));
        let ratio_hw =
            [f64::from(entry_wh[1]) / f64::from(height.max(1)), f64::from(entry_wh[0]) / f64::from(width.max(1))];
        Self { entry_wh, fit, ratio_hw }
    }

    /// The labels as fractions of the frame, clipped to the picture: what lies beyond is grey border.
    pub fn boxes(&self, sample: &Sample, id: usize) -> Vec<FinishedBox> {
        let mut rows = Vec::with_capacity(sample.labels.len());
        let scaled = [0, 1].map(|i| self.fit.ratio[i] * f64::from(self.entry_wh[i]));
        rows_on_canvas(&sample.labels, &[], id, scaled, self.fit.pad, None, &mut rows);
        let (low, span) = (self.fit.pad.map(|v| v as f32), scaled.map(|v| v as f32));
        let inside = |v: f32, axis: usize| v.clamp(low[axis], low[axis] + span[axis]);
        rows.iter()
            .map(|r| [inside(r.xyxy[0], 0), inside(r.xyxy[1], 1), inside(r.xyxy[2], 0), inside(r.xyxy[3], 1)])
            .zip(&rows)
            .map(|(xyxy, r)| FinishedBox { class: r.class, xywh: normalised(xyxy, self.fit.out_wh), sample: id })
            .collect()
    }

    /// Draws the resized picture (as the pool gives it) into a frame of `out_wh` pixels.
    pub fn draw(&self, entry: &Picture, out: &mut [u8]) {
        out.fill(FILL);
        let [w, h] = self.fit.content_wh;
        let again;
        let picture = if (entry.width, entry.height) == (w, h) {
            entry
        } else {
            again = resize(entry, w, h, Interpolation::Bilinear);
            &again
        };
        let pitch = self.fit.out_wh[0] as usize * 3;
        let [x0, y0] = self.fit.content_xy.map(|v| v as usize);
        for y in 0..h as usize {
            let start = (y0 + y) * pitch + x0 * 3;
            out[start..start + w as usize * 3].copy_from_slice(picture.row(y));
        }
    }
}
