//! A sample recipe: everything random about one training sample as a pure value.
//!
//! It is drawn from a generator keyed by (seed, epoch, position in the epoch's order), so neither the
//! number of threads nor of processes changes it, and whatever renders it (CPU or GPU) draws nothing.
//! The order of steps is that of YOLOv9's own trainer: mosaic, copy-paste, perspective, mixup, or else
//! letterbox and perspective; then colours and flips. Its rare Albumentations images (blur, median blur,
//! grey and CLAHE, one in a hundred each) are left out.

use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Beta, Distribution};

use crate::copy_paste;
use crate::error::DataError;
use crate::geometry::{self, Matrix, PerspectiveDraw};
use crate::letterbox::{LetterboxOptions, letterbox, long_side_to};
use crate::mosaic::{self, CanvasRow, Place, rows_on_canvas};
use crate::scan::Sample;

/// Strength of the augmentations, under the names of the hyper-parameter files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AugmentConfig {
    /// Largest relative change of hue.
    pub hsv_h: f64,
    /// Largest relative change of saturation.
    pub hsv_s: f64,
    /// Largest relative change of value.
    pub hsv_v: f64,
    /// Rotation, +- degrees.
    pub degrees: f64,
    /// Shift, +- fraction of the picture.
    pub translate: f64,
    /// Zoom between 1 - scale and 1 + scale.
    pub scale: f64,
    /// Shear, +- degrees.
    pub shear: f64,
    /// Perspective, +- per pixel (0 to 0.001 is sensible).
    pub perspective: f64,
    /// Probability of turning upside down.
    pub flipud: f64,
    /// Probability of mirroring.
    pub fliplr: f64,
    /// Probability of a mosaic of four pictures.
    pub mosaic: f64,
    /// Probability that a mosaic is blended with a second one.
    pub mixup: f64,
    /// Share of the outlined objects of a mosaic that are pasted a second time.
    pub copy_paste: f64,
    /// Where the other pictures of a mosaic come from.
    pub partners: Partners,
}

/// Which samples may join a mosaic or mixup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partners {
    /// Any of the set, as the reference does.
    WholeSet,
    /// The last `n` of the epoch's order, the sample itself included; at the start of an epoch the
    /// window reaches around to the end of the same order. A set that does not fit into memory then
    /// costs one decode per sample instead of four to eight.
    Window(usize),
}

impl AugmentConfig {
    /// The values of `hyp.scratch-high.yaml`.
    pub const SCRATCH_HIGH: Self = Self {
        hsv_h: 0.015,
        hsv_s: 0.7,
        hsv_v: 0.4,
        degrees: 0.0,
        translate: 0.1,
        scale: 0.9,
        shear: 0.0,
        perspective: 0.0,
        flipud: 0.0,
        fliplr: 0.5,
        mosaic: 1.0,
        mixup: 0.15,
        copy_paste: 0.3,
        partners: Partners::WholeSet,
    };

    /// No augmentation: a letterboxed picture.
    pub const NONE: Self = Self {
        hsv_h: 0.0,
        hsv_s: 0.0,
        hsv_v: 0.0,
        degrees: 0.0,
        translate: 0.0,
        scale: 0.0,
        shear: 0.0,
        perspective: 0.0,
        flipud: 0.0,
        fliplr: 0.0,
        mosaic: 0.0,
        mixup: 0.0,
        copy_paste: 0.0,
        partners: Partners::WholeSet,
    };

    /// Refuses values outside their range, by name.
    pub fn check(&self) -> Result<(), DataError> {
        let ranges = [
            ("hsv_h", self.hsv_h, 1.0, "must lie between 0 and 1"),
            ("hsv_s", self.hsv_s, 1.0, "must lie between 0 and 1"),
            ("hsv_v", self.hsv_v, 1.0, "must lie between 0 and 1"),
            ("degrees", self.degrees, 180.0, "must lie between 0 and 180"),
            ("translate", self.translate, 1.0, "must lie between 0 and 1"),
            ("scale", self.scale, 1.0, "must lie between 0 and 1"),
            ("shear", self.shear, 89.0, "must lie between 0 and 89"),
            ("perspective", self.perspective, 0.01, "must lie between 0 and 0.01"),
            ("flipud", self.flipud, 1.0, "is a probability, 0 to 1"),
            ("fliplr", self.fliplr, 1.0, "is a probability, 0 to 1"),
            ("mosaic", self.mosaic, 1.0, "is a probability, 0 to 1"),
            ("mixup", self.mixup, 1.0, "is a probability, 0 to 1"),
            ("copy_paste", self.copy_paste, 1.0, "is a share, 0 to 1"),
        ];
        for (name, value, high, range) in ranges {
            if !(0.0..=high).contains(&value) {
                return Err(DataError::Config { name, value: value.to_string(), range });
            }
        }
        if self.partners == Partners::Window(0) {
            return Err(DataError::Config { name: "window", value: "0".into(), range: "must be at least 1" });
        }
        Ok(())
    }

