//! Assignments that are given instead of made from predictions: to compare gradients of runs whose rounding differs, for
//! there an anchor may change its box.

use super::{LossError, Targets};
use crate::Real;
use crate::assigner::BACKGROUND;

/// What every anchor of a branch learns, (batch, anchors) each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FixedAssignment {
    /// Index of the box within its image, or [`BACKGROUND`].
    pub owner: Vec<u32>,
    /// Target score of the owner's class, in [0, 1]; not looked at for background.
    pub score: Vec<f32>,
}

impl FixedAssignment {
    /// Succeeds where there is one entry for each of `anchors` anchors in each image, and every owner is one of the
    /// image's boxes.
    pub(super) fn check(&self, branch: usize, anchors: usize, targets: &Targets<'_>) -> Result<(), LossError> {
        let (owners, scores) = (self.owner.len(), self.score.len());
        let needed = (targets.offsets.len() - 1) * anchors;
        let boxes_of = |image: usize| targets.offsets[image + 1] - targets.offsets[image];
        let known = |(at, &owner): (usize, &u32)| owner == BACKGROUND || owner < boxes_of(at / anchors);
        if owners != needed || scores != needed || !self.owner.iter().enumerate().all(known) {
            return Err(LossError::Assignment { branch, owners, scores, needed });
        }
        Ok(())
    }

    /// Writes the assignment as the assigner would.
    pub(super) fn copy_to<T: Real>(&self, owner: &mut [u32], score: &mut [T]) {
        owner.copy_from_slice(&self.owner);
        for ((to, &from), &owner) in score.iter_mut().zip(&self.score).zip(&self.owner) {
            *to = if owner == BACKGROUND { T::zero() } else { T::of(f64::from(from)) };
        }
    }
}
