//! Resizing as OpenCV does it: bilinear without antialiasing, and area averaging for shrinking.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

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

fn bilinear(picture: &Picture, width: u32, height: u32) -> Picture {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Interpolation(FilterType::Bilinear));
    let mut target = Image::new(width, height, PixelType::U8x3);
    let done = ImageRef::new(picture.width, picture.height, &picture.data, PixelType::U8x3)
        .is_ok_and(|source| Resizer::new().resize(&source, &mut target, &options).is_ok());
    // `Picture` keeps its length equal to width * height * 3, which is all the resizer asks for.
    debug_assert!(done, "a picture of consistent size can be resized");
    Picture { width, height, data: target.into_vec() }
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
