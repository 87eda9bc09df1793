//! Overlap measures between two boxes and the gradient of CIoU; conversions, clipping and mapping of
//! boxes back to the original picture.
//!
//! IoU, GIoU: Rezatofighi et al. 2019. DIoU, CIoU: Zheng et al. 2020.

use crate::Real;

/// Corners x0, y0, x1, y1.
pub type Corners<T> = [T; 4];

/// Guard of the divisions, as the reference trainer has it.
const EPS: f64 = 1e-7;

/// Which overlap [`overlap`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    Iou,
    Giou,
    Diou,
    Ciou,
}

/// Widths, heights (with eps), intersection and union of a pair, in the form the loss uses: eps 1e-7 is
/// added to the heights (not the widths) and once more to the union.
struct Pair<T> {
    w1: T,
    h1: T,
    w2: T,
    h2: T,
    inter_w: T,
    inter_h: T,
    inter: T,
    union: T,
}

impl<T: Real> Pair<T> {
    #[inline(always)]
    fn new(a: &Corners<T>, b: &Corners<T>) -> Self {
        let eps = T::of(EPS);
        let (w1, h1) = (a[2] - a[0], a[3] - a[1] + eps);
        let (w2, h2) = (b[2] - b[0], b[3] - b[1] + eps);
        let inter_w = a[2].min(b[2]) - a[0].max(b[0]);
        let inter_h = a[3].min(b[3]) - a[1].max(b[1]);
        let inter = inter_w.max(T::zero()) * inter_h.max(T::zero());
        let union = w1 * h1 + w2 * h2 - inter + eps;
        Self { w1, h1, w2, h2, inter_w, inter_h, inter, union }
    }
}

/// Width and height of the smallest box around both.
#[inline(always)]
fn hull<T: Real>(a: &Corners<T>, b: &Corners<T>) -> (T, T) {
    (a[2].max(b[2]) - a[0].min(b[0]), a[3].max(b[3]) - a[1].min(b[1]))
}

/// Twice the offsets between the centres, box b minus box a.
#[inline(always)]
fn centre_offset<T: Real>(a: &Corners<T>, b: &Corners<T>) -> (T, T) {
    (b[0] + b[2] - a[0] - a[2], b[1] + b[3] - a[1] - a[3])
}

/// Squared centre distance over squared hull diagonal.
#[inline(always)]
fn centre_penalty<T: Real>(a: &Corners<T>, b: &Corners<T>) -> T {
    let (cw, ch) = hull(a, b);
    let (dx, dy) = centre_offset(a, b);
    (dx * dx + dy * dy) / T::of(4.0) / (cw * cw + ch * ch + T::of(EPS))
}

/// v and alpha of CIoU.
#[inline(always)]
fn aspect_terms<T: Real>(pair: &Pair<T>, iou: T) -> (T, T, T) {
    let angle = (pair.w2 / pair.h2).atan() - (pair.w1 / pair.h1).atan();
    let v = T::of(4.0 / (std::f64::consts::PI * std::f64::consts::PI)) * (angle * angle);
    let alpha = v / (v - iou + T::of(1.0 + EPS));
    (v, alpha, angle)
}

/// Overlap of two boxes of any unit, in the form the loss and the assigner use (eps 1e-7 on heights,
/// union, diagonal and hull area). IoU lies in [0, 1], GIoU and DIoU in [-1, 1], CIoU in (-2, 1].
#[inline]
pub fn overlap<T: Real>(kind: Overlap, a: &Corners<T>, b: &Corners<T>) -> T {
    let pair = Pair::new(a, b);
    let iou = pair.inter / pair.union;
    match kind {
        Overlap::Iou => iou,
        Overlap::Giou => {
            let (cw, ch) = hull(a, b);
            let area = cw * ch + T::of(EPS);
            iou - (area - pair.union) / area
        }
        Overlap::Diou => iou - centre_penalty(a, b),
        Overlap::Ciou => {
            let (v, alpha, _) = aspect_terms(&pair, iou);
            iou - (centre_penalty(a, b) + v * alpha)
        }
    }
}

/// CIoU of two boxes, or `None` when it cannot exceed `floor` because the plain IoU does not (CIoU is
/// IoU minus two terms that are never negative). The short way skips two arc tangents.
#[inline(always)]
pub fn ciou_above<T: Real>(a: &Corners<T>, b: &Corners<T>, floor: T) -> Option<T> {
    let pair = Pair::new(a, b);
    let iou = pair.inter / pair.union;
    if iou <= floor {
        return None;
    }
    let (v, alpha, _) = aspect_terms(&pair, iou);
    Some(iou - (centre_penalty(a, b) + v * alpha))
}

