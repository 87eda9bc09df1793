//! Affine and perspective warps, bilinear on a grid of 1/32 pixel as OpenCV's 8-bit warps are.

use super::FILL;
use crate::geometry::{Matrix, invert};
use crate::picture::Picture;

/// Bits behind the point of source coordinates while stepping through a row.
const STEP_BITS: u32 = 32;
/// Places further away than this many pixels are outside any canvas.
const FAR: f64 = 1e8;

/// Warps `canvas` by `matrix` (canvas pixels to output pixels) into `out` (height * width * 3 bytes).
/// Places outside the canvas are grey 114; a matrix without inverse gives a grey picture.
pub fn warp(canvas: &Picture, matrix: &Matrix, out_wh: [u32; 2], out: &mut [u8]) {
    let [out_w, out_h] = out_wh.map(|v| v as usize);
    let Some(inverse) = invert(matrix) else {
        out.fill(FILL);
        return;
    };
    let affine = inverse[2][0] == 0.0 && inverse[2][1] == 0.0;
    for (y, row) in out.chunks_exact_mut((out_w * 3).max(1)).take(out_h).enumerate() {
        if affine {
            affine_row(canvas, &inverse, y as f64, row);
        } else {
            perspective_row(canvas, &inverse, y as f64, row);
        }
    }
}

fn affine_row(canvas: &Picture, m: &Matrix, y: f64, row: &mut [u8]) {
    let fixed = |v: f64| (v.clamp(-FAR, FAR) * (1u64 << STEP_BITS) as f64) as i64;
    let w = m[2][2];
    let (mut u, mut v) = (fixed((m[0][1] * y + m[0][2]) / w), fixed((m[1][1] * y + m[1][2]) / w));
    let (du, dv) = (fixed(m[0][0] / w), fixed(m[1][0] / w));
    let half = 1i64 << (STEP_BITS - 6);
    for pixel in row.chunks_exact_mut(3) {
        let at = [u, v].map(|c| (c.saturating_add(half) >> (STEP_BITS - 5)) as i32);
        sample(canvas, at[0], at[1], pixel);
        u = u.saturating_add(du);
        v = v.saturating_add(dv);
    }
}

fn perspective_row(canvas: &Picture, m: &Matrix, y: f64, row: &mut [u8]) {
    for (x, pixel) in row.chunks_exact_mut(3).enumerate() {
        let x = x as f64;
        let w = m[2][0] * x + m[2][1] * y + m[2][2];
        let scale = if w != 0.0 { 32.0 / w } else { 0.0 };
        let u = (m[0][0] * x + m[0][1] * y + m[0][2]) * scale;
        let v = (m[1][0] * x + m[1][1] * y + m[1][2]) * scale;
        sample(canvas, u.round_ties_even() as i32, v.round_ties_even() as i32, pixel);
    }
}

/// One pixel at (u, v) in 1/32 pixel.
#[inline]
fn sample(canvas: &Picture, u: i32, v: i32, pixel: &mut [u8]) {
    let (x, y) = (u >> 5, v >> 5);
    let (fx, fy) = ((u & 31) as u32, (v & 31) as u32);
    let weights = [(32 - fx) * (32 - fy), fx * (32 - fy), (32 - fx) * fy, fx * fy];
    let (w, h) = (canvas.width as i32, canvas.height as i32);
    if x >= 0 && y >= 0 && x < w - 1 && y < h - 1 {
        let pitch = canvas.width as usize * 3;
        let first = y as usize * pitch + x as usize * 3;
        let top = &canvas.data[first..first + 6];
        let bottom = &canvas.data[first + pitch..first + pitch + 6];
        for c in 0..3 {
            let sum = weights[0] * u32::from(top[c])
                + weights[1] * u32::from(top[c + 3])
                + weights[2] * u32::from(bottom[c])
                + weights[3] * u32::from(bottom[c + 3]);
            pixel[c] = ((sum + 512) >> 10) as u8;
        }
        return;
    }
    if x < -1 || y < -1 || x >= w || y >= h {
        pixel.fill(FILL);
        return;
    }
    let mut sums = [512u32; 3];
    for (k, weight) in weights.into_iter().enumerate() {
        let (px, py) = (x + (k as i32 & 1), y + (k as i32 >> 1));
        let inside = px >= 0 && py >= 0 && px < w && py < h;
        let colour = if inside { canvas.at(px as usize, py as usize) } else { [FILL; 3] };
        for (sum, c) in sums.iter_mut().zip(colour) {
            *sum += weight * u32::from(c);
        }
    }
    for (out, sum) in pixel.iter_mut().zip(sums) {
        *out = (sum >> 10) as u8;
    }
}
