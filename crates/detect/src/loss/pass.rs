//! The two passes over all anchors of a branch: decoding before the assignment, losses and gradients after.

use rayon::prelude::*;

use super::classes::ClassLoss;
use super::maps::{Branch, BranchGradient, MapMut};
use super::{BLOCK, LossConfig, TERMS, blocks, box_terms, for_blocks, merge};
use crate::assigner::{BACKGROUND, PackedBoxes, Predictions};
use crate::boxes::Corners;
use crate::dfl::{BOX_CHANNELS, decode_corners};
use crate::{Levels, Real};

/// The 64 box logits that start at `at`.
#[inline(always)]
fn box_logits<T>(data: &[T], at: usize) -> &[T; BOX_CHANNELS] {
    data[at..].first_chunk().expect("map lengths were checked")
}

/// Decodes every anchor of the batch to corners in grid cells, (batch, anchors).
pub(super) fn decode<T: Real>(levels: &Levels, branch: &Branch<'_, T>, predicted: &mut [Corners<T>]) {
    let per_image = levels.anchors();
    predicted.par_chunks_mut(BLOCK).enumerate().for_each(|(block, predicted)| {
        for (i, corners) in predicted.iter_mut().enumerate() {
            let index = block * BLOCK + i;
            let (image, anchor) = (index / per_image, index % per_image);
            let (level, cell) = levels.locate(anchor);
            let (map, size) = (&branch.boxes[level], &levels.as_slice()[level]);
            let logits = box_logits(map.data, (image * size.cells() + cell) * map.pitch);
            *corners = decode_corners(logits, size.centre(cell));
        }
    });
}

/// A branch's predictions as the assigner wants them: scores after the sigmoid, corners in pixels.
pub(super) struct BranchPredictions<'a, T> {
    pub levels: &'a Levels,
    pub branch: &'a Branch<'a, T>,
    /// Corners in grid cells, (batch, anchors).
    pub predicted: &'a [Corners<T>],
}

impl<T: Real> Predictions<T> for BranchPredictions<'_, T> {
    #[inline(always)]
    fn score(&self, image: usize, anchor: usize, class: u32) -> T {
        let (level, cell) = self.levels.locate(anchor);
        let map = &self.branch.classes[level];
        map.data[(image * map.h * map.w + cell) * map.pitch + class as usize].sigmoid()
    }

    #[inline(always)]
    fn corners(&self, image: usize, anchor: usize) -> Corners<T> {
        let stride = T::of(self.levels.as_slice()[self.levels.locate(anchor).0].stride as f64);
        self.predicted[image * self.levels.anchors() + anchor].map(|v| v * stride)
    }
}

/// What is known of every anchor before the loss, (batch, anchors) each.
#[derive(Clone, Copy)]
pub(super) struct Assigned<'a, T> {
    /// Corners in grid cells.
    pub predicted: &'a [Corners<T>],
    /// Box within the image, or [`BACKGROUND`].
    pub owner: &'a [u32],
    /// Target score of the owner's class.
    pub score: &'a [T],
}

/// Loss pass of one branch.
pub(super) struct Pass<'a, T> {
    levels: &'a Levels,
    batch: usize,
    nc: usize,
    branch: &'a Branch<'a, T>,
    targets: PackedBoxes<'a, T>,
    assigned: Assigned<'a, T>,
    class_loss: ClassLoss<T>,
    /// d(total)/d(term) of 1 - CIoU, distribution focal loss and class loss.
    scales: [T; TERMS],
}

impl<'a, T: Real> Pass<'a, T> {
    pub fn new(
        config: &LossConfig,
        levels: &'a Levels,
        batch: usize,
        branch: &'a Branch<'a, T>,
        targets: PackedBoxes<'a, T>,
        assigned: Assigned<'a, T>,
        index: usize,
        normaliser: f64,
    ) -> Self {
        let factor = batch as f64 * config.branch_weights[index] / normaliser;
        Self {
            levels,
            batch,
            nc: config.nc,
            branch,
            targets,
            assigned,
            class_loss: ClassLoss {
                positive_weight: T::of(config.cls_pw),
                gamma: T::of(config.fl_gamma),
                smoothing: T::of(config.label_smoothing),
            },
            scales: [config.box_gain, config.dfl_gain, config.cls_gain].map(|gain| T::of(gain * factor)),
        }
    }

