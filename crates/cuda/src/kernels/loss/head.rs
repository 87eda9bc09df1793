//! What the loss works on, checked, and what the kernels are told of it.

use crate::error::{CudaError, Result};
use crate::view::{Format, View};
use detect::LossConfig;
use detect::anchors::MAX_LEVELS;
use detect::dfl::BOX_CHANNELS;
use detect::loss::MAX_BRANCHES;

/// Most anchors a box may claim: the ranks of a warp.
pub const MAX_TOPK: usize = 32;
/// Threads of a block, and rows of a map that a warp takes at a time.
pub(super) const THREADS: usize = 256;
const TILE: usize = 32;
/// Most anchors of a batch, all branches together; their sides are counted in 32 bits.
const MAX_SLOTS: usize = 1 << 28;
/// Most blocks that leave a sum of target scores: one a thread of the block that adds them.
const MAX_SCORE_BLOCKS: usize = THREADS;
/// Most blocks of the pass over all logits, for each branch.
const MAX_TERM_BLOCKS: usize = 1024;

/// Box and class logits of one level of one branch, float32, and where their gradients go.
///
/// Boxes are (N, h, w, 64), classes (N, h, w, at least nc); pad channels of the logits are never looked at, those of the
/// gradients are set to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelMaps {
    pub boxes: View,
    pub classes: View,
    /// Gradients of both, of one format in the whole head. `None` on every level where only values are wanted.
    pub gradients: Option<(View, View)>,
}

/// Targets in device memory, packed as [`detect::Targets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTargets {
    /// batch + 1 u32.
    pub offsets: u64,
    /// `max_boxes` u32, of which the last offset counts.
    pub classes: u64,
    /// As many times four f32.
    pub boxes: u64,
    pub max_boxes: usize,
}

/// One loss: a head of one or several branches, targets and where results go.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub config: &'a LossConfig,
    pub batch: usize,
    /// Height and width of the network's input in pixels.
    pub input_hw: (usize, usize),
    /// Levels of the first branch, then of the next: branches * strides entries.
    pub levels: &'a [LevelMaps],
    pub targets: DeviceTargets,
    /// One f32 that multiplies gradients and no value.
    pub loss_scale: Option<u64>,
    /// [`detect::external::LOSS_VALUES`] f32.
    pub values: u64,
    /// [`Layout::bytes`] bytes at a multiple of 256; contents do not matter.
    pub scratch: u64,
}

/// Where things lie in the scratch: bytes from its start. By branch unless said otherwise, `slots` a branch's anchors
/// over the batch, level by level, then image by image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Predicted corners in cells, (slots, 4) f32.
    pub corners: u64,
    /// Box of the batch that an anchor learns, u32; numbers from `max_boxes` up mean none.
    pub owner: u64,
    /// Target score, f32, where there is an owner.
    pub score: u64,
    /// Corners of each box in pixels, (max_boxes, 4) f32; once for all branches.
    pub box_corners: u64,
    /// Image of each box, u32; once for all branches.
    pub box_image: u64,
    /// Largest metric and CIoU of each box over its anchors, (max_boxes, 2) f32.
    pub maxima: u64,
    /// Sums of target scores, f64, one a block.
    pub score_sums: u64,
    /// Foreground anchors, u32, one a block.
    pub score_counts: u64,
    /// Sums of 1 - CIoU, distribution focal loss and class loss, (blocks, 3) f64.
    pub term_sums: u64,
    pub bytes: u64,
    /// Blocks of the score sums and of the term sums, of one branch.
    pub score_blocks: usize,
    pub term_blocks: usize,
}

impl Layout {
    /// The scratch of a loss, from extents alone; `anchors` are those of one image over all levels.
    pub fn new(branches: usize, levels: usize, batch: usize, anchors: usize, max_boxes: usize) -> Self {
        let slots = batch * anchors;
        let score_blocks = slots.div_ceil(THREADS).clamp(1, MAX_SCORE_BLOCKS);
        // A level's last tile may be cut short.
        let tiles = slots / TILE + levels;
        let term_blocks = tiles.div_ceil(THREADS / 32).clamp(1, MAX_TERM_BLOCKS);
        let mut layout = Self { score_blocks, term_blocks, ..Self::default() };
        let mut take = |count: usize, size: usize| {
            let start = layout.bytes;
            layout.bytes = (start + (count * size) as u64).next_multiple_of(256);
            start
        };
        let corners = take(branches * slots, 16);
        let owner = take(branches * slots, 4);
        let score = take(branches * slots, 4);
        let box_corners = take(max_boxes, 16);
        let box_image = take(max_boxes, 4);
        let maxima = take(branches * max_boxes, 8);
        let score_sums = take(branches * score_blocks, 8);
        let score_counts = take(branches * score_blocks, 4);
        let term_sums = take(branches * term_blocks, 24);
        Self { corners, owner, score, box_corners, box_image, maxima, score_sums, score_counts, term_sums, ..layout }
    }
}

