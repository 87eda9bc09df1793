//! Resizing as OpenCV does it: bilinear without antialiasing, and area averaging for shrinking.

use crate::picture::Picture;

/// How pixels are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// Two by two neighbours whatever the scale (OpenCV's INTER_LINEAR).
    Bilinear,
    /// The mean over the area a target pixel covers; for shrinking (OpenCV's INTER_AREA).
    Area,
}

/// Resizes to `width` x `height` (both above 0).
pub fn resize(picture: &Picture, width: u32, height: u32, interpolation: Interpolation) -> Picture {
    if (picture.width, picture.height) == (width, height) {
        return picture.clone();
    }
    match interpolation {
        Interpolation::Area if width <= picture.width && height <= picture.height => {
            shrink_area(picture, width, height)
        }
        _ => bilinear(picture, width, height),
    }
}

/// Bits of a bilinear weight, as OpenCV's 8-bit resize has them.
const WEIGHT_BITS: u32 = 11;

/// For each target place of one axis: the two source places and the weight of the second.
fn bilinear_taps(from: usize, to: usize) -> Vec<(usize, usize, i32)> {
    let scale = from as f64 / to as f64;
    (0..to)
        .map(|i| {
            let at = ((i as f64 + 0.5) * scale - 0.5).clamp(0.0, (from - 1) as f64);
            let first = at as usize;
            let weight = ((at - first as f64) * f64::from(1 << WEIGHT_BITS)).round_ties_even() as i32;
            (first, (first + 1).min(from - 1), weight)
        })
        .collect()
}

fn bilinear(picture: &Picture, width: u32, height: u32) -> Picture {
    const ONE: i32 = 1 << WEIGHT_BITS;
    let columns = bilinear_taps(picture.width as usize, width as usize);
    let rows = bilinear_taps(picture.height as usize, height as usize);
    let pitch = width as usize * 3;
    let stretch = |y: usize, out: &mut [i32]| {
        let row = picture.row(y);
        for (out, &(a, b, weight)) in out.as_chunks_mut::<3>().0.iter_mut().zip(&columns) {
            for (c, out) in out.iter_mut().enumerate() {
                *out = (ONE - weight) * i32::from(row[a * 3 + c]) + weight * i32::from(row[b * 3 + c]);
            }
        }
    };
    // The two stretched rows in use, each with the source row it holds.
    let (mut top, mut bottom) = ((usize::MAX, vec![0i32; pitch]), (usize::MAX, vec![0i32; pitch]));
    let mut data = vec![0u8; pitch * height as usize];
    for (out, &(first, second, weight)) in data.chunks_exact_mut(pitch).zip(&rows) {
        if top.0 != first {
            if bottom.0 == first {
                std::mem::swap(&mut top, &mut bottom);
            } else {
                stretch(first, &mut top.1);
                top.0 = first;
            }
        }
        if bottom.0 != second {
            stretch(second, &mut bottom.1);
            bottom.0 = second;
        }
        for (out, (&a, &b)) in out.iter_mut().zip(top.1.iter().zip(&bottom.1)) {
            // At most 255 * 2^22, which fits.
            *out = (((ONE - weight) * a + weight * b + (1 << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS)) as u8;
        }
    }
    Picture { width, height, data }
}

/// Weights of one axis: for each target place the first source place and the shares of the sources from there.
fn area_weights(from: usize, to: usize) -> Vec<(usize, Vec<f32>)> {
    let scale = from as f64 / to as f64;
    (0..to)
        .map(|i| {
            let (low, high) = (i as f64 * scale, ((i + 1) as f64 * scale).min(from as f64));
            let first = (low.floor() as usize).min(from - 1);
            let last = (high.ceil() as usize).clamp(first + 1, from);
            let shares: Vec<f64> =
                (first..last).map(|k| (high.min((k + 1) as f64) - low.max(k as f64)).max(0.0)).collect();
            let total: f64 = shares.iter().sum();
            (first, shares.into_iter().map(|s| (s / total) as f32).collect())
        })
        .collect()
}

fn shrink_area(picture: &Picture, width: u32, height: u32) -> Picture {
    let columns = area_weights(picture.width as usize, width as usize);
    let rows = area_weights(picture.height as usize, height as usize);
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    let mut sums = vec![0.0f32; picture.width as usize * 3];
    for (first, shares) in &rows {
        sums.fill(0.0);
        for (k, &share) in shares.iter().enumerate() {
            for (sum, &v) in sums.iter_mut().zip(picture.row(first + k)) {
                *sum += share * f32::from(v);
            }
        }
        for (first, shares) in &columns {
            let mut pixel = [0.0f32; 3];
            for (k, &share) in shares.iter().enumerate() {
                for (c, v) in pixel.iter_mut().enumerate() {
                    *v += share * sums[(first + k) * 3 + c];
                }
            }
            data.extend(pixel.map(|v| v.round_ties_even().clamp(0.0, 255.0) as u8));
        }
    }
    Picture { width, height, data }
}
