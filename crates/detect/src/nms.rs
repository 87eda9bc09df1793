//! Confidence filter and greedy non-maximum suppression of one image's predictions.

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

/// Detections of one image, best first, from `rows` of `pitch` values whose first 4 + `nc` are box centre,
/// width, height (pixels) and class scores, as [`crate::decode::decode`] writes them. Rows shorter than 4 + nc
/// (an incomplete last one, or all when `pitch` is too small) are ignored.
///
/// Equal scores keep the order of their rows, then of their classes. There is no time limit: crowded images
/// take longer, they lose nothing. Boxes or scores that are not numbers never suppress another; a score that
/// is not a number is no detection.
pub fn suppress(config: &NmsConfig, rows: &[f32], pitch: usize, nc: usize) -> Vec<Detection> {
    let mut candidates = candidates(config, rows, pitch, nc);
    candidates.sort_by(|a, b| b.score.total_cmp(&a.score));
    candidates.truncate(MAX_CANDIDATES);
    let mut kept: Vec<Detection> = Vec::new();
    let mut kept_shifted: Vec<Shifted> = Vec::new();
    for candidate in candidates {
        if kept.len() >= config.max_det {
            break;
        }
        let shifted = Shifted::new(&candidate, config.agnostic);
        // Comparing with the kept boxes only is what greedy suppression does, and they are few.
        let suppressed = kept_shifted.iter().any(|better| better.iou(&shifted) as f64 > config.iou_threshold);
        if !suppressed {
            kept_shifted.push(shifted);
            kept.push(candidate);
        }
    }
    kept
}

/// Candidates above the confidence threshold in the order of rows, then classes.
fn candidates(config: &NmsConfig, rows: &[f32], pitch: usize, nc: usize) -> Vec<Detection> {
    let mut found = Vec::new();
    let wanted = |class: usize| config.classes.as_ref().is_none_or(|keep| keep.contains(&(class as u32)));
    let multi_label = config.multi_label && nc > 1;
    for row in rows.chunks(pitch.max(1)) {
        let Some((corners, scores)) = row.split_first_chunk::<4>() else { continue };
        let Some(scores) = scores.get(..nc) else { continue };
        let mut push = |class: usize, score: f32| {
            if wanted(class) {
                found.push(Detection { corners: xywh_to_corners(corners), score, class: class as u32 });
            }
        };
        if multi_label {
            let above = scores.iter().enumerate().filter(|(_, score)| **score > config.conf_threshold);
            above.for_each(|(class, &score)| push(class, score));
            continue;
        }
        let mut best: Option<(usize, f32)> = None;
        for (class, &score) in scores.iter().enumerate() {
            if score > best.map_or(config.conf_threshold, |b| b.1) {
                best = Some((class, score));
            }
        }
        if let Some((class, score)) = best {
            push(class, score);
        }
    }
    found
}

/// A box moved away from the other classes. The shift rounds the coordinates in f32, and the IoU is taken of
/// these rounded coordinates, without eps, as torchvision's suppression does.
struct Shifted {
    corners: Corners<f32>,
    area: f32,
}

impl Shifted {
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
