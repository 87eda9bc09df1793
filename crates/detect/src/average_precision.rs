//! Precision, recall, F1 and average precision per class over a whole validation set, in f64.

use std::collections::BTreeMap;

use crate::matching::THRESHOLDS;

/// Points of the confidence axis of the curves, 0 to 1.
pub const CURVE_POINTS: usize = 1000;
/// Recall points the average precision is integrated over.
const RECALL_POINTS: usize = 101;
/// Width of the box filter that smooths the mean F1 curve, as a fraction of its points.
const F1_SMOOTHING: f64 = 0.1;
const EPS: f64 = 1e-16;

/// One detection of the set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Correct at each IoU threshold.
    pub correct: [bool; THRESHOLDS],
    pub score: f32,
    pub class: u32,
}

/// Curves of one class over the confidence axis (and precision over recall).
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    pub precision: Vec<f64>,
    pub recall: Vec<f64>,
    pub f1: Vec<f64>,
    /// Precision at IoU 0.5 over [`CURVE_POINTS`] recalls from 0 to 1.
    pub precision_over_recall: Vec<f64>,
}

/// Results of one class that occurs in the labels.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassMetrics {
    pub class: u32,
    /// Labelled objects.
    pub labels: usize,
    /// Counts, precision, recall and F1 at [`Metrics::confidence`]; zero for a class never predicted.
    pub true_positives: f64,
    pub false_positives: f64,
    pub precision: f64,
    pub recall: f64,
    pub f1: f64,
    /// Average precision at each IoU threshold.
    pub ap: [f64; THRESHOLDS],
    pub curves: Curves,
}

impl ClassMetrics {
    /// Average precision at IoU 0.5.
    pub fn ap50(&self) -> f64 {
        self.ap[0]
    }

    /// Average precision, mean over IoU 0.50 to 0.95.
    pub fn ap50_95(&self) -> f64 {
        self.ap.iter().sum::<f64>() / THRESHOLDS as f64
    }
}

/// Results of a validation set; means are over the classes that occur in the labels, 0 without any.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Ascending by class.
    pub classes: Vec<ClassMetrics>,
    /// Confidence in [0, 1] where the mean F1, smoothed, is largest.
    pub confidence: f64,
    pub precision: f64,
    pub recall: f64,
    pub map50: f64,
    pub map50_95: f64,
}

impl Metrics {
    /// What training keeps the best of: 0.1 mAP50 + 0.9 mAP50-95.
    pub fn fitness(&self) -> f64 {
        0.1 * self.map50 + 0.9 * self.map50_95
    }
}

/// Metrics per class from all detections and the classes of all labels. Equal scores keep their order.
pub fn ap_per_class(detections: &[Scored], label_classes: &[u32]) -> Metrics {
    let mut labels: BTreeMap<u32, usize> = BTreeMap::new();
    label_classes.iter().for_each(|&class| *labels.entry(class).or_default() += 1);
    let mut of_class: BTreeMap<u32, Vec<&Scored>> = BTreeMap::new();
    for detection in detections.iter().filter(|d| labels.contains_key(&d.class)) {
        of_class.entry(detection.class).or_default().push(detection);
    }
    let mut classes: Vec<ClassMetrics> = labels
        .into_iter()
        .map(|(class, count)| class_metrics(class, count, of_class.remove(&class).unwrap_or_default()))
        .collect();

    let mut mean_f1 = vec![0.0; CURVE_POINTS];
    for class in &classes {
        mean_f1.iter_mut().zip(&class.curves.f1).for_each(|(mean, f1)| *mean += f1);
    }
    let count = classes.len().max(1) as f64;
    mean_f1.iter_mut().for_each(|mean| *mean /= count);
    let best = first_maximum(&smooth(&mean_f1, F1_SMOOTHING));
    for class in &mut classes {
        class.precision = class.curves.precision[best];
        class.recall = class.curves.recall[best];
        class.f1 = class.curves.f1[best];
        class.true_positives = (class.recall * class.labels as f64).round_ties_even();
        let predicted = class.true_positives / (class.precision + EPS);
        class.false_positives = (predicted - class.true_positives).round_ties_even();
    }
    let mean = |value: &dyn Fn(&ClassMetrics) -> f64| classes.iter().map(value).sum::<f64>() / count;
    Metrics {
        confidence: axis(CURVE_POINTS)[best],
        precision: mean(&|c| c.precision),
        recall: mean(&|c| c.recall),
        map50: mean(&ClassMetrics::ap50),
        map50_95: mean(&ClassMetrics::ap50_95),
        classes,
    }
}

