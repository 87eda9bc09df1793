//! Box loss of one anchor: 1 - CIoU in grid cells and the distribution focal loss, with the gradient for the
//! 64 box logits.

use crate::Real;
use crate::boxes::{Corners, Overlap, ciou_with_gradient, overlap};
use crate::dfl;

/// The two unweighted terms of an anchor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxTerms<T> {
    /// 1 - CIoU.
    pub iou: T,
    /// Mean over the four sides of the two-bin cross entropy.
    pub dfl: T,
}

/// Loss terms of an anchor at `centre` (cells) that predicts `logits` for the box `target` (cells).
/// With `gradient`, writes iou_scale * d(iou)/d(logit) + dfl_scale * d(dfl)/d(logit) there.
pub fn box_terms<T: Real>(
    logits: &[T; dfl::BOX_CHANNELS],
    centre: (T, T),
    target: &Corners<T>,
    scales: (T, T),
    gradient: Option<&mut [T; dfl::BOX_CHANNELS]>,
) -> BoxTerms<T> {
    let logits = logits.as_chunks::<{ dfl::BINS }>().0;
    let sides = [dfl::side(&logits[0]), dfl::side(&logits[1]), dfl::side(&logits[2]), dfl::side(&logits[3])];
    let ltrb = [sides[0].distance, sides[1].distance, sides[2].distance, sides[3].distance];
    let predicted = dfl::corners_around(centre, &ltrb);
    let wanted = dfl::target_distances(centre, target);
    let mut sum = T::zero();
    for i in 0..4 {
        sum = sum + dfl::side_loss(&logits[i], &sides[i], wanted[i]);
    }
    let quarter = T::of(0.25);
    let Some(gradient) = gradient else {
        return BoxTerms { iou: T::one() - overlap(Overlap::Ciou, &predicted, target), dfl: sum * quarter };
    };
    let (ciou, slope) = ciou_with_gradient(&predicted, target);
    // Left and top distances move their corner down, and the loss falls as CIoU grows.
    let towards = [scales.0 * slope[0], scales.0 * slope[1], -scales.0 * slope[2], -scales.0 * slope[3]];
    gradient.fill(T::zero());
    for (i, gradient) in gradient.as_chunks_mut::<{ dfl::BINS }>().0.iter_mut().enumerate() {
        dfl::add_distance_gradient(&sides[i], towards[i], gradient);
        dfl::add_side_loss_gradient(&sides[i], wanted[i], scales.1 * quarter, gradient);
    }
    BoxTerms { iou: T::one() - ciou, dfl: sum * quarter }
}
