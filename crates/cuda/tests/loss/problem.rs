//! Random heads and boxes, free of decisions that rounding could turn.

use crate::reference::{self, Wide};
use detect::{Levels, LossConfig};

/// Elements between the pixels of box maps.
pub const BOX_PITCH: usize = 80;

/// Numbers in [0, 1) from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (testkit::mix(self.0) >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() * n as f32) as usize).min(n - 1)
    }

    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.next()
    }
}

/// Box and class logits of one level, rows of [`BOX_PITCH`] and [`Problem::class_pitch`]; what is no logit is NaN.
#[derive(Clone)]
pub struct Maps {
    pub boxes: Vec<f32>,
    pub classes: Vec<f32>,
}

/// Everything a loss is computed from.
#[derive(Clone)]
pub struct Problem {
    pub name: &'static str,
    pub config: LossConfig,
    pub batch: usize,
    pub input_hw: (usize, usize),
    pub levels: Levels,
    /// By branch and level.
    pub heads: Vec<Vec<Maps>>,
    pub offsets: Vec<u32>,
    pub classes: Vec<u32>,
    /// Centre x, y, width, height as fractions of the input.
    pub boxes: Vec<[f32; 4]>,
}

impl Problem {
    /// A head whose predictions often resemble a box of their image; `boxes` are rows of each image.
    pub fn new(
        name: &'static str,
        config: LossConfig,
        input_hw: (usize, usize),
        boxes: Vec<Vec<[f32; 4]>>,
        seed: u64,
    ) -> Self {
        println!("{name}: seed {seed}");
        let mut random = Random(seed);
        let sizes = config.strides.iter().map(|&s| (input_hw.0.div_ceil(s), input_hw.1.div_ceil(s), s));
        let levels = Levels::new(sizes).expect("levels");
        let mut problem = Self {
            name,
            batch: boxes.len(),
            input_hw,
            levels,
            heads: vec![],
            offsets: vec![0],
            classes: vec![],
            boxes: vec![],
            config,
        };
        for rows in &boxes {
            problem.boxes.extend(rows);
            problem.classes.extend(rows.iter().map(|_| random.below(problem.config.nc) as u32));
            problem.offsets.push(problem.boxes.len() as u32);
        }
        problem.heads = (0..problem.config.branch_weights.len())
            .map(|_| (0..problem.levels.as_slice().len()).map(|l| problem.maps(l, &mut random)).collect())
            .collect();
        problem.drop_near_ties();
        problem
    }

    pub fn class_pitch(&self) -> usize {
        self.class_channels() + 8
    }

    /// Physical channels of class maps.
    pub fn class_channels(&self) -> usize {
        self.config.nc.next_multiple_of(8)
    }

    fn maps(&self, level: usize, random: &mut Random) -> Maps {
        let size = self.levels.as_slice()[level];
        let rows = self.batch * size.cells();
        let mut maps =
            Maps { boxes: vec![f32::NAN; rows * BOX_PITCH], classes: vec![f32::NAN; rows * self.class_pitch()] };
        for row in 0..rows {
            let (image, (x, y)) = (row / size.cells(), size.centre::<f32>(row % size.cells()));
            let own = self.offsets[image] as usize..self.offsets[image + 1] as usize;
            let boxes = &mut maps.boxes[row * BOX_PITCH..][..64];
            boxes.iter_mut().for_each(|v| *v = random.between(-2.5, 2.5));
            if random.next() < 0.6 && !own.is_empty() {
                // Distances to the sides of one of its boxes.
                let b = self.boxes[own.start + random.below(own.len())];
                let (h, w) = (self.input_hw.0 as f32, self.input_hw.1 as f32);
                let corners = detect::boxes::xywh_to_corners(&[b[0] * w, b[1] * h, b[2] * w, b[3] * h]);
                let c = corners.map(|v| v / size.stride as f32);
                for (side, d) in [x - c[0], y - c[1], c[2] - x, c[3] - y].into_iter().enumerate() {
                    let d = if d.is_nan() { 0.0 } else { d.clamp(0.0, 15.0) };
                    for bin in 0..16 {
                        boxes[16 * side + bin] -= 1.5 * (bin as f32 - d).abs();
                    }
                }
            }
            let classes = &mut maps.classes[row * self.class_pitch()..][..self.config.nc];
            classes.iter_mut().for_each(|v| *v = random.between(-9.0, 3.0));
        }
        maps
    }

    /// Takes out boxes for which float32 may decide otherwise than exact numbers do: ranks at the edge of the top,
    /// contested anchors of nearly equal CIoU. Boxes that are exactly equal stay.
    fn drop_near_ties(&mut self) {
        loop {
            let mut close = vec![false; self.boxes.len()];
            for branch in 0..self.heads.len() {
                reference::mark_near_ties(self, &Wide::new(self, branch), &mut close);
            }
            let dropped = close.iter().filter(|&&c| c).count();
            if dropped == 0 {
                return;
            }
            println!("{}: {dropped} of {} boxes are nearly tied and taken out", self.name, close.len());
            let (mut offsets, mut classes, mut boxes) = (vec![0], vec![], vec![]);
            for image in 0..self.batch {
                for i in (self.offsets[image]..self.offsets[image + 1]).map(|i| i as usize).filter(|&i| !close[i]) {
                    classes.push(self.classes[i]);
                    boxes.push(self.boxes[i]);
                }
                offsets.push(boxes.len() as u32);
            }
            (self.offsets, self.classes, self.boxes) = (offsets, classes, boxes);
        }
    }
}

/// `count` boxes of sides between `low` and `high` (fractions), also beyond the picture.
pub fn scattered(random: &mut Random, count: usize, low: f32, high: f32) -> Vec<[f32; 4]> {
    (0..count)
        .map(|_| {
            let (x, y) = (random.between(-0.02, 1.02), random.between(-0.02, 1.02));
            [x, y, random.between(low, high), random.between(low, high)]
        })
        .collect()
}

/// Boxes that ask for care: equal ones, tiny ones, outside, without area, whole picture, edges on cell centres, not
/// finite.
pub fn awkward() -> Vec<[f32; 4]> {
    vec![
        [0.52, 0.47, 0.33, 0.41],
        [0.52, 0.47, 0.33, 0.41],
        [0.52, 0.47, 0.33, 0.41],
        [0.5, 0.5, 1.0, 1.0],
        [0.31, 0.62, 0.002, 0.003],
        [0.7, 0.3, 0.0, 0.2],
        [0.0, 0.0, 0.0, 0.0],
        [1.7, 0.5, 0.3, 0.3],
        [-0.4, -0.4, 0.1, 0.1],
        [0.5, 0.5, 3.0, 2.0],
        [0.25, 0.25, 0.125, 0.125],
        [f32::NAN, 0.5, 0.1, 0.1],
        [0.5, 0.5, f32::INFINITY, f32::INFINITY],
        [0.8, 0.8, -0.2, -0.2],
    ]
}
