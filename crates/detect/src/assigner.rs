//! Task-aligned assigner (TOOD, Feng et al. 2021): which anchors learn which box, and how strongly.
//!
//! Boxes come packed per image (CSR offsets) and every box walks only the cells whose centres lie inside
//! it, so memory is linear in anchors plus boxes and never their product. The rules:
//! 1. candidates of a box are anchors whose centre lies strictly inside it (more than 1e-9 px from every
//!    side); metric = score^alpha * max(CIoU, 0)^beta with the score of the box's class;
//! 2. a box claims its `topk` candidates of largest metric, metric > 0 only; equal metrics: lower anchor;
//! 3. an anchor claimed by several boxes goes to the one of highest CIoU among **all** boxes of the image,
//!    claiming or not; equal CIoU: lower box;
//! 4. target score = metric * (largest CIoU of the box) / (largest metric of the box + 1e-9), both over the
//!    anchors the box keeps.

use rayon::prelude::*;

use crate::boxes::{self, Corners, Overlap};
use crate::{Levels, Real};

/// Owner of an anchor that learns no box.
pub const BACKGROUND: u32 = u32::MAX;
/// Owner, for a moment, of an anchor that several boxes claim.
const CONTESTED: u32 = u32::MAX - 1;
/// Guard of the target score's division and smallest distance of a centre from a side.
const EPS: f64 = 1e-9;

/// Parameters of the assigner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AssignerConfig {
    /// Anchors a box may claim; at least 1. Default 10.
    pub topk: usize,
    /// Exponent of the score. Default 0.5.
    pub alpha: f64,
    /// Exponent of CIoU. Default 6.
    pub beta: f64,
}

impl Default for AssignerConfig {
    fn default() -> Self {
        Self { topk: 10, alpha: 0.5, beta: 6.0 }
    }
}

/// What the network predicts, as the assigner asks for it.
pub trait Predictions<T>: Sync {
    /// Class score after the sigmoid, in [0, 1].
    fn score(&self, image: usize, anchor: usize, class: u32) -> T;
    /// Corners in network pixels.
    fn corners(&self, image: usize, anchor: usize) -> Corners<T>;
}

/// Boxes of a batch, packed: image i owns boxes `offsets[i]..offsets[i + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct PackedBoxes<'a, T> {
    /// batch + 1 ascending numbers, the first 0 and the last the number of boxes.
    pub offsets: &'a [u32],
    /// Class of each box.
    pub classes: &'a [u32],
    /// Corners in network pixels.
    pub corners: &'a [Corners<T>],
}

/// Working memory of [`assign`] for `boxes` boxes.
pub struct AssignerScratch<'a, T> {
    /// boxes * topk values.
    pub metrics: &'a mut [T],
    /// 2 * boxes values.
    pub maxima: &'a mut [T],
    /// boxes * topk values.
    pub claims: &'a mut [u32],
    /// boxes values.
    pub claim_counts: &'a mut [u32],
}

/// Result of [`assign`], (batch, anchors) each.
pub struct Assignment<'a, T> {
    /// Index of the box within its image, or [`BACKGROUND`].
    pub owner: &'a mut [u32],
    /// Target score of the owner's class; 0 for background.
    pub score: &'a mut [T],
}

/// Assigns the anchors of a batch to its boxes. Slices must have the lengths their types state. Allocates
/// nothing and does not depend on the number of threads.
pub fn assign<T: Real, P: Predictions<T>>(
    config: &AssignerConfig,
    levels: &Levels,
    boxes: PackedBoxes<'_, T>,
    predictions: &P,
    scratch: AssignerScratch<'_, T>,
    result: Assignment<'_, T>,
) {
    let topk = config.topk.max(1);
    let job = Job { config, levels, boxes, predictions };
    let AssignerScratch { metrics, maxima, claims, claim_counts } = scratch;
    let per_box = claims.par_chunks_mut(topk).zip(metrics.par_chunks_mut(topk)).zip(claim_counts.par_iter_mut());
    per_box.enumerate().for_each(|(index, ((claims, metrics), count))| {
        *count = job.claim(index, claims, metrics) as u32;
    });
    let images = boxes.offsets.len() - 1;
    job.settle(0..images, claims, claim_counts, maxima, result.owner, result.score);
}

