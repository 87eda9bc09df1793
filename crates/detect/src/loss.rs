//! The whole detection loss of one or several head branches, from raw logits to gradients.
//!
//! For each branch: decode the boxes, assign anchors to boxes, then class cross entropy over all anchors,
//! 1 - CIoU and distribution focal loss over foreground anchors, each divided by max(sum of target scores
//! over the batch, 1). Assignment and target scores are constants for the gradient. The assigner compares
//! boxes in pixels, the loss in grid cells.

mod boxes;
mod check;
mod classes;
mod fixed;
mod maps;
mod pass;

pub use boxes::{BoxTerms, box_terms};
pub use fixed::FixedAssignment;
pub use maps::{Branch, BranchGradient, MapMut, MapRef};

use rayon::prelude::*;

use crate::Real;
use crate::anchors::MAX_LEVELS;
use crate::assigner::{AssignerConfig, AssignerScratch, Assignment, BACKGROUND, PackedBoxes, assign};
use crate::boxes::xywh_to_corners;
use pass::Pass;

/// Most branches a head may have.
pub const MAX_BRANCHES: usize = 4;
/// Cells one task works on. A fixed number, so that partial sums never depend on the number of threads.
const BLOCK: usize = 256;
/// Partial sums of a block: 1 - CIoU, distribution focal loss, class loss.
const TERMS: usize = 3;

/// Constants of the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct LossConfig {
    /// Number of classes.
    pub nc: usize,
    /// Stride of each level in network pixels.
    pub strides: Vec<usize>,
    /// Weight of each branch: [1.0] for one, [0.25, 1.0] for auxiliary and main.
    pub branch_weights: Vec<f64>,
    /// Gain of 1 - CIoU. Default 7.5.
    pub box_gain: f64,
    /// Gain of the class loss. Default 0.5.
    pub cls_gain: f64,
    /// Gain of the distribution focal loss. Default 1.5.
    pub dfl_gain: f64,
    /// Weight of positive class targets. Default 1.
    pub cls_pw: f64,
    /// Exponent of the focal loss; 0 turns it off. Default 0.
    pub fl_gamma: f64,
    /// Anchors a box may claim. Default 10.
    pub topk: usize,
    /// Exponent of the score in the assigner's metric. Default 0.5.
    pub alpha: f64,
    /// Exponent of CIoU in the assigner's metric. Default 6.
    pub beta: f64,
    /// Label smoothing E in [0, 1) of anchors with an object. Default 0 (the reference parses it and leaves it out).
    ///
    /// The target vector of such an anchor is its target score t times a one-hot vector; smoothed, the one becomes
    /// 1 - E / 2 and the zeros E / 2, so that the assigned class aims at t (1 - E / 2) and each other at t E / 2.
    /// Without the score (t = 1) these are the targets that detectors with hard labels use on their matched anchors.
    /// Anchors without an object keep 0: they outnumber the others by hundreds and carry no doubt about a class,
    /// while the loss is divided by the sum of the target scores, so E / 2 on all of their classes would outweigh
    /// every object. That sum, and with it box loss and distribution focal loss, stays as without smoothing.
    pub label_smoothing: f64,
}

impl LossConfig {
    /// Published constants for `nc` classes on strides 8, 16, 32 with the given branch weights.
    pub fn new(nc: usize, branch_weights: Vec<f64>) -> Self {
        Self {
            nc,
            strides: vec![8, 16, 32],
            branch_weights,
            box_gain: 7.5,
            cls_gain: 0.5,
            dfl_gain: 1.5,
            cls_pw: 1.0,
            fl_gamma: 0.0,
            topk: 10,
            alpha: 0.5,
            beta: 6.0,
            label_smoothing: 0.0,
        }
    }

    fn assigner(&self) -> AssignerConfig {
        AssignerConfig { topk: self.topk, alpha: self.alpha, beta: self.beta }
    }
}

/// Boxes of a batch, packed: image i owns rows `offsets[i]..offsets[i + 1]`.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// batch + 1 ascending numbers from 0 to the number of boxes.
    pub offsets: &'a [u32],
    /// Class of each box, below nc.
    pub classes: &'a [u32],
    /// Centre x, centre y, width, height of each box as fractions of the network input.
    pub boxes: &'a [[f32; 4]],
}

/// Working memory, of the sizes that [`scratch_len`] gives. Contents do not matter.
pub struct Scratch<'a, T> {
    pub floats: &'a mut [T],
    pub integers: &'a mut [u32],
}

/// Losses of one branch, gains in, branch weight not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BranchLoss {
    pub box_loss: f64,
    pub cls_loss: f64,
    pub dfl_loss: f64,
    /// Anchors that learn a box.
    pub foreground: usize,
    /// Sum of the target scores over the batch (before the lower bound of 1).
    pub target_score_sum: f64,
}