/// `Level` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawLevel {
    h: u32,
    w: u32,
    stride: u32,
    first: u32,
    tiles: u32,
    unused: u32,
}

/// `Maps` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawMaps {
    boxes: u64,
    classes: u64,
    box_gradient: u64,
    class_gradient: u64,
    box_pitch: u32,
    class_pitch: u32,
    box_gradient_pitch: u32,
    class_gradient_pitch: u32,
    box_gradient_channels: u32,
    class_gradient_channels: u32,
}

/// `Args` of common.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Args {
    maps: [[RawMaps; MAX_LEVELS]; MAX_BRANCHES],
    level: [RawLevel; MAX_LEVELS],
    branch_weight: [f64; MAX_BRANCHES],
    box_gain: f64,
    cls_gain: f64,
    dfl_gain: f64,
    offsets: u64,
    classes: u64,
    boxes: u64,
    loss_scale: u64,
    values: u64,
    corners: u64,
    owner: u64,
    score: u64,
    box_corners: u64,
    box_image: u64,
    maxima: u64,
    score_sums: u64,
    score_counts: u64,
    term_sums: u64,
    branches: u32,
    levels: u32,
    batch: u32,
    slots: u32,
    tiles: u32,
    nc: u32,
    max_boxes: u32,
    topk: u32,
    score_blocks: u32,
    term_blocks: u32,
    input_h: f32,
    input_w: f32,
    alpha: f32,
    beta: f32,
    positive_weight: f32,
    gamma: f32,
    smoothing: f32,
    product: u32,
}

// A kernel's argument may have 4 KiB.
const _: () = assert!(size_of::<Args>() <= 4096);

/// A head that fits together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checked {
    pub args: Args,
    /// Format of the gradients, if they are wanted.
    pub gradients: Option<Format>,
    pub focal: bool,
}

