//! The detection loss on the CPU: `detect::detection_loss` over views of the arena.

use super::ExternalIo;
use crate::Element;
use detect::anchors::MAX_LEVELS;
use detect::external::{DetectionLoss, LOSS_VALUES};
use detect::loss::MAX_BRANCHES;
use detect::{Branch, BranchGradient, MapMut, MapRef, Real, Scratch, Targets, detection_loss};
use graph::ExternalSpec;
use graph::ops::External;
use std::array::from_fn;

pub(super) fn run<T: Element + Real>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    let spec: &DetectionLoss = op.spec.as_any().downcast_ref().expect("registered under this name");
    let (branches, levels) = (spec.branches, spec.levels);
    // The most operands a head can have; unused ones stay empty. Nothing here is allocated.
    let input = |branch: usize, level: usize, part: usize| 2 * (branch * levels + level) + part;
    let empty = MapRef { data: &[], pitch: 0, h: 0, w: 0 };
    let maps: [[[MapRef<'_, T>; MAX_LEVELS]; 2]; MAX_BRANCHES] = from_fn(|b| {
        from_fn(|part| {
            from_fn(|l| if b < branches && l < levels { io.map(op.inputs[input(b, l, part)]) } else { empty })
        })
    });
    let heads: [Branch<'_, T>; MAX_BRANCHES] =
        from_fn(|b| Branch { boxes: &maps[b][0][..levels], classes: &maps[b][1][..levels] });

    let [offsets, classes, boxes] = op.inputs[branches * levels * 2..] else { unreachable!("declared with three") };
    let offsets = io.raw::<u32>(offsets);
    let count = (offsets[offsets.len() - 1] as usize).min(spec.max_boxes);
    let targets = Targets {
        offsets,
        classes: &io.raw::<u32>(classes)[..count],
        boxes: &io.raw::<f32>(boxes).as_chunks::<4>().0[..count],
    };

    let mut gradients: [[[MapMut<'_, T>; MAX_LEVELS]; 2]; MAX_BRANCHES] = from_fn(|b| {
        from_fn(|part| {
            from_fn(|l| {
                let id = if b < branches && l < levels { op.gradients[input(b, l, part)] } else { None };
                match id {
                    Some(id) => {
                        let (pitch, channels_padded) = io.pitch(id);
                        let shape = io.memory.plan.shape(id);
                        MapMut { data: io.elements_mut(id), pitch, h: shape.h, w: shape.w, channels_padded }
                    }
                    None => MapMut { data: &mut [], pitch: 0, h: 0, w: 0, channels_padded: 0 },
                }
            })
        })
    });
    let wanted = op.gradients.iter().any(Option::is_some);
    let mut of_branch = gradients
        .iter_mut()
        .map(|[boxes, classes]| BranchGradient { boxes: &mut boxes[..levels], classes: &mut classes[..levels] });
    let mut of_branch: [BranchGradient<'_, '_, T>; MAX_BRANCHES] =
        from_fn(|_| of_branch.next().expect("one for each branch"));

    let shapes: [graph::Shape; 2 * MAX_LEVELS] =
        from_fn(|i| if i < 2 * levels { io.memory.plan.shape(op.inputs[i]) } else { graph::Shape::vector(0) });
    let sizes = spec.scratch(&shapes[..2 * levels]);
    let (floats, integers) = io.scratch(sizes.statistics, sizes.words);
    let batch = offsets.len() - 1;
    let result = detection_loss(
        &spec.config,
        batch,
        spec.input_hw,
        &heads[..branches],
        &targets,
        Scratch { floats, integers },
        wanted.then_some(&mut of_branch[..branches]),
    );
    let values = io.elements_mut(op.outputs[0]);
    let mut all = [f64::NAN; LOSS_VALUES];
    // Shapes are the graph's own; what can be wrong is the host's targets, and that shows as a loss that is not a number.
    if let Ok(loss) = result {
        all = [0.0; LOSS_VALUES];
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
    }
    values.iter_mut().zip(all).for_each(|(v, a)| *v = <T as Element>::of_f64(a));
}