/// AP and curves of one class; the values at the best confidence are filled in later.
fn class_metrics(class: u32, labels: usize, mut detections: Vec<&Scored>) -> ClassMetrics {
    let zeros = || vec![0.0; CURVE_POINTS];
    let mut metrics = ClassMetrics {
        class,
        labels,
        true_positives: 0.0,
        false_positives: 0.0,
        precision: 0.0,
        recall: 0.0,
        f1: 0.0,
        ap: [0.0; THRESHOLDS],
        curves: Curves { precision: zeros(), recall: zeros(), f1: zeros(), precision_over_recall: zeros() },
    };
    if detections.is_empty() {
        return metrics;
    }
    detections.sort_by(|a, b| b.score.total_cmp(&a.score));
    let points = axis(CURVE_POINTS);
    for threshold in 0..THRESHOLDS {
        let mut hits = 0.0;
        let (mut recall, mut precision) = (Vec::new(), Vec::new());
        for (i, detection) in detections.iter().enumerate() {
            hits += detection.correct[threshold] as u8 as f64;
            recall.push(hits / (labels as f64 + EPS));
            precision.push(hits / (i + 1) as f64);
        }
        let (mrec, mpre) = envelope(&recall, &precision);
        metrics.ap[threshold] = area(&mrec, &mpre);
        if threshold == 0 {
            // The confidence axis falls, interpolation wants it to rise: both are negated.
            let falling: Vec<f64> = detections.iter().map(|d| -(d.score as f64)).collect();
            let curve = |values: &[f64], beyond: f64| -> Vec<f64> {
                let mut curve = interpolate(points.iter().rev().map(|p| -p), &falling, values, beyond);
                curve.reverse();
                curve
            };
            let curves = &mut metrics.curves;
            curves.recall = curve(&recall, 0.0);
            curves.precision = curve(&precision, 1.0);
            let f1 = |(p, r): (&f64, &f64)| 2.0 * p * r / (p + r + EPS);
            curves.f1 = curves.precision.iter().zip(&curves.recall).map(f1).collect();
            curves.precision_over_recall = interpolate(points.iter().copied(), &mrec, &mpre, mpre[0]);
        }
    }
    metrics
}

/// Area under the monotone envelope of precision over recall: 101 points, trapezoids. `recall` ascends.
pub fn average_precision(recall: &[f64], precision: &[f64]) -> f64 {
    let (mrec, mpre) = envelope(recall, precision);
    area(&mrec, &mpre)
}

/// Recall and precision between the ends (0, 1) and (1, 0), precision made non-increasing.
fn envelope(recall: &[f64], precision: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mrec: Vec<f64> = [0.0].iter().chain(recall).chain(&[1.0]).copied().collect();
    let mut mpre: Vec<f64> = [1.0].iter().chain(precision).chain(&[0.0]).copied().collect();
    for i in (1..mpre.len()).rev() {
        mpre[i - 1] = mpre[i - 1].max(mpre[i]);
    }
    (mrec, mpre)
}

fn area(mrec: &[f64], mpre: &[f64]) -> f64 {
    let x = axis(RECALL_POINTS);
    let y = interpolate(x.iter().copied(), mrec, mpre, mpre[0]);
    x.windows(2).zip(y.windows(2)).map(|(x, y)| (x[1] - x[0]) * (y[0] + y[1]) / 2.0).sum()
}

/// `count` equally spaced points from 0 to 1.
fn axis(count: usize) -> Vec<f64> {
    let step = 1.0 / (count - 1) as f64;
    (0..count).map(|i| if i + 1 == count { 1.0 } else { i as f64 * step }).collect()
}

/// Piecewise linear interpolation at ascending `points` over ascending `xs` (not empty): `left` before the
/// first, the last value beyond the last; of equal xs the last counts. One walk over both.
fn interpolate(points: impl IntoIterator<Item = f64>, xs: &[f64], ys: &[f64], left: f64) -> Vec<f64> {
    let mut after = 0;
    let mut at = |x: f64| {
        while after < xs.len() && xs[after] <= x {
            after += 1;
        }
        if after == 0 {
            return left;
        }
        let i = after - 1;
        if after == xs.len() || xs[i] == x {
            return ys[i];
        }
        (ys[after] - ys[i]) / (xs[after] - xs[i]) * (x - xs[i]) + ys[i]
    };
    points.into_iter().map(&mut at).collect()
}

/// Box filter of about `fraction` of the points wide, ends repeated.
pub fn smooth(values: &[f64], fraction: f64) -> Vec<f64> {
    let n = values.len();
    if n == 0 {
        return Vec::new();
    }
    let width = (n as f64 * fraction * 2.0).round_ties_even() as usize / 2 + 1;
    let half = width / 2;
    let at = |i: usize| values[i.saturating_sub(half).min(n - 1)];
    let weight = 1.0 / width as f64;
    // Each sum runs over its own window in order: a plateau gives equal values, so its first point wins.
    (0..n).map(|i| (0..width).map(|k| at(i + k) * weight).sum()).collect()
}

/// Index of the largest value, the first of equals; 0 when there is none.
fn first_maximum(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}