    fn changes_colour(&self) -> bool {
        self.hsv_h > 0.0 || self.hsv_s > 0.0 || self.hsv_v > 0.0
    }
}

/// One picture on a canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// Which sample.
    pub sample: usize,
    /// Width and height after the long side was brought to the network's size (as the pool keeps it).
    pub entry_wh: [u32; 2],
    /// Width and height on the canvas; differs from `entry_wh` only where a letterbox scales once more.
    pub wh: [u32; 2],
    /// Where it lies.
    pub place: Place,
}

/// Pictures on a canvas, and the canvas warped to the output.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Width and height of the canvas, grey 114 where no picture lies.
    pub canvas_wh: [u32; 2],
    /// Drawn in this order.
    pub placements: Vec<Placement>,
    /// Outlines of copy-paste (see [`copy_paste::paste`]).
    pub pastes: Vec<Vec<[i32; 2]>>,
    /// From canvas pixels to output pixels.
    pub matrix: Matrix,
}

/// A finished box of a sample, as fractions of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FinishedBox {
    /// Class id.
    pub class: u32,
    /// Centre x, centre y, width, height.
    pub xywh: [f32; 4],
    /// The sample it was labelled in, so that the boxes of a picture that fails to load can go with it.
    pub sample: usize,
}

/// A second layer blended over the first.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixup {
    /// The other mosaic.
    pub layer: Layer,
    /// Weight of the first layer.
    pub ratio: f64,
}

/// One training sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The sample the epoch's order names.
    pub sample: usize,
    /// Width and height of the output.
    pub out_wh: [u32; 2],
    /// The picture.
    pub layer: Layer,
    /// What is blended over it.
    pub mixup: Option<Mixup>,
    /// Factors of hue, saturation and value.
    pub hsv: Option<[f64; 3]>,
    /// Turned upside down.
    pub flip_ud: bool,
    /// Mirrored.
    pub flip_lr: bool,
    /// Boxes after all of it.
    pub boxes: Vec<FinishedBox>,
}

impl Recipe {
    /// What it shows of pictures, in the order in which they are drawn. A sample may come more than once.
    pub fn shown(&self) -> impl Iterator<Item = &Placement> {
        let layers = std::iter::once(&self.layer).chain(self.mixup.iter().map(|m| &m.layer));
        layers.flat_map(|layer| layer.placements.iter().filter(|p| !p.place.is_empty()))
    }
}

/// A generator of its own for each key.
pub fn keyed_rng(seed: u64, epoch: u64, position: u64, purpose: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, epoch, position, purpose]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

const FOR_SAMPLES: u64 = 1;
const FOR_ORDER: u64 = 2;
/// Sides of [`crate::multi_scale`].
pub(crate) const FOR_SIDES: u64 = 3;
/// Draws of [`crate::image_weights`].
pub(crate) const FOR_WEIGHTS: u64 = 4;

/// The order of `n` samples in an epoch.
pub fn epoch_order(seed: u64, epoch: u64, n: usize) -> Vec<usize> {
    let mut rng = keyed_rng(seed, epoch, 0, FOR_ORDER);
    let mut order: Vec<usize> = (0..n).collect();
    shuffle(&mut order, &mut rng);
    order
}

fn shuffle<T>(items: &mut [T], rng: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, rng.random_range(0..=i));
    }
}

fn uniform(rng: &mut ChaCha8Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.random::<f64>()
}

/// Draws the recipes of one epoch.
#[derive(Clone, Debug)]
pub struct RecipeMaker {
    samples: Arc<Vec<Sample>>,
    config: AugmentConfig,
    size: u32,
    seed: u64,
    epoch: u64,
    order: Arc<Vec<usize>>,
}

impl RecipeMaker {
    /// `size`: the network's side in pixels. `order`: sample ids of the epoch, usually
    /// [`epoch_order`]; ids beyond the samples are refused.
    pub fn new(
        samples: Arc<Vec<Sample>>,
        config: AugmentConfig,
        size: u32,
        seed: u64,
        epoch: u64,
        order: Arc<Vec<usize>>,
    ) -> Result<Self, DataError> {
        config.check()?;
        if !(1..=16_384).contains(&size) {
            return Err(DataError::Config {
                name: "imgsz",
                value: size.to_string(),
                range: "must lie between 1 and 16384",
            });
        }
        if let Some(id) = order.iter().find(|&&i| i >= samples.len()) {
            return Err(DataError::Config {
                name: "order",
                value: id.to_string(),
                range: "names a sample that does not exist",
            });
        }
        Ok(Self { samples, config, size, seed, epoch, order })
    }

