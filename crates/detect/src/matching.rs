//! Which detections of an image are correct at each IoU threshold, and the confusion matrix.

use crate::boxes::{Corners, matching_iou};
use crate::nms::Detection;

/// Number of IoU thresholds, 0.50 to 0.95 in steps of 0.05.
pub const THRESHOLDS: usize = 10;

/// The IoU thresholds 0.50, 0.55, … 0.95.
pub fn iou_thresholds() -> [f32; THRESHOLDS] {
    std::array::from_fn(|i| (0.5 + 0.05 * i as f64) as f32)
}

/// One labelled object: corners in the pixels of the detections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Label {
    pub class: u32,
    pub corners: Corners<f32>,
}

/// For each detection and threshold, whether it is correct. Detections must come best first.
///
/// A detection is matched with the label of its class it overlaps most (the earlier of equals), and only with
/// that one; of several detections of a label the first whose IoU reaches the threshold counts.
pub fn match_detections(detections: &[Detection], labels: &[Label]) -> Vec<[bool; THRESHOLDS]> {
    let mut correct = vec![[false; THRESHOLDS]; detections.len()];
    let mut taken = vec![[false; THRESHOLDS]; labels.len()];
    let thresholds = iou_thresholds();
    for (detection, correct) in detections.iter().zip(&mut correct) {
        let mut best: Option<(f32, usize)> = None;
        for (index, label) in labels.iter().enumerate().filter(|(_, label)| label.class == detection.class) {
            let iou = matching_iou(&label.corners, &detection.corners);
            if iou > best.map_or(0.0, |b| b.0) {
                best = Some((iou, index));
            }
        }
        let Some((iou, index)) = best else { continue };
        for (i, &threshold) in thresholds.iter().enumerate() {
            if iou >= threshold && !taken[index][i] {
                taken[index][i] = true;
                correct[i] = true;
            }
        }
    }
    correct
}

/// Counts of predicted class against true class over many images. The last row and column are background:
/// a missed object counts in the last row, a detection of nothing in the last column.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfusionMatrix {
    nc: usize,
    counts: Vec<u64>,
    conf_threshold: f32,
    iou_threshold: f32,
}

impl ConfusionMatrix {
    /// An empty matrix of (nc + 1) x (nc + 1) with the usual thresholds: score above 0.25, IoU above 0.45.
    pub fn new(nc: usize) -> Self {
        Self { nc, counts: vec![0; (nc + 1) * (nc + 1)], conf_threshold: 0.25, iou_threshold: 0.45 }
    }

    /// Number of classes, without background.
    pub fn classes(&self) -> usize {
        self.nc
    }

    /// Count of a cell; class `nc` is background, and what lies beyond it is 0.
    pub fn count(&self, predicted: usize, actual: usize) -> u64 {
        if predicted.max(actual) > self.nc { 0 } else { self.counts[predicted * (self.nc + 1) + actual] }
    }

    /// All counts, row-major: rows predicted, columns true.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Adds one image. Pairs of any classes are matched greedily by falling IoU, each detection and label at
    /// most once after each detection has settled on its best label. Classes of `nc` and above are ignored.
    ///
    /// Unmatched detections always count as background, also in an image where nothing matches (the
    /// reference leaves those out).
    pub fn add(&mut self, detections: &[Detection], labels: &[Label]) {
        let known = |class: u32| (class as usize) < self.nc;
        let mut pairs: Vec<(f32, usize, usize)> = Vec::new();
        for (d, detection) in detections.iter().enumerate() {
            let ious =
                labels.iter().enumerate().map(|(l, label)| (matching_iou(&label.corners, &detection.corners), l));
            let above = ious.filter(|pair| pair.0 > self.iou_threshold);
            let best = above.reduce(|best, pair| if pair.0 > best.0 { pair } else { best });
            if let (Some((iou, l)), true) = (best, detection.score > self.conf_threshold) {
                pairs.push((iou, d, l));
            }
        }
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut of_label = vec![None; labels.len()];
        let mut used = vec![false; detections.len()];
        for (_, d, l) in pairs {
            if of_label[l].is_none() {
                of_label[l] = Some(d);
                used[d] = true;
            }
        }
        let width = self.nc + 1;
        for (label, detection) in labels.iter().zip(&of_label).filter(|(label, _)| known(label.class)) {
            let predicted = detection.map_or(self.nc, |d: usize| detections[d].class as usize);
            if predicted <= self.nc {
                self.counts[predicted * width + label.class as usize] += 1;
            }
        }
        for (detection, used) in detections.iter().zip(used) {
            if !used && detection.score > self.conf_threshold && known(detection.class) {
                self.counts[detection.class as usize * width + self.nc] += 1;
            }
        }
    }
}