struct Job<'a, T, P> {
    config: &'a AssignerConfig,
    levels: &'a Levels,
    boxes: PackedBoxes<'a, T>,
    predictions: &'a P,
}

impl<T: Real, P: Predictions<T>> Job<'_, T, P> {
    /// True for the published exponents, whose metric is a product: monotone in CIoU even after rounding.
    fn is_product(&self) -> bool {
        self.config.alpha == 0.5 && self.config.beta == 6.0
    }

    /// score^alpha * ciou^beta, in this one order everywhere.
    #[inline(always)]
    fn metric(&self, score: T, ciou: T) -> T {
        if self.is_product() {
            let squared = ciou * ciou;
            score.sqrt() * squared * squared * squared
        } else {
            score.powf(T::of(self.config.alpha)) * ciou.powf(T::of(self.config.beta))
        }
    }

    /// Step 1 and 2 for one box: writes its best anchors (best first) and their metrics, returns how many.
    fn claim(&self, index: usize, claims: &mut [u32], metrics: &mut [T]) -> usize {
        let target = &self.boxes.corners[index];
        let class = self.boxes.classes[index];
        let image = self.boxes.offsets.partition_point(|&o| o as usize <= index) - 1;
        // The reference takes rows whose corners sum to 0 for padding.
        let is_box = target[0] + target[1] + target[2] + target[3] > T::zero();
        if !is_box {
            return 0;
        }
        let skip_early = self.is_product();
        let mut count = 0;
        for level in self.levels.as_slice() {
            let columns = cells_inside::<T>(target[0], target[2], level.stride, level.w);
            let rows = cells_inside::<T>(target[1], target[3], level.stride, level.h);
            for row in rows {
                for column in columns.clone() {
                    let anchor = level.first + row * level.w + column;
                    let predicted = self.predictions.corners(image, anchor);
                    let iou = boxes::overlap(Overlap::Iou, target, &predicted);
                    if iou <= T::zero() {
                        continue;
                    }
                    let score = self.predictions.score(image, anchor, class);
                    let full = count == claims.len();
                    let weakest = if full { metrics[count - 1] } else { T::zero() };
                    // CIoU never exceeds IoU: what cannot pass with IoU needs no arc tangents.
                    if skip_early && self.metric(score, iou) <= weakest {
                        continue;
                    }
                    let ciou = boxes::overlap(Overlap::Ciou, target, &predicted).max(T::zero());
                    let metric = self.metric(score, ciou);
                    // Anchors come in ascending order, so a strict comparison keeps the lower of equals.
                    let better = metric > weakest;
                    if !better {
                        continue;
                    }
                    let mut at = if full { count - 1 } else { count };
                    while at > 0 && metric > metrics[at - 1] {
                        metrics[at] = metrics[at - 1];
                        claims[at] = claims[at - 1];
                        at -= 1;
                    }
                    metrics[at] = metric;
                    claims[at] = anchor as u32;
                    if !full {
                        count += 1;
                    }
                }
            }
        }
        count
    }

    /// Steps 3 and 4 for a range of images; halves of the range run in parallel on their own parts of the
    /// slices (which belong to exactly these images).
    fn settle(
        &self,
        images: std::ops::Range<usize>,
        claims: &[u32],
        claim_counts: &[u32],
        maxima: &mut [T],
        owner: &mut [u32],
        score: &mut [T],
    ) {
        match images.len() {
            0 => {}
            1 => self.settle_image(images.start, claims, claim_counts, maxima, owner, score),
            n => {
                let middle = images.start + n / 2;
                let boxes = (self.boxes.offsets[middle] - self.boxes.offsets[images.start]) as usize;
                let anchors = n / 2 * self.levels.anchors();
                let (claims0, claims1) = claims.split_at(boxes * self.config.topk.max(1));
                let (counts0, counts1) = claim_counts.split_at(boxes);
                let (maxima0, maxima1) = maxima.split_at_mut(2 * boxes);
                let (owner0, owner1) = owner.split_at_mut(anchors);
                let (score0, score1) = score.split_at_mut(anchors);
                rayon::join(
                    || self.settle(images.start..middle, claims0, counts0, maxima0, owner0, score0),
                    || self.settle(middle..images.end, claims1, counts1, maxima1, owner1, score1),
                );
            }
        }
    }

    fn settle_image(
        &self,
        image: usize,
        claims: &[u32],
        claim_counts: &[u32],
        maxima: &mut [T],
        owner: &mut [u32],
        score: &mut [T],
    ) {
        owner.fill(BACKGROUND);
        score.fill(T::zero());
        maxima.fill(T::zero());
        let range = self.boxes.offsets[image] as usize..self.boxes.offsets[image + 1] as usize;
        let (targets, classes) = (&self.boxes.corners[range.clone()], &self.boxes.classes[range]);
        for (index, (claims, &count)) in claims.chunks(self.config.topk.max(1)).zip(claim_counts).enumerate() {
            for &anchor in &claims[..count as usize] {
                let slot = &mut owner[anchor as usize];
                *slot = if *slot == BACKGROUND { index as u32 } else { CONTESTED };
            }
        }
        for (anchor, (owner, score)) in owner.iter_mut().zip(score.iter_mut()).enumerate() {
            if *owner == BACKGROUND {
                continue;
            }
            let predicted = self.predictions.corners(image, anchor);
            if *owner == CONTESTED {
                *owner = best_overlap(targets, &predicted) as u32;
            }
            let index = *owner as usize;
            let ciou = boxes::overlap(Overlap::Ciou, &targets[index], &predicted).max(T::zero());
            *score = self.metric(self.predictions.score(image, anchor, classes[index]), ciou);
            maxima[2 * index] = maxima[2 * index].max(*score);
            maxima[2 * index + 1] = maxima[2 * index + 1].max(ciou);
        }
        for (&owner, score) in owner.iter().zip(score.iter_mut()).filter(|(owner, _)| **owner != BACKGROUND) {
            let index = owner as usize;
            *score = *score * maxima[2 * index + 1] / (maxima[2 * index] + T::of(EPS));
        }
    }
}