impl Head<'_> {
    /// Branches of the head.
    pub fn branches(&self) -> usize {
        self.config.branch_weights.len()
    }

    /// Anchors of one image over all levels.
    pub fn anchors(&self) -> usize {
        self.levels.iter().take(self.config.strides.len()).map(|l| l.boxes.h * l.boxes.w).sum()
    }

    /// Where things lie in its scratch.
    pub fn layout(&self) -> Layout {
        Layout::new(self.branches(), self.config.strides.len(), self.batch, self.anchors(), self.targets.max_boxes)
    }

    pub(super) fn check(&self) -> Result<Checked> {
        let (branches, levels) = (self.branches(), self.config.strides.len());
        let refuse = |what: String| Err(CudaError::Head(what));
        if !(1..=MAX_BRANCHES).contains(&branches) || !(1..=MAX_LEVELS).contains(&levels) {
            return refuse(format!("{branches} branches of {levels} levels"));
        }
        if self.levels.len() != branches * levels {
            return refuse(format!("{} maps for {branches} branches of {levels} levels", self.levels.len()));
        }
        let config = self.config;
        if config.nc == 0 || config.strides.contains(&0) || !(1..=MAX_TOPK).contains(&config.topk) {
            return refuse(format!("{} classes, strides {:?}, topk {}", config.nc, config.strides, config.topk));
        }
        let slots = self.anchors().checked_mul(self.batch).filter(|s| s.saturating_mul(branches) <= MAX_SLOTS);
        let Some(slots) = slots.filter(|_| self.targets.max_boxes <= MAX_SLOTS) else {
            return refuse(format!("{} anchors of {} images", self.anchors(), self.batch));
        };
        let gradients = self.levels[0].gradients.map(|g| g.0.format);
        for (i, level) in self.levels.iter().enumerate() {
            let first = &self.levels[i % levels].boxes;
            let fits = |v: &View, format, channels| {
                (v.n, v.h, v.w) == (self.batch, first.h, first.w)
                    && v.format == format
                    && (channels..=v.pitch).contains(&v.c)
                    && v.c.is_multiple_of(8)
                    && v.pitch.is_multiple_of(8)
                    && v.at.is_multiple_of(16)
            };
            let logits = fits(&level.boxes, Format::F32, BOX_CHANNELS) && fits(&level.classes, Format::F32, config.nc);
            let written = match (gradients, level.gradients) {
                (None, None) => true,
                (Some(format), Some((b, c))) => fits(&b, format, BOX_CHANNELS) && fits(&c, format, config.nc),
                _ => false,
            };
            if !logits || !written {
                return refuse(format!("branch {} level {}: {level:?}", i / levels, i % levels));
            }
        }
        Ok(Checked { args: self.args(slots), gradients, focal: config.fl_gamma != 0.0 })
    }

    /// The kernels' argument, of extents that were checked to be below 2^32.
    fn args(&self, slots: usize) -> Args {
        let (config, layout, targets) = (self.config, self.layout(), self.targets);
        let mut maps = [[RawMaps::default(); MAX_LEVELS]; MAX_BRANCHES];
        let mut level = [RawLevel::default(); MAX_LEVELS];
        let count = config.strides.len();
        let (mut first, mut tiles) = (0, 0);
        for (i, of) in self.levels.iter().enumerate() {
            let gradients = of.gradients;
            let (box_gradient, class_gradient) = (gradients.map(|g| g.0), gradients.map(|g| g.1));
            let place = |v: Option<View>| v.map_or((0, 0, 0), |v| (v.at, v.pitch as u32, v.c as u32));
            let (box_gradient, box_gradient_pitch, box_gradient_channels) = place(box_gradient);
            let (class_gradient, class_gradient_pitch, class_gradient_channels) = place(class_gradient);
            maps[i / count][i % count] = RawMaps {
                boxes: of.boxes.at,
                classes: of.classes.at,
                box_gradient,
                class_gradient,
                box_pitch: of.boxes.pitch as u32,
                class_pitch: of.classes.pitch as u32,
                box_gradient_pitch,
                class_gradient_pitch,
                box_gradient_channels,
                class_gradient_channels,
            };
            if i < count {
                let (h, w) = (of.boxes.h as u32, of.boxes.w as u32);
                level[i] = RawLevel { h, w, stride: config.strides[i] as u32, first, tiles, unused: 0 };
                first += h * w;
                tiles += (self.batch as u32 * h * w).div_ceil(TILE as u32);
            }
        }
        let mut branch_weight = [0.0; MAX_BRANCHES];
        branch_weight[..self.branches()].copy_from_slice(&config.branch_weights);
        Args {
            maps,
            level,
            branch_weight,
            box_gain: config.box_gain,
            cls_gain: config.cls_gain,
            dfl_gain: config.dfl_gain,
            offsets: targets.offsets,
            classes: targets.classes,
            boxes: targets.boxes,
            loss_scale: self.loss_scale.unwrap_or(0),
            values: self.values,
            corners: self.scratch + layout.corners,
            owner: self.scratch + layout.owner,
            score: self.scratch + layout.score,
            box_corners: self.scratch + layout.box_corners,
            box_image: self.scratch + layout.box_image,
            maxima: self.scratch + layout.maxima,
            score_sums: self.scratch + layout.score_sums,
            score_counts: self.scratch + layout.score_counts,
            term_sums: self.scratch + layout.term_sums,
            branches: self.branches() as u32,
            levels: count as u32,
            batch: self.batch as u32,
            slots: slots as u32,
            tiles,
            nc: config.nc as u32,
            max_boxes: targets.max_boxes as u32,
            topk: config.topk as u32,
            score_blocks: layout.score_blocks as u32,
            term_blocks: layout.term_blocks as u32,
            input_h: self.input_hw.0 as f32,
            input_w: self.input_hw.1 as f32,
            alpha: config.alpha as f32,
            beta: config.beta as f32,
            positive_weight: config.cls_pw as f32,
            gamma: config.fl_gamma as f32,
            smoothing: config.label_smoothing as f32,
            product: u32::from(config.alpha == 0.5 && config.beta == 6.0),
        }
    }
}

impl Args {
    /// Grid of a kernel whose blocks of 256 threads take `work` items each, at most `most` blocks a branch.
    pub(super) fn grid(&self, items: usize, work: usize, most: usize) -> [u32; 3] {
        [items.div_ceil(work).clamp(1, most) as u32, self.branches, 1]
    }

    pub(super) fn slots(&self) -> usize {
        self.slots as usize
    }

    pub(super) fn max_boxes(&self) -> usize {
        self.max_boxes as usize
    }

    pub(super) fn blocks(&self) -> (usize, usize) {
        (self.score_blocks as usize, self.term_blocks as usize)
    }
}