    /// Sums of the three terms over the batch (no gain, not normalised); writes gradients when asked.
    pub fn run(&self, gradient: Option<&mut BranchGradient<'_, '_, T>>, partial: &mut [T]) -> [f64; TERMS] {
        let mut used = 0;
        let mut gradient = gradient;
        for level in 0..self.levels.as_slice().len() {
            let cells = self.batch * self.levels.as_slice()[level].cells();
            let partial = &mut partial[used * TERMS..(used + blocks(cells)) * TERMS];
            used += blocks(cells);
            match gradient.as_deref_mut() {
                None => for_blocks(partial, |block| self.block(level, block, None)),
                Some(gradient) => {
                    let (b, c) = (&mut gradient.boxes[level], &mut gradient.classes[level]);
                    let (box_pitch, class_pitch) = (b.pitch, c.pitch);
                    let (box_padded, class_padded) = (b.channels_padded, c.channels_padded);
                    let sums = partial.as_chunks_mut::<TERMS>().0.par_iter_mut();
                    let chunks = rows(b, cells).zip(rows(c, cells));
                    sums.zip(chunks).enumerate().for_each(|(block, (sums, (boxes, classes)))| {
                        let out = BlockGradient { boxes, classes, box_pitch, class_pitch, box_padded, class_padded };
                        *sums = self.block(level, block, Some(out));
                    });
                }
            }
        }
        merge(&partial[..used * TERMS])
    }

    /// One block of consecutive cells of a level (running over image borders).
    fn block(&self, level: usize, block: usize, mut gradient: Option<BlockGradient<'_, T>>) -> [T; TERMS] {
        let size = &self.levels.as_slice()[level];
        let (boxes, classes) = (&self.branch.boxes[level], &self.branch.classes[level]);
        let start = block * BLOCK;
        let end = (start + BLOCK).min(self.batch * size.cells());
        let stride = T::of(size.stride as f64);
        let mut sums = [0.0f64; TERMS];
        for row in start..end {
            let (image, cell) = (row / size.cells(), row % size.cells());
            let anchor = image * self.levels.anchors() + size.first + cell;
            let owner = self.assigned.owner[anchor];
            let logits = &classes.data[row * classes.pitch..][..self.nc];
            let (box_out, class_out) = match gradient.as_mut() {
                Some(gradient) => {
                    let (boxes, classes) = gradient.row(row - start, self.nc);
                    (Some(boxes), Some(classes))
                }
                None => (None, None),
            };
            if owner == BACKGROUND {
                if let Some(out) = box_out {
                    out.fill(T::zero());
                }
                // A background anchor's box costs nothing, but one that is NaN must not go unnoticed: 0 * NaN.
                let corners = &self.assigned.predicted[anchor];
                sums[0] += 0.0 * corners.iter().fold(0.0, |sum, v| sum + v.wide());
                sums[2] += self.class_loss.background(logits, self.scales[2], class_out).wide();
                continue;
            }
            let score = self.assigned.score[anchor];
            let target = self.targets.offsets[image] as usize + owner as usize;
            let object = (self.targets.classes[target] as usize, score);
            sums[2] += self.class_loss.foreground(logits, object, self.scales[2], class_out).wide();
            let corners = self.targets.corners[target].map(|v| v / stride);
            let box_logits = box_logits(boxes.data, row * boxes.pitch);
            let scales = (self.scales[0] * score, self.scales[1] * score);
            let terms = box_terms(box_logits, size.centre(cell), &corners, scales, box_out);
            sums[0] += (terms.iou * score).wide();
            sums[1] += (terms.dfl * score).wide();
        }
        sums.map(T::of)
    }
}

/// Blocks of whole rows of a gradient map, exactly those of `cells` cells.
fn rows<'a, T: Real>(map: &'a mut MapMut<'_, T>, cells: usize) -> rayon::slice::ChunksMut<'a, T> {
    let len = map.data.len().min(cells * map.pitch);
    map.data[..len].par_chunks_mut(BLOCK * map.pitch)
}

/// Where one block writes its gradients.
struct BlockGradient<'a, T> {
    boxes: &'a mut [T],
    classes: &'a mut [T],
    box_pitch: usize,
    class_pitch: usize,
    box_padded: usize,
    class_padded: usize,
}

impl<T: Real> BlockGradient<'_, T> {
    /// Box and class gradient of one row; padding channels are zeroed here.
    fn row(&mut self, row: usize, nc: usize) -> (&mut [T; BOX_CHANNELS], &mut [T]) {
        let boxes = &mut self.boxes[row * self.box_pitch..][..self.box_padded];
        let (boxes, padding) = boxes.split_first_chunk_mut().expect("map lengths were checked");
        padding.fill(T::zero());
        let classes = &mut self.classes[row * self.class_pitch..][..self.class_padded];
        let (classes, padding) = classes.split_at_mut(nc);
        padding.fill(T::zero());
        (boxes, classes)
    }
}