/// Losses of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossOutput {
    /// (box + cls + dfl) * batch: what the gradients belong to.
    pub total: f64,
    /// Weighted over branches, gains in.
    pub box_loss: f64,
    pub cls_loss: f64,
    pub dfl_loss: f64,
    per_branch: [BranchLoss; MAX_BRANCHES],
    branch_count: usize,
}

impl LossOutput {
    /// Each branch alone, in order.
    pub fn branches(&self) -> &[BranchLoss] {
        &self.per_branch[..self.branch_count]
    }
}

/// What is wrong with the arguments of [`detection_loss`] or [`assigned_loss`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LossError {
    #[error("the head has {branches} branches, the loss {weights} branch weights (1 to {MAX_BRANCHES} are possible)")]
    Branches { branches: usize, weights: usize },
    #[error("branch {branch} has {boxes} box maps and {classes} class maps for {strides} strides (1 to {MAX_LEVELS})")]
    Levels { branch: usize, boxes: usize, classes: usize, strides: usize },
    #[error("stride, topk and nc must be at least 1")]
    ZeroSetting,
    #[error(
        "branch {branch} level {level}, {what}: {h}x{w} cells of pitch {pitch} for a batch of {batch} with {channels} \
         channels do not fit {len} values or the other maps of the level"
    )]
    Map {
        branch: usize,
        level: usize,
        what: &'static str,
        batch: usize,
        h: usize,
        w: usize,
        channels: usize,
        pitch: usize,
        len: usize,
    },
    #[error("targets: {offsets} offsets, {classes} classes and {boxes} boxes do not describe a batch of {batch}")]
    Targets { batch: usize, offsets: usize, classes: usize, boxes: usize },
    #[error("box {index} has class {class}, but there are {nc} classes")]
    Class { index: usize, class: u32, nc: usize },
    #[error("{assignments} assignments for {branches} branches")]
    Assignments { assignments: usize, branches: usize },
    #[error("branch {branch}: {owners} owners and {scores} scores for {needed} anchors, or an owner that is not there")]
    Assignment { branch: usize, owners: usize, scores: usize, needed: usize },
    #[error("scratch of {floats} floats and {integers} integers is below the {need_floats} and {need_integers} needed")]
    Scratch { floats: usize, integers: usize, need_floats: usize, need_integers: usize },
}

/// Scratch [`detection_loss`] needs, (floats, integers), for `batch` images of `anchors_per_image` anchors
/// and at most `max_boxes` boxes in the whole batch. It grows linearly in each of them.
pub fn scratch_len(config: &LossConfig, batch: usize, anchors_per_image: usize, max_boxes: usize) -> (usize, usize) {
    let anchors = batch.saturating_mul(anchors_per_image);
    let blocks = anchors / BLOCK + config.strides.len();
    let claims = max_boxes.saturating_mul(config.topk);
    let floats = [anchors.saturating_mul(5), max_boxes.saturating_mul(6), claims, blocks.saturating_mul(TERMS)];
    let integers = [anchors, max_boxes, claims];
    (floats.into_iter().fold(0, usize::saturating_add), integers.into_iter().fold(0, usize::saturating_add))
}

