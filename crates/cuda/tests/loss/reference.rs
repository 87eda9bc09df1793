//! What the CPU says, and where float32 could say otherwise.

use crate::problem::{BOX_PITCH, Problem};
use detect::assigner::{AssignerConfig, AssignerScratch, Assignment, PackedBoxes, Predictions, assign};
use detect::boxes::{Corners, Overlap, overlap, xywh_to_corners};
use detect::external::LOSS_VALUES;
use detect::{Branch, BranchGradient, MapMut, MapRef, Real, Scratch, Targets, detection_loss, scratch_len};

/// What lies beyond the channels of a gradient map, and must stay.
pub const SENTINEL: f32 = 77.0;

/// Losses and gradients; gradients by branch and level, rows as the logits'.
pub struct Expected {
    pub values: [f64; LOSS_VALUES],
    pub gradients: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
}

/// Box and class maps of a branch by level.
type Pair<T> = (Vec<T>, Vec<T>);

/// Runs `detect::detection_loss`. Channels up to `box_channels` and the padded classes are written.
pub fn loss(problem: &Problem, box_channels: usize) -> Expected {
    let sizes = problem.levels.as_slice();
    let map = |data, pitch, l: usize| MapRef { data, pitch, h: sizes[l].h, w: sizes[l].w };
    let maps: Vec<Pair<MapRef<'_, f32>>> = problem
        .heads
        .iter()
        .map(|levels| {
            let boxes = levels.iter().enumerate().map(|(l, m)| map(&m.boxes[..], BOX_PITCH, l)).collect();
            let classes =
                levels.iter().enumerate().map(|(l, m)| map(&m.classes[..], problem.class_pitch(), l)).collect();
            (boxes, classes)
        })
        .collect();
    let branches: Vec<_> = maps.iter().map(|(boxes, classes)| Branch { boxes, classes }).collect();
    let blank = |v: &[f32]| vec![SENTINEL; v.len()];
    let mut gradients: Vec<Vec<(Vec<f32>, Vec<f32>)>> =
        problem.heads.iter().map(|h| h.iter().map(|m| (blank(&m.boxes), blank(&m.classes))).collect()).collect();
    let mut views: Vec<Pair<MapMut<'_, f32>>> = gradients
        .iter_mut()
        .map(|levels| {
            let views = levels.iter_mut().enumerate().map(|(l, (b, c))| {
                let (h, w) = (sizes[l].h, sizes[l].w);
                let classes = problem.class_channels();
                (
                    MapMut { data: b, pitch: BOX_PITCH, h, w, channels_padded: box_channels },
                    MapMut { data: c, pitch: problem.class_pitch(), h, w, channels_padded: classes },
                )
            });
            views.unzip()
        })
        .collect();
    let mut wanted: Vec<_> = views.iter_mut().map(|(boxes, classes)| BranchGradient { boxes, classes }).collect();
    let (floats, integers) = scratch_len(&problem.config, problem.batch, problem.levels.anchors(), problem.boxes.len());
    let output = detection_loss(
        &problem.config,
        problem.batch,
        problem.input_hw,
        &branches,
        &Targets { offsets: &problem.offsets, classes: &problem.classes, boxes: &problem.boxes },
        Scratch { floats: &mut vec![0.0; floats], integers: &mut vec![0; integers] },
        Some(&mut wanted),
    )
    .expect("arguments that fit");
    let mut values = [0.0; LOSS_VALUES];
    values[..4].copy_from_slice(&[output.total, output.box_loss, output.cls_loss, output.dfl_loss]);
    for (b, branch) in output.branches().iter().enumerate() {
        let foreground = branch.foreground as f64;
        values[4 + 5 * b..9 + 5 * b].copy_from_slice(&[
            branch.box_loss,
            branch.cls_loss,
            branch.dfl_loss,
            foreground,
            branch.target_score_sum,
        ]);
    }
    drop(wanted);
    drop(views);
    Expected { values, gradients }
}

/// Predictions of one branch.
pub struct Stored<T> {
    anchors: usize,
    nc: usize,
    pub corners: Vec<Corners<T>>,
    pub scores: Vec<T>,
}

pub type Wide = Stored<f64>;

impl<T: Real> Predictions<T> for Stored<T> {
    fn score(&self, image: usize, anchor: usize, class: u32) -> T {
        self.scores[(image * self.anchors + anchor) * self.nc + class as usize]
    }

    fn corners(&self, image: usize, anchor: usize) -> Corners<T> {
        self.corners[image * self.anchors + anchor]
    }
}

impl<T: Real> Stored<T> {
    pub fn new(problem: &Problem, branch: usize) -> Self {
        let (anchors, nc) = (problem.levels.anchors(), problem.config.nc);
        let mut stored = Self { anchors, nc, corners: vec![], scores: vec![] };
        for image in 0..problem.batch {
            for (size, maps) in problem.levels.as_slice().iter().zip(&problem.heads[branch]) {
                for cell in 0..size.cells() {
                    let row = image * size.cells() + cell;
                    let logits: [T; 64] = std::array::from_fn(|i| T::of(f64::from(maps.boxes[row * BOX_PITCH + i])));
                    let corners = detect::dfl::decode_corners(&logits, size.centre(cell));
                    stored.corners.push(corners.map(|v| v * T::of(size.stride as f64)));
                    let classes = &maps.classes[row * problem.class_pitch()..][..nc];
                    stored.scores.extend(classes.iter().map(|&v| T::of(f64::from(v)).sigmoid()));
                }
            }
        }
        stored
    }
}