    /// Number of samples of the epoch.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// True for an epoch without samples.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The samples the ids refer to.
    pub fn samples(&self) -> &Arc<Vec<Sample>> {
        &self.samples
    }

    /// The recipe of a place in the order (`position < len()`), `size` x `size` pixels.
    pub fn draw(&self, position: usize) -> Recipe {
        let mut rng = keyed_rng(self.seed, self.epoch, position as u64, FOR_SAMPLES);
        let sample = self.order[position];
        let out_wh = [self.size, self.size];
        if rng.random::<f64>() >= self.config.mosaic {
            return self.letterboxed(&mut rng, sample, out_wh);
        }
        let (layer, mut rows) = self.mosaic(&mut rng, position, sample);
        let mut mixup = None;
        if rng.random::<f64>() < self.config.mixup {
            let other = self.partner(&mut rng, position);
            let (layer, more) = self.mosaic(&mut rng, position, other);
            rows.extend(more);
            mixup = Some(Mixup { layer, ratio: beta_32(&mut rng) });
        }
        self.coloured(&mut rng, Recipe { mixup, ..plain(sample, out_wh, layer) }, &rows)
    }

    /// The recipe for a frame of height x width, without mosaic (rectangular training).
    pub fn draw_rect(&self, position: usize, frame_hw: [u32; 2]) -> Recipe {
        let mut rng = keyed_rng(self.seed, self.epoch, position as u64, FOR_SAMPLES);
        self.letterboxed(&mut rng, self.order[position], [frame_hw[1], frame_hw[0]])
    }

    fn letterboxed(&self, rng: &mut ChaCha8Rng, sample: usize, out_wh: [u32; 2]) -> Recipe {
        let s = &self.samples[sample];
        let (entry_wh, _) = long_side_to(s.width, s.height, self.size);
        let fit = letterbox(entry_wh[0], entry_wh[1], &LetterboxOptions::frame(out_wh[1], out_wh[0], true));
        let place = Place::new(fit.content_xy.map(|v| v as i32), fit.content_wh, out_wh);
        let placement = Placement { sample, entry_wh, wh: fit.content_wh, place };
        let mut rows = Vec::with_capacity(s.labels.len());
        let scaled = [0, 1].map(|i| fit.ratio[i] * f64::from(entry_wh[i]));
        // The reference warps a single picture's boxes by their corners, never by outlines.
        rows_on_canvas(&s.labels, &[], sample, scaled, fit.pad, None, &mut rows);
        let draw = self.perspective(rng);
        let matrix = draw.matrix(out_wh, out_wh);
        let rows = warped(rows, &matrix, draw.scale, out_wh);
        let layer = Layer { canvas_wh: out_wh, placements: vec![placement], pastes: Vec::new(), matrix };
        self.coloured(rng, plain(sample, out_wh, layer), &rows)
    }

    fn mosaic(&self, rng: &mut ChaCha8Rng, position: usize, sample: usize) -> (Layer, Vec<CanvasRow>) {
        let s = self.size;
        let (low, high) = (f64::from(s) / 2.0, 1.5 * f64::from(s));
        let yc = uniform(rng, low, high) as i32;
        let xc = uniform(rng, low, high) as i32;
        let mut four = [sample; 4];
        for slot in &mut four[1..] {
            *slot = self.partner(rng, position);
        }
        shuffle(&mut four, rng);
        let canvas_wh = [2 * s, 2 * s];
        let mut placements = Vec::with_capacity(4);
        let mut rows = Vec::new();
        for (k, &id) in four.iter().enumerate() {
            let source = &self.samples[id];
            let (wh, _) = long_side_to(source.width, source.height, s);
            let place = mosaic::place(k, [xc, yc], wh, s);
            let offset = place.offset.map(f64::from);
            rows_on_canvas(&source.labels, &source.segments, id, wh.map(f64::from), offset, Some(canvas_wh), &mut rows);
            placements.push(Placement { sample: id, entry_wh: wh, wh, place });
        }
        let mut pastes = Vec::new();
        if self.config.copy_paste > 0.0 && rows.iter().any(|r| r.polygon.is_some()) {
            let mut chosen = copy_paste::candidates(&rows, canvas_wh[0]);
            let count = copy_paste::count(self.config.copy_paste, chosen.len());
            shuffle(&mut chosen, rng);
            chosen.truncate(count);
            pastes = copy_paste::paste(&mut rows, &chosen, canvas_wh[0]);
        }
        let draw = self.perspective(rng);
        let matrix = draw.matrix(canvas_wh, [s, s]);
        let rows = warped(rows, &matrix, draw.scale, [s, s]);
        (Layer { canvas_wh, placements, pastes, matrix }, rows)
    }

