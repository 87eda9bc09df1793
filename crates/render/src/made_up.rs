//! Recipes on made-up pictures: what one renderer is held against another with.

use data::letterbox::long_side_to;
use data::recipe::{Recipe, RecipeMaker, epoch_order, keyed_rng};
use data::{AugmentConfig, DataError, Label, Picture, Sample};
use rand::RngExt;
use std::sync::Arc;

/// Number of samples of a set.
const SAMPLES: usize = 12;
/// For [`keyed_rng`]; the purposes of recipes are small numbers.
const FOR_PICTURES: u64 = 1000;

/// Samples with labels, most of them outlined, and their pictures as a pool has them: the long side at `size`.
#[derive(Clone, Debug)]
pub struct Set {
    pub samples: Arc<Vec<Sample>>,
    pub pictures: Vec<Arc<Picture>>,
    size: u32,
    seed: u64,
}

impl Set {
    /// `size` is the network's side in pixels.
    pub fn new(seed: u64, size: u32) -> Self {
        let mut rng = keyed_rng(seed, 0, 0, FOR_PICTURES);
        let mut samples = Vec::with_capacity(SAMPLES);
        let mut pictures = Vec::with_capacity(SAMPLES);
        for i in 0..SAMPLES {
            let [width, height] = [rng.random_range(40..900), rng.random_range(40..900)];
            let mut sample = Sample {
                path: format!("{i}.png").into(),
                width,
                height,
                labels: Vec::with_capacity(4),
                segments: Vec::with_capacity(4),
            };
            for class in 0..4 {
                let [w, h] = [rng.random_range(0.05f32..0.4), rng.random_range(0.05f32..0.4)];
                let [cx, cy] = [w, h].map(|side| rng.random_range(side / 2.0..1.0 - side / 2.0));
                sample.labels.push(Label { class, cx, cy, w, h });
                // Eight corners on an ellipse with dents.
                let outline = (0..8).map(|k| {
                    let (sin, cos) = (k as f32 * std::f32::consts::FRAC_PI_4).sin_cos();
                    let reach = if k % 2 == 0 { 0.5 } else { 0.3 };
                    [cx + reach * w * cos, cy + reach * h * sin]
                });
                sample.segments.push((class > 0).then(|| outline.collect()));
            }
            let ([w, h], _) = long_side_to(width, height, size);
            let [x_step, y_step, start] = [3, 5, 256].map(|end| rng.random_range(1..end));
            let data = (0..h).flat_map(|y| (0..w).map(move |x| (x, y))).flat_map(|(x, y)| {
                // A gradient with noise of a few levels, and blocks of strong colours.
                let noise = (x.wrapping_mul(0x9E37_79B1) ^ y.wrapping_mul(0x85EB_CA6B)).wrapping_mul(0xC2B2_AE35) >> 28;
                let block = (x / 23 + y / 17 + i as u32) % 5;
                let level = start + x * x_step + y * y_step + noise;
                [level, level / 2 + 90 * block, 255 * (block % 2) + level / 3].map(|v| v as u8)
            });
            pictures.push(Arc::new(Picture { width: w, height: h, data: data.collect() }));
            samples.push(sample);
        }
        Self { samples: Arc::new(samples), pictures, size, seed }
    }

    /// Random recipes of `height` x `width`: mosaics of a square (`hw` is the network's size then) and rectangles, with
    /// all augmentations at several strengths.
    ///
    /// # Errors
    /// A size that no network has.
    pub fn recipes(&self, count: usize, frame_hw: [u32; 2]) -> Result<Vec<Recipe>, DataError> {
        let all = AugmentConfig {
            degrees: 20.0,
            shear: 8.0,
            perspective: 0.0008,
            flipud: 0.5,
            mixup: 0.5,
            copy_paste: 1.0,
            ..AugmentConfig::SCRATCH_HIGH
        };
        let affine = AugmentConfig { perspective: 0.0, ..all };
        let single = AugmentConfig { mosaic: 0.0, ..affine };
        let kinds = [AugmentConfig::SCRATCH_HIGH, affine, all, AugmentConfig::NONE, single];
        let order = Arc::new(epoch_order(self.seed, 0, SAMPLES));
        (0..count)
            .map(|i| {
                let (samples, order, epoch) = (Arc::clone(&self.samples), Arc::clone(&order), i as u64);
                let maker = RecipeMaker::new(samples, kinds[i % kinds.len()], self.size, self.seed, epoch, order)?;
                let position = i % SAMPLES;
                Ok(match frame_hw == [self.size; 2] {
                    true => maker.draw(position),
                    false => maker.draw_rect(position, frame_hw),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_use_every_kind_of_augmentation() {
        let set = Set::new(3, 96);
        let recipes = set.recipes(60, [96, 96]).unwrap();
        let count = |f: &dyn Fn(&Recipe) -> bool| recipes.iter().filter(|r| f(r)).count();
        assert!(count(&|r| r.mixup.is_some()) > 5);
        assert!(count(&|r| !r.layer.pastes.is_empty()) > 5);
        assert!(count(&|r| r.layer.matrix[2][0] != 0.0) > 5);
        assert!(count(&|r| r.hsv.is_none()) > 5);
        assert!(count(&|r| r.flip_ud) > 5 && count(&|r| r.flip_lr) > 5);
        let rectangles = set.recipes(60, [64, 96]).unwrap();
        assert!(rectangles.iter().flat_map(Recipe::shown).any(|p| p.wh != p.entry_wh), "one is resized once more");
        assert!(recipes.iter().flat_map(Recipe::shown).all(|p| {
            let picture = &set.pictures[p.sample];
            [picture.width, picture.height] == p.entry_wh
        }));
    }
}