/// Detection loss of a batch of `input_hw` = (height, width) network pixels, and with `gradients` (one entry
/// per branch) d(total)/d(logit), written over whatever the maps held.
///
/// Allocates no heap memory of its own. Non-finite logits give a non-finite loss, never a panic.
///
/// # Errors
/// [`LossError`] when maps, targets, scratch and configuration do not fit together.
pub fn detection_loss<T: Real>(
    config: &LossConfig,
    batch: usize,
    input_hw: (usize, usize),
    branches: &[Branch<'_, T>],
    targets: &Targets<'_>,
    scratch: Scratch<'_, T>,
    gradients: Option<&mut [BranchGradient<'_, '_, T>]>,
) -> Result<LossOutput, LossError> {
    compute(config, batch, input_hw, branches, (targets, None), scratch, gradients)
}

/// [`detection_loss`] where each branch has its assignment given, one entry a branch.
///
/// # Errors
/// As [`detection_loss`], and where an assignment does not fit the maps and targets.
pub fn assigned_loss<T: Real>(
    config: &LossConfig,
    batch: usize,
    input_hw: (usize, usize),
    branches: &[Branch<'_, T>],
    (targets, fixed): (&Targets<'_>, &[FixedAssignment]),
    scratch: Scratch<'_, T>,
    gradients: Option<&mut [BranchGradient<'_, '_, T>]>,
) -> Result<LossOutput, LossError> {
    compute(config, batch, input_hw, branches, (targets, Some(fixed)), scratch, gradients)
}

fn compute<T: Real>(
    config: &LossConfig,
    batch: usize,
    input_hw: (usize, usize),
    branches: &[Branch<'_, T>],
    (targets, fixed): (&Targets<'_>, Option<&[FixedAssignment]>),
    scratch: Scratch<'_, T>,
    mut gradients: Option<&mut [BranchGradient<'_, '_, T>]>,
) -> Result<LossOutput, LossError> {
    let levels = check::arguments(config, batch, branches, targets, gradients.as_deref())?;
    if let Some(fixed) = fixed {
        if fixed.len() != branches.len() {
            return Err(LossError::Assignments { assignments: fixed.len(), branches: branches.len() });
        }
        fixed.iter().enumerate().try_for_each(|(branch, f)| f.check(branch, levels.anchors(), targets))?;
    }
    let anchors = batch * levels.anchors();
    let boxes = targets.boxes.len();
    let (need_floats, need_integers) = scratch_len(config, batch, levels.anchors(), boxes);
    let Scratch { floats, integers } = scratch;
    if floats.len() < need_floats || integers.len() < need_integers {
        let (floats, integers) = (floats.len(), integers.len());
        return Err(LossError::Scratch { floats, integers, need_floats, need_integers });
    }
    let (predicted, floats) = floats.split_at_mut(anchors * 4);
    let (score, floats) = floats.split_at_mut(anchors);
    let (corners, floats) = floats.split_at_mut(boxes * 4);
    let (metrics, floats) = floats.split_at_mut(boxes * config.topk);
    let (maxima, floats) = floats.split_at_mut(boxes * 2);
    let partial = &mut floats[..need_floats - anchors * 5 - boxes * 6 - boxes * config.topk];
    let (owner, integers) = integers.split_at_mut(anchors);
    let (claims, integers) = integers.split_at_mut(boxes * config.topk);
    let claim_counts = &mut integers[..boxes];
    let predicted = predicted.as_chunks_mut::<4>().0;
    let corners = corners.as_chunks_mut::<4>().0;

    let (h, w) = (T::of(input_hw.0 as f64), T::of(input_hw.1 as f64));
    for (corners, b) in corners.iter_mut().zip(targets.boxes) {
        let [x, y, width, height] = b.map(|v| T::of(v as f64));
        *corners = xywh_to_corners(&[x * w, y * h, width * w, height * h]);
    }
    let packed = PackedBoxes { offsets: targets.offsets, classes: targets.classes, corners };

    let mut output = LossOutput { branch_count: branches.len(), ..LossOutput::default() };
    for (index, branch) in branches.iter().enumerate() {
        pass::decode(&levels, branch, predicted);
        if let Some(fixed) = fixed {
            fixed[index].copy_to(owner, score);
        } else {
            let view = pass::BranchPredictions { levels: &levels, branch, predicted };
            let scratch = AssignerScratch {
                metrics: &mut *metrics,
                maxima: &mut *maxima,
                claims: &mut *claims,
                claim_counts: &mut *claim_counts,
            };
            let result = Assignment { owner: &mut *owner, score: &mut *score };
            assign(&config.assigner(), &levels, packed, &view, scratch, result);
        }

        let foreground = owner.iter().filter(|&&o| o != BACKGROUND).count();
        let target_score_sum: f64 = score.iter().map(|s| s.wide()).sum();
        let normaliser = target_score_sum.max(1.0);
        let assigned = pass::Assigned { predicted, owner, score };
        let pass = Pass::new(config, &levels, batch, branch, packed, assigned, index, normaliser);
        let sums = pass.run(gradients.as_deref_mut().map(|g| &mut g[index]), partial);

        let [iou, dfl, cls] = sums;
        let losses = BranchLoss {
            box_loss: config.box_gain * iou / normaliser,
            cls_loss: config.cls_gain * cls / normaliser,
            dfl_loss: config.dfl_gain * dfl / normaliser,
            foreground,
            target_score_sum,
        };
        let weight = config.branch_weights[index];
        output.box_loss += weight * losses.box_loss;
        output.cls_loss += weight * losses.cls_loss;
        output.dfl_loss += weight * losses.dfl_loss;
        output.per_branch[index] = losses;
    }
    output.total = (output.box_loss + output.cls_loss + output.dfl_loss) * batch as f64;
    Ok(output)
}

/// Sum of block sums in block order.
fn merge<T: Real>(partial: &[T]) -> [f64; TERMS] {
    let mut sums = [0.0; TERMS];
    for block in partial.as_chunks::<TERMS>().0 {
        for (sum, &term) in sums.iter_mut().zip(block) {
            *sum += term.wide();
        }
    }
    sums
}

/// Blocks of a level with `cells` cells over the batch.
fn blocks(cells: usize) -> usize {
    cells.div_ceil(BLOCK)
}

/// Runs `work` on every block of `partial` in parallel.
fn for_blocks<T: Real>(partial: &mut [T], work: impl Fn(usize) -> [T; TERMS] + Sync) {
    partial.as_chunks_mut::<TERMS>().0.par_iter_mut().enumerate().for_each(|(block, sums)| *sums = work(block));
}
