//! Pixels of a scene.

use crate::noise::field;
use crate::scene::{Layer, Object, Scene};
use rand::Rng;

/// A picture: 8 bit, `pixels[(y * width + x) * 3 + channel]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rgb {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<u8>,
}

/// Contrast of the noise of colours relative to that of brightness.
const TINT: f32 = 0.3;

/// Noise that everything of a picture takes its texture from.
struct Grain {
    width: usize,
    /// Brightness.
    light: Vec<f32>,
    /// Two colour differences, at half the resolution.
    tints: [Vec<f32>; 2],
}

impl Grain {
    fn new(scene: &Scene, rng: &mut impl Rng) -> Self {
        let [width, height] = scene.size.map(|v| v as usize);
        let tint = |rng: &mut _| field(width.div_ceil(2), height.div_ceil(2), 0.9 * scene.persistence, rng);
        Self { width, light: field(width, height, scene.persistence, rng), tints: [tint(rng), tint(rng)] }
    }

    /// What is added to red, green and blue, for a contrast of 1.
    fn at(&self, x: usize, y: usize) -> [f32; 3] {
        let light = self.light[y * self.width + x];
        let half = y / 2 * self.width.div_ceil(2) + x / 2;
        let [a, b] = [0, 1].map(|i| TINT * self.tints[i][half]);
        [light + a, light - 0.5 * (a + b), light + b]
    }
}

/// Paints a scene; `rng` gives its noise.
pub fn paint(scene: &Scene, rng: &mut impl Rng) -> Rgb {
    let [width, height] = scene.size.map(|v| v as usize);
    let grain = Grain::new(scene, rng);
    let mut canvas = background(scene, &grain);
    for object in &scene.objects {
        add_object(&mut canvas, [width, height], object, &grain);
    }
    let mut pixels = vec![0; canvas.len()];
    let mut bytes = [0u8; 1024];
    // The difference of two nibbles has a standard deviation of 6.5.
    let scale = scene.sensor / 6.5;
    for (out, values) in pixels.chunks_mut(bytes.len()).zip(canvas.chunks(bytes.len())) {
        rng.fill_bytes(&mut bytes[..out.len()]);
        for ((out, value), &noise) in out.iter_mut().zip(values).zip(&bytes) {
            let noise = i32::from(noise & 15) - i32::from(noise >> 4);
            *out = (value + scale * noise as f32 + 0.5) as u8;
        }
    }
    Rgb { width, height, pixels }
}

fn background(scene: &Scene, grain: &Grain) -> Vec<f32> {
    let [width, height] = scene.size.map(|v| v as usize);
    let mut canvas = Vec::with_capacity(width * height * 3);
    // Edges bend with the noise of half the resolution, which has no single pixels in it.
    let wobble = |x: usize, y: usize| grain.tints[0][y / 2 * width.div_ceil(2) + x / 2];
    let distance = |layer: &Layer, x: usize, y: usize| layer.normal[0] * x as f32 + layer.normal[1] * y as f32;
    for y in 0..height {
        for x in 0..width {
            let bend = wobble(x, y);
            let front = scene.layers.iter().rev().find_map(|layer| {
                let depth = distance(layer, x, y) + layer.wobble * bend - layer.offset;
                (depth > 0.0).then_some((layer, depth))
            });
            let Some((layer, depth)) = front else {
                canvas.extend([0.0; 3]);
                continue;
            };
            let share = if depth.is_finite() { (depth / 640.0).min(1.0) } else { y as f32 / height as f32 };
            let noise = grain.at(x, y);
            let [near, far] = layer.colours;
            canvas.extend([0, 1, 2].map(|c| near[c] + share * (far[c] - near[c]) + layer.grain * noise[c]));
        }
    }
    canvas
}

fn add_object(canvas: &mut [f32], [width, height]: [usize; 2], object: &Object, grain: &Grain) {
    let [left, top, w, h] = object.xywh;
    let (half_w, half_h) = (0.5 * w, 0.5 * h);
    let (cx, cy) = (left + half_w, top + half_h);
    // Depths are fractions of half a side: in pixels they decide how much of a pixel is covered.
    let to_pixels = half_w.min(half_h);
    let end = |at: f32, most: usize| (at.ceil() as usize).min(most);
    let colours = object.look.colours.map(|c| c.map(|v| 255.0 * object.light * v));
    for y in top as usize..end(top + h, height) {
        let v = (y as f32 + 0.5 - cy) / half_h;
        // Lit from above.
        let shade = 1.05 - 0.2 * v;
        for x in left as usize..end(left + w, width) {
            let u = (x as f32 + 0.5 - cx) / half_w;
            let cover = (object.look.outline.depth(u, v) * to_pixels + 0.5).clamp(0.0, 1.0);
            if cover == 0.0 {
                continue;
            }
            let colour = colours[usize::from(object.look.texture.is_second(u, v))];
            // Mirrored, so that the noise does not run through from the background.
            let noise = grain.at(width - 1 - x, height - 1 - y);
            let pixel = &mut canvas[(y * width + x) * 3..][..3];
            for (c, value) in pixel.iter_mut().enumerate() {
                *value += cover * (shade * colour[c] + object.grain * noise[c] - *value);
            }
        }
    }
}
