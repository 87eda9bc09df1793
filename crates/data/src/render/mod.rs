//! Recipes to pixels on the CPU.
//!
//! A layer's pictures are put on an 8-bit canvas, the canvas is warped, layers are blended, colours
//! changed, the result flipped; rounding to 8 bit happens where the reference rounds.

mod canvas;
mod hsv;
mod polygon;
mod warp;

pub(crate) use canvas::entry;
pub use canvas::paste_mirrored;
pub use hsv::{hsv_tables, hsv_to_rgb, rgb_to_hsv, scale_hsv};
pub use polygon::fill_polygon;
pub use warp::warp;

use std::sync::Arc;

use crate::error::DataError;
use crate::picture::Picture;
use crate::recipe::{Layer, Recipe};

/// Grey level where no picture lies.
pub const FILL: u8 = 114;

/// Gives the picture of a sample with its long side at the network's size.
pub type Fetch<'a> = dyn Fn(usize) -> Result<Arc<Picture>, DataError> + 'a;

/// Buffers a thread keeps between samples.
#[derive(Debug)]
pub struct Scratch {
    canvas: Picture,
    mask: Vec<u8>,
    second: Vec<u8>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { canvas: Picture::filled(0, 0, FILL), mask: Vec::new(), second: Vec::new() }
    }
}

/// A picture that could not be loaded while rendering.
pub type LoadFailure = (usize, DataError);

/// Renders a recipe into `out` (height * width * 3 bytes). Pictures that cannot be loaded leave the grey
/// canvas in their place and are returned.
pub fn render(recipe: &Recipe, fetch: &Fetch, scratch: &mut Scratch, out: &mut [u8]) -> Vec<LoadFailure> {
    let [w, h] = recipe.out_wh;
    debug_assert_eq!(out.len(), w as usize * h as usize * 3);
    let mut failures = Vec::new();
    render_layer(&recipe.layer, recipe.out_wh, fetch, scratch, out, &mut failures);
    if let Some(mixup) = &recipe.mixup {
        let mut second = std::mem::take(&mut scratch.second);
        second.resize(out.len(), 0);
        render_layer(&mixup.layer, recipe.out_wh, fetch, scratch, &mut second, &mut failures);
        blend(out, &second, mixup.ratio);
        scratch.second = second;
    }
    if let Some(gains) = recipe.hsv {
        scale_hsv(out, gains);
    }
    if recipe.flip_ud {
        flip_ud(out, w as usize);
    }
    if recipe.flip_lr {
        flip_lr(out, w as usize);
    }
    failures
}

fn render_layer(
    layer: &Layer,
    out_wh: [u32; 2],
    fetch: &Fetch,
    scratch: &mut Scratch,
    out: &mut [u8],
    failures: &mut Vec<LoadFailure>,
) {
    canvas::draw(layer, fetch, &mut scratch.canvas, failures);
    if !layer.pastes.is_empty() {
        paste_mirrored(&mut scratch.canvas, &layer.pastes, &mut scratch.mask);
    }
    warp(&scratch.canvas, &layer.matrix, out_wh, out);
}

/// `a = a * ratio + b * (1 - ratio)`, truncated.
pub fn blend(a: &mut [u8], b: &[u8], ratio: f64) {
    let rest = 1.0 - ratio;
    for (a, &b) in a.iter_mut().zip(b) {
        *a = (f64::from(*a) * ratio + f64::from(b) * rest) as u8;
    }
}

/// Turns rows of `width` RGB pixels upside down.
pub fn flip_ud(pixels: &mut [u8], width: usize) {
    let pitch = width * 3;
    let rows = pixels.len() / pitch.max(1);
    for y in 0..rows / 2 {
        let (top, bottom) = pixels.split_at_mut((rows - 1 - y) * pitch);
        top[y * pitch..(y + 1) * pitch].swap_with_slice(&mut bottom[..pitch]);
    }
}

/// Mirrors rows of `width` RGB pixels.
pub fn flip_lr(pixels: &mut [u8], width: usize) {
    for row in pixels.chunks_exact_mut((width * 3).max(1)) {
        for x in 0..width / 2 {
            let (a, b) = row.split_at_mut((width - 1 - x) * 3);
            a[x * 3..x * 3 + 3].swap_with_slice(&mut b[..3]);
        }
    }
}
