//! Random perspective: its matrix, and what it does to boxes and polygons.

use crate::labels::Polygon;

/// A 3x3 matrix in row order; maps input pixels to output pixels.
pub type Matrix = [[f64; 3]; 3];

/// The matrix that changes nothing.
pub const IDENTITY: Matrix = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];

/// Points each polygon is resampled to before it is warped.
pub const POLYGON_POINTS: usize = 1000;

/// `a * b`.
pub fn multiply(a: &Matrix, b: &Matrix) -> Matrix {
    let mut out = [[0.0; 3]; 3];
    for (i, row) in out.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate() {
            *v = (0..3).map(|k| a[i][k] * b[k][j]).sum();
        }
    }
    out
}

/// The inverse, or `None` for a singular matrix.
pub fn invert(m: &Matrix) -> Option<Matrix> {
    let cofactor = |r: usize, c: usize| {
        let (r1, r2, c1, c2) = ((r + 1) % 3, (r + 2) % 3, (c + 1) % 3, (c + 2) % 3);
        m[r1][c1] * m[r2][c2] - m[r1][c2] * m[r2][c1]
    };
    let determinant: f64 = (0..3).map(|c| m[0][c] * cofactor(0, c)).sum();
    if !determinant.is_finite() || determinant == 0.0 {
        return None;
    }
    let mut out = [[0.0; 3]; 3];
    for (i, row) in out.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate() {
            *v = cofactor(j, i) / determinant;
        }
    }
    Some(out)
}

/// Where a point goes.
pub fn apply(m: &Matrix, x: f64, y: f64) -> [f64; 2] {
    let [u, v, w] = m.map(|row| row[0] * x + row[1] * y + row[2]);
    [u / w, v / w]
}

/// The numbers drawn for one random perspective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerspectiveDraw {
    /// Third row of the matrix: x and y.
    pub perspective: [f64; 2],
    /// Counter-clockwise, in degrees.
    pub angle: f64,
    /// Zoom factor.
    pub scale: f64,
    /// Along x and y, in degrees.
    pub shear: [f64; 2],
    /// Centre of the output as fractions of its width and height.
    pub translate: [f64; 2],
}

impl PerspectiveDraw {
    /// The draw that only moves the centre of the input to the centre of the output.
    pub const NEUTRAL: Self =
        Self { perspective: [0.0; 2], angle: 0.0, scale: 1.0, shear: [0.0; 2], translate: [0.5; 2] };

    /// T S R P C: C moves the centre of the input to 0, P adds perspective, R turns and zooms (as
    /// OpenCV's rotation matrix), S shears, T moves the centre to `translate` times the output size.
    pub fn matrix(&self, in_wh: [u32; 2], out_wh: [u32; 2]) -> Matrix {
        let [w, h] = in_wh.map(f64::from);
        let centre = [[1.0, 0.0, -w / 2.0], [0.0, 1.0, -h / 2.0], [0.0, 0.0, 1.0]];
        let perspective = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [self.perspective[0], self.perspective[1], 1.0]];
        let (sin, cos) = self.angle.to_radians().sin_cos();
        let (alpha, beta) = (self.scale * cos, self.scale * sin);
        let rotation = [[alpha, beta, 0.0], [-beta, alpha, 0.0], [0.0, 0.0, 1.0]];
        let [sx, sy] = self.shear.map(|s| s.to_radians().tan());
        let shear = [[1.0, sx, 0.0], [sy, 1.0, 0.0], [0.0, 0.0, 1.0]];
        let [tx, ty] = [self.translate[0] * f64::from(out_wh[0]), self.translate[1] * f64::from(out_wh[1])];
        let translation = [[1.0, 0.0, tx], [0.0, 1.0, ty], [0.0, 0.0, 1.0]];
        [shear, rotation, perspective, centre].iter().fold(translation, |m, next| multiply(&m, next))
    }
}

/// The upright box around the four warped corners, clipped to the output.
pub fn warp_box(m: &Matrix, b: [f32; 4], out_wh: [u32; 2]) -> [f32; 4] {
    let [x0, y0, x1, y1] = b.map(f64::from);
    let corners = [[x0, y0], [x1, y1], [x0, y1], [x1, y0]].map(|[x, y]| apply(m, x, y));
    let mut out = [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY];
    for [x, y] in corners {
        out = [out[0].min(x), out[1].min(y), out[2].max(x), out[3].max(y)];
    }
    let [w, h] = out_wh.map(f64::from);
    [out[0].clamp(0.0, w) as f32, out[1].clamp(0.0, h) as f32, out[2].clamp(0.0, w) as f32, out[3].clamp(0.0, h) as f32]
}

/// The upright box around the points of the warped outline that lie inside the output; zeros if none does.
/// The outline is resampled to [`POLYGON_POINTS`] points, equally spaced in vertex number.
pub fn warp_polygon(m: &Matrix, polygon: &Polygon, out_wh: [u32; 2]) -> [f32; 4] {
    let n = polygon.len();
    if n == 0 {
        return [0.0; 4];
    }
    let [w, h] = out_wh.map(f64::from);
    let mut out = [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY];
    for i in 0..POLYGON_POINTS {
        // The closed outline has n + 1 vertices (the first again at the end), so positions run from 0 to n.
        let at = i as f64 * n as f64 / (POLYGON_POINTS - 1) as f64;
        let k = (at as usize).min(n - 1);
        let t = at - k as f64;
        let (a, b) = (polygon[k], polygon[(k + 1) % n]);
        // Resampled points are float32, as the labels are.
        let point = [0, 1].map(|c| (f64::from(a[c]) + t * (f64::from(b[c]) - f64::from(a[c]))) as f32);
        let [x, y] = apply(m, f64::from(point[0]), f64::from(point[1]));
        if x >= 0.0 && y >= 0.0 && x <= w && y <= h {
            out = [out[0].min(x), out[1].min(y), out[2].max(x), out[3].max(y)];
        }
    }
    if out[0] > out[2] { [0.0; 4] } else { out.map(|v| v as f32) }
}

/// Area a warped box must keep, as a share of its area times the squared zoom, to stay a label.
pub const MIN_AREA_BOX: f64 = 0.10;
/// The same for a row that has a polygon.
pub const MIN_AREA_POLYGON: f64 = 0.01;

/// Whether a box (xyxy, px) still counts after warping: both sides above 2 px, more than `min_area` of
/// the area before, and no side a hundred times the other. `before` is already multiplied by the zoom.
pub fn is_candidate(before: [f64; 4], after: [f64; 4], min_area: f64) -> bool {
    const EPS: f64 = 1e-16;
    let (w1, h1) = (before[2] - before[0], before[3] - before[1]);
    let (w2, h2) = (after[2] - after[0], after[3] - after[1]);
    let aspect = (w2 / (h2 + EPS)).max(h2 / (w2 + EPS));
    w2 > 2.0 && h2 > 2.0 && w2 * h2 / (w1 * h1 + EPS) > min_area && aspect < 100.0
}

/// Intersection of `a` and `b` over the area of `b` (xyxy).
pub fn intersection_over_second(a: [f32; 4], b: [f32; 4]) -> f32 {
    let w = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let h = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    w * h / ((b[2] - b[0]) * (b[3] - b[1]) + 1e-7)
}
