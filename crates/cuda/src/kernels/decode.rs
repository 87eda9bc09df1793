//! Evaluation decoding of head maps.

use super::compiler::Source;
use super::tiling::{expect, expect_views};
use super::{Function, Module, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::{Format, View};
use detect::anchors::MAX_LEVELS;
use detect::dfl::BOX_CHANNELS;

pub(super) const SOURCE: Source = channels_source!("decode.cu");

/// Anchors of a block.
const ANCHORS: usize = 64;
/// Images of one launch.
const MOST_IMAGES: usize = 65_535;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct LevelArgs {
    boxes: u64,
    classes: u64,
    boxes_pitch: u32,
    classes_pitch: u32,
    w: u32,
    cells: u32,
    first: u32,
    block: u32,
    stride: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    levels: [LevelArgs; MAX_LEVELS],
    out: u64,
    pitch: u32,
    anchors: u32,
    classes: u32,
    count: u32,
}

/// Maps of one level: float32 logits (n, h, w, 64) and (n, h, w, physical classes).
#[derive(Clone, Copy, Debug)]
pub struct DecodeLevel {
    pub boxes: View,
    pub classes: View,
    /// Of a cell, in network pixels.
    pub stride: usize,
}

/// The decoding.
#[derive(Debug)]
pub struct Decode(Function);

impl Decode {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Module::load(gpu, SOURCE)?.function("decode")?))
    }

    /// Writes (n, anchors, 4 + nc) float32 at `out` with `pitch` elements from row to row: centre x, centre y, width,
    /// height in network pixels, then scores, as `detect::decode`, then zeros up to the pitch.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(&self, levels: &[DecodeLevel], nc: usize, out: u64, pitch: usize) -> Result<()> {
        let fits = (1..=MAX_LEVELS).contains(&levels.len()) && pitch >= 4 + nc;
        expect("decode", fits, || format!("{} levels, {nc} classes, pitch {pitch}", levels.len()))?;
        let images = levels[0].boxes.n;
        expect("decode", images <= MOST_IMAGES, || format!("{images} images"))?;
        let mut rows = [LevelArgs::default(); MAX_LEVELS];
        let (mut anchors, mut blocks) = (0, 0);
        for (row, level) in rows.iter_mut().zip(levels) {
            let (boxes, classes) = (level.boxes, level.classes);
            expect_views("decode", &[boxes, classes])?;
            let same = [boxes.n, boxes.h, boxes.w] == [classes.n, classes.h, classes.w] && boxes.n == images;
            let fits = same && boxes.format == Format::F32 && boxes.c == BOX_CHANNELS && classes.c >= nc;
            expect("decode", fits, || format!("{level:?}, {nc} classes"))?;
            *row = LevelArgs {
                boxes: boxes.at,
                classes: classes.at,
                boxes_pitch: boxes.pitch as u32,
                classes_pitch: classes.pitch as u32,
                w: boxes.w as u32,
                cells: (boxes.h * boxes.w) as u32,
                first: anchors as u32,
                block: blocks as u32,
                stride: level.stride as f32,
                unused: 0,
            };
            anchors += boxes.h * boxes.w;
            blocks += (boxes.h * boxes.w).div_ceil(ANCHORS);
        }
        let args = Args {
            levels: rows,
            out,
            pitch: pitch as u32,
            anchors: anchors as u32,
            classes: nc as u32,
            count: levels.len() as u32,
        };
        let grid = [blocks as u32, images as u32, 1];
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.0.launch(grid, [256, 1, 1], 0, &args) }
    }
}
