//! Confidence filter and greedy non-maximum suppression of one image's predictions.

use crate::Real;
use crate::boxes::{Corners, intersection, xywh_to_corners};

/// Candidates that enter the suppression at most; the rest, of lower score, are dropped.
const MAX_CANDIDATES: usize = 30_000;
/// Shift in pixels per class that keeps boxes of different classes apart.
const CLASS_OFFSET: f32 = 7680.0;

/// Settings of [`suppress`].
#[derive(Clone, Debug, PartialEq)]
pub struct NmsConfig {
    /// Scores must exceed this. Default 0.25.
    pub conf_threshold: f32,
    /// A box is dropped when its IoU with a better one exceeds this. Default 0.45.
    pub iou_threshold: f64,
    /// One candidate for each class above the confidence threshold instead of the best class only; without
    /// effect for a single class. Default off.
    pub multi_label: bool,
    /// Boxes of different classes suppress each other too. Default off.
    pub agnostic: bool,
    /// Keep only these classes; `None` keeps all.
    pub classes: Option<Vec<u32>>,
    /// Most detections of an image. Default 300.
    pub max_det: usize,
}

impl Default for NmsConfig {
    fn default() -> Self {
        Self {
            conf_threshold: 0.25,
            iou_threshold: 0.45,
            multi_label: false,
            agnostic: false,
            classes: None,
            max_det: 300,
        }
    }
}

/// One detected object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Detection {
    /// Corners in the pixels of the predictions (network pixels until mapped back).
    pub corners: Corners<f32>,
    /// Score in [0, 1].
    pub score: f32,
    pub class: u32,
}

/// What is wrong with the arguments of [`suppress_into`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NmsError {
    #[error("scratch of {len} words, {needed} are needed")]
    Scratch { len: usize, needed: usize },
    #[error("output of {len} values with pitch {pitch} does not hold {rows} rows of {COLUMNS}")]
    Output { len: usize, pitch: usize, rows: usize },
}

/// Values of a detection as [`suppress_into`] writes it: corners x0, y0, x1, y1, score, class.
pub const COLUMNS: usize = 6;

/// The most detections that an image of so many rows can have, at least 1: the rows that [`suppress_into`] writes.
pub fn most_detections(config: &NmsConfig, rows: usize, nc: usize) -> usize {
    config.max_det.min(most_candidates(config, rows, nc)).max(1)
}

/// 32-bit words of scratch that [`suppress_into`] needs for an image of so many rows.
pub fn scratch_words(config: &NmsConfig, rows: usize, nc: usize) -> usize {
    KEY * most_candidates(config, rows, nc) + SHIFTED * most_detections(config, rows, nc)
}

/// Candidates that can enter the suppression of one image.
fn most_candidates(config: &NmsConfig, rows: usize, nc: usize) -> usize {
    let each = if config.multi_label { nc.max(1) } else { 1 };
    rows.saturating_mul(each).min(MAX_CANDIDATES)
}

/// Detections of one image, best first, from `rows` of `pitch` values whose first 4 + `nc` are box centre,
/// width, height (pixels) and class scores, as [`crate::decode::decode`] writes them. Rows shorter than 4 + nc
/// (an incomplete last one, or all when `pitch` is too small) are ignored.
///
/// Equal scores keep the order of their rows, then of their classes. There is no time limit: crowded images
/// take longer, they lose nothing. Boxes or scores that are not numbers never suppress another; a score that
/// is not a number is no detection.
pub fn suppress(config: &NmsConfig, rows: &[f32], pitch: usize, nc: usize) -> Vec<Detection> {
    let mut words = vec![0; scratch_words(config, row_count(rows, pitch), nc)];
    let mut kept = Vec::new();
    greedy(config, rows, pitch, nc, &mut words, |_, detection| kept.push(detection));
    kept
}

/// [`suppress`] without an allocation: writes [`most_detections`] rows of [`COLUMNS`] values, `out_pitch` apart, the
/// detections first and zeros after them, and returns how many detections there are. Values beyond the columns are left
/// alone. Predictions wider than float32 are rounded to it.
///
/// `words` holds [`scratch_words`] words; what is in them does not matter.
///
/// # Errors
/// [`NmsError`] when scratch or output is too small.
pub fn suppress_into<T: Real>(
    config: &NmsConfig,
    (rows, pitch): (&[T], usize),
    nc: usize,
    words: &mut [u32],
    (out, out_pitch): (&mut [T], usize),
) -> Result<usize, NmsError> {
    let count = row_count(rows, pitch);
    let (most, needed) = (most_detections(config, count, nc), scratch_words(config, count, nc));
    if words.len() < needed {
        return Err(NmsError::Scratch { len: words.len(), needed });
    }
    if out_pitch < COLUMNS || (most - 1).saturating_mul(out_pitch).saturating_add(COLUMNS) > out.len() {
        return Err(NmsError::Output { len: out.len(), pitch: out_pitch, rows: most });
    }
    let found = greedy(config, rows, pitch, nc, words, |at, Detection { corners: [x0, y0, x1, y1], score, class }| {
        let values = [x0, y0, x1, y1, score, class as f32];
        out[at * out_pitch..][..COLUMNS].copy_from_slice(&values.map(|v| T::of(f64::from(v))));
    });
    out.chunks_mut(out_pitch).take(most).skip(found).for_each(|row| row[..COLUMNS].fill(T::zero()));
    Ok(found)
}

/// Rows, an incomplete last one included.
fn row_count<T>(rows: &[T], pitch: usize) -> usize {
    rows.len().div_ceil(pitch.max(1))
}