/// Corners of the boxes in pixels.
pub fn corners<T: Real>(problem: &Problem) -> Vec<Corners<T>> {
    let (h, w) = (T::of(problem.input_hw.0 as f64), T::of(problem.input_hw.1 as f64));
    let corners = problem.boxes.iter().map(|b| {
        let [x, y, width, height] = b.map(|v| T::of(f64::from(v)));
        xywh_to_corners(&[x * w, y * h, width * w, height * h])
    });
    corners.collect()
}

/// Owner (box within the image) and target score of each anchor, (batch, anchors), in float32.
pub fn assignment(problem: &Problem, branch: usize) -> (Vec<u32>, Vec<f32>) {
    let (boxes, anchors, topk) = (problem.boxes.len(), problem.batch * problem.levels.anchors(), problem.config.topk);
    let (mut owner, mut score) = (vec![0; anchors], vec![0.0; anchors]);
    assign(
        &AssignerConfig { topk, alpha: problem.config.alpha, beta: problem.config.beta },
        &problem.levels,
        PackedBoxes { offsets: &problem.offsets, classes: &problem.classes, corners: &corners::<f32>(problem) },
        &Stored::<f32>::new(problem, branch),
        AssignerScratch {
            metrics: &mut vec![0.0; boxes * topk],
            maxima: &mut vec![0.0; boxes * 2],
            claims: &mut vec![0; boxes * topk],
            claim_counts: &mut vec![0; boxes],
        },
        Assignment { owner: &mut owner, score: &mut score },
    );
    (owner, score)
}

/// How far CIoU of the same boxes may lie apart in two float32 implementations.
const DOUBT: f64 = 1e-5;

/// Marks boxes of which a claim, or the fate of a contested anchor, hangs on less than [`DOUBT`].
pub fn mark_near_ties(problem: &Problem, wide: &Wide, close: &mut [bool]) {
    let config = &problem.config;
    let corners = corners::<f64>(problem);
    for image in 0..problem.batch {
        let own = problem.offsets[image] as usize..problem.offsets[image + 1] as usize;
        let mut claims = vec![0u32; problem.levels.anchors()];
        for index in own.clone() {
            let target = &corners[index];
            // (metric, CIoU, anchor) of the candidates.
            let mut candidates: Vec<(f64, f64, usize)> = vec![];
            for size in problem.levels.as_slice() {
                for cell in 0..size.cells() {
                    let (x, y) = size.centre::<f64>(cell);
                    let (x, y) = (x * size.stride as f64, y * size.stride as f64);
                    let inside = (x - target[0]).min(y - target[1]).min(target[2] - x).min(target[3] - y);
                    if inside.is_nan() || inside < -1e-3 {
                        continue;
                    }
                    // A centre on an edge is outside for both; one closer than rounding is doubtful.
                    close[index] |= inside.abs() < 1e-3 && inside.abs() > 1e-9;
                    if inside <= 1e-9 {
                        continue;
                    }
                    let anchor = size.first + cell;
                    let ciou = overlap(Overlap::Ciou, target, &wide.corners(image, anchor));
                    let score = wide.score(image, anchor, problem.classes[index]);
                    if ciou > -DOUBT {
                        let metric = score.powf(config.alpha) * ciou.max(0.0).powf(config.beta);
                        candidates.push((metric, ciou, anchor));
                    }
                }
            }
            candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
            let k = config.topk;
            if candidates.len() > k {
                let (last, next) = (candidates[k - 1], candidates[k]);
                let doubt = 1e-5 + 2.0 * config.beta * DOUBT / last.1.max(DOUBT);
                close[index] |= last.1 <= DOUBT || last.0 - next.0 <= doubt * last.0;
            } else {
                close[index] |= candidates.iter().any(|c| c.1.abs() <= DOUBT);
            }
            candidates.iter().take(k).filter(|c| c.0 > 0.0).for_each(|c| claims[c.2] += 1);
        }
        for anchor in claims.iter().enumerate().filter(|(_, c)| **c > 1).map(|(a, _)| a) {
            let predicted = wide.corners(image, anchor);
            let mut best: Vec<(f64, usize)> =
                own.clone().map(|i| (overlap(Overlap::Ciou, &corners[i], &predicted), i)).collect();
            best.retain(|b| !b.0.is_nan());
            best.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let next = best.iter().find(|b| corners[b.1] != corners[best[0].1]);
            if let Some(next) = next
                && best[0].0 - next.0 < 4.0 * DOUBT
            {
                close[next.1] = true;
            }
        }
    }
}