/// Box of highest CIoU with a prediction; the lower index of equals.
fn best_overlap<T: Real>(targets: &[Corners<T>], predicted: &Corners<T>) -> usize {
    let mut best = (T::zero(), 0);
    for (index, target) in targets.iter().enumerate() {
        let apart = target[0] >= predicted[2]
            || target[2] <= predicted[0]
            || target[1] >= predicted[3]
            || target[3] <= predicted[1];
        if apart {
            continue;
        }
        if let Some(ciou) = boxes::ciou_above(target, predicted, best.0).filter(|&ciou| ciou > best.0) {
            best = (ciou, index);
        }
    }
    best.1
}

/// Cells of one axis whose centres lie strictly between `low` and `high` (network pixels).
fn cells_inside<T: Real>(low: T, high: T, stride: usize, cells: usize) -> std::ops::Range<usize> {
    let size = T::of(stride as f64);
    let half = T::of(0.5);
    let inside = |cell: usize| {
        let centre = (T::of(cell as f64) + half) * size;
        centre - low > T::of(EPS) && high - centre > T::of(EPS)
    };
    let last = T::of(cells as f64);
    // One cell wider than needed at either end, then exact: rounding must not decide.
    let start = (low / size - T::of(1.5)).max(T::zero()).min(last).to_usize().unwrap_or(0);
    let end = (high / size + T::of(1.5)).max(T::zero()).min(last).to_usize().unwrap_or(0);
    let Some(first) = (start..end).find(|&cell| inside(cell)) else { return 0..0 };
    let mut end = end;
    while end > first && !inside(end - 1) {
        end -= 1;
    }
    first..end
}