/// Hands what is kept to `keep`, best first and numbered; returns how many there are.
fn greedy<T: Real>(
    config: &NmsConfig,
    rows: &[T],
    pitch: usize,
    nc: usize,
    words: &mut [u32],
    mut keep: impl FnMut(usize, Detection),
) -> usize {
    let (keys, kept) = words.split_at_mut(KEY * most_candidates(config, row_count(rows, pitch), nc));
    let (keys, kept) = (keys.as_chunks_mut().0, kept.as_chunks_mut::<SHIFTED>().0);
    let mut best = Best { keys, len: 0 };
    candidates(config, rows, pitch, nc, |score, row, class| best.offer(key(score, row, class)));
    let mut found = 0;
    for &[_, row, class] in best.sorted() {
        if found >= config.max_det {
            break;
        }
        let row = &rows[row as usize * pitch..];
        let xywh = std::array::from_fn(|i| narrow(row[i]));
        let detection = Detection { corners: xywh_to_corners(&xywh), score: narrow(row[4 + class as usize]), class };
        let shifted = Shifted::new(&detection, config.agnostic);
        // Comparing with the kept boxes only is what greedy suppression does, and they are few.
        let mut better = kept[..found].iter().map(Shifted::of_words);
        if !better.any(|better| better.iou(&shifted) as f64 > config.iou_threshold) {
            kept[found] = shifted.words();
            keep(found, detection);
            found += 1;
        }
    }
    found
}

fn narrow<T: Real>(value: T) -> f32 {
    value.wide() as f32
}

/// Calls `found` with score, row and class of each candidate above the confidence threshold, in the order of rows, then
/// classes.
fn candidates<T: Real>(
    config: &NmsConfig,
    rows: &[T],
    pitch: usize,
    nc: usize,
    mut found: impl FnMut(f32, usize, usize),
) {
    let wanted = |class: usize| config.classes.as_ref().is_none_or(|keep| keep.contains(&(class as u32)));
    let multi_label = config.multi_label && nc > 1;
    // Rows are numbered in 32 bits.
    for (at, row) in rows.chunks(pitch.max(1)).take(u32::MAX as usize).enumerate() {
        let Some(scores) = row.get(4..).and_then(|scores| scores.get(..nc)) else { continue };
        let scores = scores.iter().map(|&score| narrow(score)).enumerate();
        if multi_label {
            let above = scores.filter(|&(class, score)| score > config.conf_threshold && wanted(class));
            above.for_each(|(class, score)| found(score, at, class));
            continue;
        }
        let mut best: Option<(usize, f32)> = None;
        for (class, score) in scores {
            if score > best.map_or(config.conf_threshold, |b| b.1) {
                best = Some((class, score));
            }
        }
        if let Some((class, score)) = best.filter(|b| wanted(b.0)) {
            found(score, at, class);
        }
    }
}

/// Words of a candidate's key.
const KEY: usize = 3;

/// Falling scores, then rising rows and classes, as rising keys: no two candidates have the same.
fn key(score: f32, row: usize, class: usize) -> [u32; KEY] {
    let bits = score.to_bits();
    let rising = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    [!rising, row as u32, class as u32]
}

/// The best candidates so far, as many as there is room for.
struct Best<'a> {
    /// Once it is full, a heap whose first key is the worst.
    keys: &'a mut [[u32; KEY]],
    len: usize,
}

impl<'a> Best<'a> {
    fn offer(&mut self, key: [u32; KEY]) {
        if let Some(free) = self.keys.get_mut(self.len) {
            *free = key;
            self.len += 1;
            if self.len == self.keys.len() {
                (0..self.len / 2).rev().for_each(|at| self.sink(at));
            }
        } else if self.keys.first().is_some_and(|worst| key < *worst) {
            self.keys[0] = key;
            self.sink(0);
        }
    }

    /// Moves a key down to where no worse one is below it.
    fn sink(&mut self, mut at: usize) {
        loop {
            let below = 2 * at + 1..(2 * at + 3).min(self.keys.len());
            let Some(worse) = below.max_by_key(|&i| self.keys[i]).filter(|&i| self.keys[i] > self.keys[at]) else {
                return;
            };
            self.keys.swap(at, worse);
            at = worse;
        }
    }

    /// All of them, the best first.
    fn sorted(self) -> &'a [[u32; KEY]] {
        let keys = &mut self.keys[..self.len];
        keys.sort_unstable();
        keys
    }
}

/// A box moved away from the other classes. The shift rounds the coordinates in f32, and the IoU is taken of
/// these rounded coordinates, without eps, as torchvision's suppression does.
struct Shifted {
    corners: Corners<f32>,
    area: f32,
}

/// Words of a [`Shifted`] in scratch.
const SHIFTED: usize = 5;

impl Shifted {
    fn words(&self) -> [u32; SHIFTED] {
        let [x0, y0, x1, y1] = self.corners;
        [x0, y0, x1, y1, self.area].map(f32::to_bits)
    }

    #[inline(always)]
    fn of_words(words: &[u32; SHIFTED]) -> Self {
        let [x0, y0, x1, y1, area] = words.map(f32::from_bits);
        Self { corners: [x0, y0, x1, y1], area }
    }

    fn new(detection: &Detection, agnostic: bool) -> Self {
        let shift = if agnostic { 0.0 } else { detection.class as f32 * CLASS_OFFSET };
        let corners = detection.corners.map(|v| v + shift);
        Self { corners, area: (corners[2] - corners[0]) * (corners[3] - corners[1]) }
    }

    #[inline(always)]
    fn iou(&self, other: &Self) -> f32 {
        let inter = intersection(&self.corners, &other.corners);
        inter / (self.area + other.area - inter)
    }
}
