//! The loss op over maps: what the bodies of executors have in common.

use super::{DetectionLoss, LOSS_VALUES};
use crate::anchors::MAX_LEVELS;
use crate::loss::MAX_BRANCHES;
use crate::{
    Branch, BranchGradient, FixedAssignment, MapMut, MapRef, Real, Scratch, Targets, assigned_loss, detection_loss,
};
use std::array::from_fn;

/// The most head maps that the op can have: boxes and classes of each level of each branch.
pub const MAX_MAPS: usize = 2 * MAX_BRANCHES * MAX_LEVELS;

/// A map that is not there.
pub fn no_map<T>() -> MapRef<'static, T> {
    MapRef { data: &[], pitch: 0, h: 0, w: 0 }
}

/// Computes the values of the loss ([`LOSS_VALUES`]) and, where any is asked for, the gradients of the maps.
///
/// `maps` are the op's inputs up to the targets, `gradients` has an entry for each of them. The targets are its last
/// three inputs as the host wrote them; boxes beyond the last offset are not looked at. With `fixed`, one entry a
/// branch, nothing is assigned from predictions. Allocates nothing.
///
/// Shapes are the graph's own; what can be wrong is the host's targets and assignment, and that shows as values that are not numbers.
pub fn loss<'a, T: Real>(
    spec: &DetectionLoss,
    maps: &[MapRef<'a, T>],
    gradients: &mut [Option<MapMut<'a, T>>],
    (offsets, classes, boxes): (&[u32], &[u32], &[f32]),
    fixed: Option<&[FixedAssignment]>,
    scratch: Scratch<'_, T>,
) -> [f64; LOSS_VALUES] {
    let (branches, levels) = (spec.branches, spec.levels);
    let input = |branch: usize, level: usize, part: usize| {
        (branch < branches && level < levels).then_some(2 * (branch * levels + level) + part)
    };
    let of_branch: [[[MapRef<'_, T>; MAX_LEVELS]; 2]; MAX_BRANCHES] =
        from_fn(|b| from_fn(|part| from_fn(|l| input(b, l, part).map_or(no_map(), |i| maps[i]))));
    let heads: [Branch<'_, T>; MAX_BRANCHES] =
        from_fn(|b| Branch { boxes: &of_branch[b][0][..levels], classes: &of_branch[b][1][..levels] });

    let count = (offsets.last().map_or(0, |&n| n as usize)).min(spec.max_boxes).min(classes.len());
    let targets = Targets { offsets, classes: &classes[..count], boxes: &boxes.as_chunks::<4>().0[..count] };

    let wanted = gradients.iter().any(Option::is_some);
    let mut written: [[[MapMut<'_, T>; MAX_LEVELS]; 2]; MAX_BRANCHES] = from_fn(|b| {
        from_fn(|part| {
            from_fn(|l| {
                let given = input(b, l, part).and_then(|i| gradients.get_mut(i)?.take());
                given.unwrap_or(MapMut { data: &mut [], pitch: 0, h: 0, w: 0, channels_padded: 0 })
            })
        })
    });
    let mut written = written
        .iter_mut()
        .map(|[boxes, classes]| BranchGradient { boxes: &mut boxes[..levels], classes: &mut classes[..levels] });
    let mut written: [BranchGradient<'_, '_, T>; MAX_BRANCHES] =
        from_fn(|_| written.next().expect("one for each branch"));

    let batch = offsets.len().saturating_sub(1);
    let (config, size, heads) = (&spec.config, spec.input_hw, &heads[..branches]);
    let written = wanted.then_some(&mut written[..branches]);
    let result = match fixed {
        None => detection_loss(config, batch, size, heads, &targets, scratch, written),
        Some(fixed) => assigned_loss(config, batch, size, heads, (&targets, fixed), scratch, written),
    };
    let Ok(loss) = result else { return [f64::NAN; LOSS_VALUES] };
    let mut all = [0.0; LOSS_VALUES];
    all[..4].copy_from_slice(&[loss.total, loss.box_loss, loss.cls_loss, loss.dfl_loss]);
    for (b, branch) in loss.branches().iter().enumerate() {
        all[4 + 5 * b..9 + 5 * b].copy_from_slice(&[
            branch.box_loss,
            branch.cls_loss,
            branch.dfl_loss,
            branch.foreground as f64,
            branch.target_score_sum,
        ]);
    }
    all
}