/// CIoU and its gradient for the corners of `a`. Alpha is a constant (it carries no gradient); where two
/// edges coincide each takes half of the gradient of their minimum or maximum, and an intersection side of
/// exactly zero passes none.
pub fn ciou_with_gradient<T: Real>(a: &Corners<T>, b: &Corners<T>) -> (T, Corners<T>) {
    let zero = T::zero();
    let two = T::of(2.0);
    let pair = Pair::new(a, b);
    let iou = pair.inter / pair.union;
    let (v, alpha, angle) = aspect_terms(&pair, iou);
    let (cw, ch) = hull(a, b);
    let (dx, dy) = centre_offset(a, b);
    let diagonal = cw * cw + ch * ch + T::of(EPS);
    let distance = (dx * dx + dy * dy) / T::of(4.0);
    let value = iou - (distance / diagonal + v * alpha);

    // Sensitivities of the value to each intermediate.
    let d_inter = (pair.union + pair.inter) / (pair.union * pair.union);
    let d_area = -pair.inter / (pair.union * pair.union);
    let d_inter_w = if pair.inter_w > zero { d_inter * pair.inter_h.max(zero) } else { zero };
    let d_inter_h = if pair.inter_h > zero { d_inter * pair.inter_w.max(zero) } else { zero };
    let d_diagonal = distance / (diagonal * diagonal);
    let (d_cw, d_ch) = (d_diagonal * two * cw, d_diagonal * two * ch);
    let d_centre_x = dx / (two * diagonal);
    let d_centre_y = dy / (two * diagonal);
    let d_angle = alpha * T::of(8.0 / (std::f64::consts::PI * std::f64::consts::PI)) * angle;
    let radius = pair.w1 * pair.w1 + pair.h1 * pair.h1;
    let d_w1 = d_area * pair.h1 + d_angle * pair.h1 / radius;
    let d_h1 = d_area * pair.w1 - d_angle * pair.w1 / radius;

    let gradient = [
        -d_inter_w * share(a[0] > b[0], a[0] == b[0]) - d_cw * share(a[0] < b[0], a[0] == b[0]) + d_centre_x - d_w1,
        -d_inter_h * share(a[1] > b[1], a[1] == b[1]) - d_ch * share(a[1] < b[1], a[1] == b[1]) + d_centre_y - d_h1,
        d_inter_w * share(a[2] < b[2], a[2] == b[2]) + d_cw * share(a[2] > b[2], a[2] == b[2]) + d_centre_x + d_w1,
        d_inter_h * share(a[3] < b[3], a[3] == b[3]) + d_ch * share(a[3] > b[3], a[3] == b[3]) + d_centre_y + d_h1,
    ];
    (value, gradient)
}

/// Share of a minimum's or maximum's gradient: all of it for the chosen side, half when both are equal.
#[inline(always)]
fn share<T: Real>(chosen: bool, tie: bool) -> T {
    if chosen {
        T::one()
    } else if tie {
        T::of(0.5)
    } else {
        T::zero()
    }
}

/// IoU as matching uses it: eps 1e-7 in the union only.
#[inline]
pub fn matching_iou<T: Real>(a: &Corners<T>, b: &Corners<T>) -> T {
    let inter = intersection(a, b);
    let area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]);
    inter / (area - inter + T::of(EPS))
}

/// Intersection over the area of `b` (eps 1e-7 on that area).
#[inline]
pub fn intersection_over_area<T: Real>(a: &Corners<T>, b: &Corners<T>) -> T {
    intersection(a, b) / ((b[2] - b[0]) * (b[3] - b[1]) + T::of(EPS))
}

/// Area that two boxes share; 0 when they do not overlap.
#[inline]
pub fn intersection<T: Real>(a: &Corners<T>, b: &Corners<T>) -> T {
    let w = (a[2].min(b[2]) - a[0].max(b[0])).max(T::zero());
    let h = (a[3].min(b[3]) - a[1].max(b[1])).max(T::zero());
    w * h
}

/// Centre, width, height to corners.
#[inline]
pub fn xywh_to_corners<T: Real>(b: &[T; 4]) -> Corners<T> {
    let two = T::of(2.0);
    let (half_w, half_h) = (b[2] / two, b[3] / two);
    [b[0] - half_w, b[1] - half_h, b[0] + half_w, b[1] + half_h]
}

/// Corners to centre, width, height.
#[inline]
pub fn corners_to_xywh<T: Real>(b: &Corners<T>) -> [T; 4] {
    let two = T::of(2.0);
    [(b[0] + b[2]) / two, (b[1] + b[3]) / two, b[2] - b[0], b[3] - b[1]]
}

/// Clips corners to a picture of `hw` = (height, width) pixels. NaN becomes 0.
#[inline]
pub fn clip<T: Real>(b: &Corners<T>, hw: (usize, usize)) -> Corners<T> {
    let (h, w) = (T::of(hw.0 as f64), T::of(hw.1 as f64));
    let at = |v: T, high: T| v.max(T::zero()).min(high);
    [at(b[0], w), at(b[1], h), at(b[2], w), at(b[3], h)]
}

/// How a picture was placed in the network input: network = original * gain + pad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letterbox {
    pub gain: f64,
    /// Left padding in network pixels (half of the whole padding, may end in .5).
    pub pad_x: f64,
    /// Top padding in network pixels.
    pub pad_y: f64,
}

impl Letterbox {
    /// The placement that follows from the two sizes (height, width) alone.
    pub fn from_sizes(net_hw: (usize, usize), original_hw: (usize, usize)) -> Self {
        let (net_h, net_w) = (net_hw.0 as f64, net_hw.1 as f64);
        let (h, w) = (original_hw.0 as f64, original_hw.1 as f64);
        let gain = (net_h / h).min(net_w / w);
        Self { gain, pad_x: (net_w - w * gain) / 2.0, pad_y: (net_h - h * gain) / 2.0 }
    }

    /// Maps corners in network pixels back to the original picture and clips them to it.
    pub fn to_original<T: Real>(&self, b: &Corners<T>, original_hw: (usize, usize)) -> Corners<T> {
        let (gain, x, y) = (T::of(self.gain), T::of(self.pad_x), T::of(self.pad_y));
        clip(&[(b[0] - x) / gain, (b[1] - y) / gain, (b[2] - x) / gain, (b[3] - y) / gain], original_hw)
    }
}
