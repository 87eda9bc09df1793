//! Four pictures around a centre on a canvas of twice the network's size.

use crate::labels::{Label, Polygon};

/// Where one picture goes on a canvas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the picture's top left pixel on the canvas; may be negative.
    pub offset: [i32; 2],
    /// Visible part on the canvas: x0, y0, x1, y1 (end exclusive); empty when x1 <= x0 or y1 <= y0.
    pub visible: [i32; 4],
}

impl Place {
    /// The whole picture at an offset, cut to the canvas.
    pub fn new(offset: [i32; 2], wh: [u32; 2], canvas_wh: [u32; 2]) -> Self {
        let end = |i: usize| offset[i].saturating_add_unsigned(wh[i]).min(canvas_wh[i] as i32);
        Self { offset, visible: [offset[0].max(0), offset[1].max(0), end(0), end(1)] }
    }

    /// True when no pixel shows.
    pub fn is_empty(&self) -> bool {
        let [x0, y0, x1, y1] = self.visible;
        x1 <= x0 || y1 <= y0
    }
}

/// Places the k-th picture (0 top left, 1 top right, 2 bottom left, 3 bottom right) of a mosaic of
/// network size `s`: a corner touches the centre, and the canvas cuts what sticks out.
pub fn place(k: usize, centre: [i32; 2], wh: [u32; 2], s: u32) -> Place {
    let [xc, yc] = centre;
    let [w, h] = wh.map(|v| v as i32);
    let offset = [if k.is_multiple_of(2) { xc - w } else { xc }, if k < 2 { yc - h } else { yc }];
    Place::new(offset, wh, [2 * s, 2 * s])
}

/// A label row on a canvas.
#[derive(Clone, Debug, PartialEq)]
pub struct CanvasRow {
    /// Class id.
    pub class: u32,
    /// x0, y0, x1, y1 in canvas pixels.
    pub xyxy: [f32; 4],
    /// The outline in canvas pixels.
    pub polygon: Option<Polygon>,
    /// Sample the row comes from.
    pub sample: usize,
}

/// Brings a picture's labels to its place on a canvas: `wh` are the picture's pixels there. Boxes and
/// points are cut to `limit_wh` when given (a mosaic does that, a letterbox does not).
pub fn rows_on_canvas(
    labels: &[Label],
    segments: &[Option<Polygon>],
    sample: usize,
    wh: [f64; 2],
    offset: [f64; 2],
    limit_wh: Option<[u32; 2]>,
    out: &mut Vec<CanvasRow>,
) {
    let [w, h] = wh.map(|v| v as f32);
    let [dx, dy] = offset.map(|v| v as f32);
    let cut = |v: f32, axis: usize| limit_wh.map_or(v, |limit| v.clamp(0.0, limit[axis] as f32));
    for (i, l) in labels.iter().enumerate() {
        let xyxy = [
            cut(w * (l.cx - l.w / 2.0) + dx, 0),
            cut(h * (l.cy - l.h / 2.0) + dy, 1),
            cut(w * (l.cx + l.w / 2.0) + dx, 0),
            cut(h * (l.cy + l.h / 2.0) + dy, 1),
        ];
        let polygon = segments
            .get(i)
            .and_then(Option::as_ref)
            .map(|p| p.iter().map(|&[x, y]| [cut(w * x + dx, 0), cut(h * y + dy, 1)]).collect());
        out.push(CanvasRow { class: l.class, xyxy, polygon, sample });
    }
}