    fn partner(&self, rng: &mut ChaCha8Rng, position: usize) -> usize {
        match self.config.partners {
            Partners::WholeSet => rng.random_range(0..self.samples.len()),
            Partners::Window(window) => {
                let n = self.order.len();
                let back = rng.random_range(0..window.clamp(1, n));
                self.order[(position + n - back) % n]
            }
        }
    }

    fn perspective(&self, rng: &mut ChaCha8Rng) -> PerspectiveDraw {
        let c = &self.config;
        let mut sym = |limit: f64| uniform(rng, -limit, limit);
        let perspective = [sym(c.perspective), sym(c.perspective)];
        let angle = sym(c.degrees);
        let scale = 1.0 + sym(c.scale);
        let shear = [sym(c.shear), sym(c.shear)];
        let translate = [0.5 + sym(c.translate), 0.5 + sym(c.translate)];
        PerspectiveDraw { perspective, angle, scale, shear, translate }
    }

    fn coloured(&self, rng: &mut ChaCha8Rng, recipe: Recipe, rows: &[CanvasRow]) -> Recipe {
        let c = &self.config;
        let hsv = c.changes_colour().then(|| [c.hsv_h, c.hsv_s, c.hsv_v].map(|g| 1.0 + g * uniform(rng, -1.0, 1.0)));
        let flip_ud = rng.random::<f64>() < c.flipud;
        let flip_lr = rng.random::<f64>() < c.fliplr;
        let boxes = rows
            .iter()
            .map(|r| FinishedBox {
                class: r.class,
                xywh: flipped(normalised(r.xyxy, recipe.out_wh), flip_ud, flip_lr),
                sample: r.sample,
            })
            .collect();
        Recipe { hsv, flip_ud, flip_lr, boxes, ..recipe }
    }
}

fn plain(sample: usize, out_wh: [u32; 2], layer: Layer) -> Recipe {
    Recipe { sample, out_wh, layer, mixup: None, hsv: None, flip_ud: false, flip_lr: false, boxes: Vec::new() }
}

fn beta_32(rng: &mut ChaCha8Rng) -> f64 {
    // The parameters are fixed and valid.
    Beta::new(32.0, 32.0).map_or(0.5, |beta| beta.sample(rng))
}

/// Rows after a warp, without those that no longer count.
pub fn warped(rows: Vec<CanvasRow>, matrix: &Matrix, zoom: f64, out_wh: [u32; 2]) -> Vec<CanvasRow> {
    rows.into_iter()
        .filter_map(|row| {
            let (xyxy, min_area) = match &row.polygon {
                Some(p) => (geometry::warp_polygon(matrix, p, out_wh), geometry::MIN_AREA_POLYGON),
                None => (geometry::warp_box(matrix, row.xyxy, out_wh), geometry::MIN_AREA_BOX),
            };
            let before = row.xyxy.map(|v| f64::from(v) * zoom);
            geometry::is_candidate(before, xyxy.map(f64::from), min_area).then_some(CanvasRow {
                xyxy,
                polygon: None,
                ..row
            })
        })
        .collect()
}

/// Pixels xyxy to fractions cx, cy, w, h, after clipping to just inside the picture.
pub fn normalised(xyxy: [f32; 4], wh: [u32; 2]) -> [f32; 4] {
    const EPS: f32 = 1e-3;
    let [w, h] = wh.map(|v| v as f32);
    let [x0, x1] = [xyxy[0], xyxy[2]].map(|v| v.clamp(0.0, w - EPS));
    let [y0, y1] = [xyxy[1], xyxy[3]].map(|v| v.clamp(0.0, h - EPS));
    [(x0 + x1) / 2.0 / w, (y0 + y1) / 2.0 / h, (x1 - x0) / w, (y1 - y0) / h]
}

/// Fractions cx, cy, w, h after turning upside down and mirroring.
pub fn flipped(xywh: [f32; 4], flip_ud: bool, flip_lr: bool) -> [f32; 4] {
    let [cx, cy, w, h] = xywh;
    [if flip_lr { 1.0 - cx } else { cx }, if flip_ud { 1.0 - cy } else { cy }, w, h]
}
