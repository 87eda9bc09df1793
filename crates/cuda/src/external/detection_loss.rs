//! The detection loss on the host: the reference body that the kernels are tested against.

use super::{HostBody, HostOperands, HostTensor};
use detect::external::DetectionLoss;
use detect::external::body::{self, MAX_MAPS, no_map};
use detect::{FixedAssignment, MapMut, MapRef, Scratch};
use graph::ops::External;
use std::array::from_fn;
use std::sync::Arc;

/// The body to register under [`DetectionLoss::NAME`] in place of the kernels.
pub fn host_loss() -> HostBody {
    Arc::new(|op, io| run(op, io, None))
}

/// [`host_loss`] with given targets instead of the assigner's: one entry a branch.
pub fn assigned_host_loss(fixed: Arc<[FixedAssignment]>) -> HostBody {
    Arc::new(move |op, io| run(op, io, Some(&fixed)))
}

fn run(op: &External, io: &mut HostOperands, fixed: Option<&[FixedAssignment]>) {
    let Some(spec) = op.spec.as_any().downcast_ref::<DetectionLoss>() else { return };
    let count = 2 * spec.branches * spec.levels;
    let map = |t: &HostTensor| (t.pitch, t.shape.h, t.shape.w);
    let maps: [MapRef<'_, f32>; MAX_MAPS] = from_fn(|i| {
        let Some(tensor) = io.inputs[..count].get(i) else { return no_map() };
        let (pitch, h, w) = map(tensor);
        MapRef { data: tensor.floats(), pitch, h, w }
    });
    let mut given = io.gradients.iter_mut();
    let mut gradients: [Option<MapMut<'_, f32>>; MAX_MAPS] = from_fn(|_| {
        let tensor = given.next()?.as_mut()?;
        let (pitch, h, w) = map(tensor);
        Some(MapMut { data: tensor.floats_mut(), pitch, h, w, channels_padded: pitch })
    });
    let [offsets, classes, boxes] = &io.inputs[count..] else { return };
    let targets = (offsets.words(), classes.words(), boxes.floats());
    let scratch = Scratch { floats: &mut io.scratch.0, integers: &mut io.scratch.1 };
    let all = body::loss(spec, &maps[..count], &mut gradients[..count], targets, fixed, scratch);
    io.outputs[0].floats_mut().iter_mut().zip(all).for_each(|(v, a)| *v = a as f32);
}

#[cfg(test)]
mod tests {
    use super::super::HostValues;
    use super::*;
    use crate::{CudaBackend, CudaOptions};
    use detect::assigner::BACKGROUND;
    use graph::{Level, Op, Precision, Recompute};
    use parity::{Packed, SHAPE, compile_step, load, recorded_assignment};

    /// Logits of zero in place of a card's: what the body gets must fit together, in every precision.
    #[test]
    fn the_recorded_assignment_fits_the_operands_of_a_cards_plan() {
        let case = "yolov9-cmicro-nc5";
        let fixed: Arc<[FixedAssignment]> = recorded_assignment(case).into();
        let targets = Packed::of(&testkit::arrays(&format!("train/{case}.safetensors"))["targets"].f32(), SHAPE[0]);
        for precision in [Precision::F32, Precision::BF16, Precision::F16] {
            let backend = CudaBackend::new(CudaOptions { precision, tf32: false, tune: false, capture: false });
            let step = compile_step(&load(case), SHAPE, Recompute::Level(Level::KeepAll), (&backend, precision), false);
            let externals = step.plan.graph().nodes().iter().filter_map(|node| match &node.op {
                Op::External(op) => Some(op),
                _ => None,
            });
            let [op] = externals.collect::<Vec<_>>()[..] else { panic!("the loss alone") };
            let mut io = HostOperands::of(&step.plan, op);
            let at = io.inputs.len() - 3;
            for (tensor, words) in io.inputs[at..].iter_mut().zip([&targets.offsets, &targets.classes]) {
                let HostValues::Words(values) = &mut tensor.values else { panic!("words") };
                values[..words.len()].copy_from_slice(words);
            }
            io.inputs[at + 2].floats_mut()[..targets.boxes.len()].copy_from_slice(&targets.boxes);
            assigned_host_loss(fixed.clone())(op, &mut io);
            let values = io.outputs[0].floats();
            assert!(values[..4].iter().all(|v| *v > 0.0 && v.is_finite()), "{precision:?}: {values:?}");
            for (own, fixed) in values[4..].chunks(5).zip(fixed.iter()) {
                let positive = fixed.owner.iter().filter(|&&o| o != BACKGROUND).count();
                assert_eq!(own[3], positive as f32, "{precision:?}: foreground");
            }
            // Every class logit of zero has a slope; boxes only where their level has a positive.
            let cells: Vec<usize> = io.inputs[..at].iter().map(|t| t.shape.h * t.shape.w).collect();
            let anchors = cells[0] + cells[2] + cells[4];
            for (map, gradient) in io.gradients[..at].iter().enumerate() {
                let (branch, level) = (map / 6, map % 6 / 2);
                let first = cells[..2 * level].iter().step_by(2).sum::<usize>();
                let own = |image: &[u32]| image[first..first + cells[map]].iter().any(|&o| o != BACKGROUND);
                let positive = fixed[branch].owner.chunks(anchors).any(own);
                let written = gradient.as_ref().is_some_and(|t| t.floats().iter().any(|&v| v != 0.0));
                assert_eq!(written, map % 2 == 1 || positive, "{precision:?}: gradient of map {map}");
            }
        }
    }
}
