//! The detection loss on the CPU: `detect::detection_loss` over views of the arena.

use super::ExternalIo;
use crate::Element;
use detect::anchors::MAX_LEVELS;
use detect::external::DetectionLoss;
use detect::external::body::{self, MAX_MAPS, no_map};
use detect::{FixedAssignment, MapMut, MapRef, Real, Scratch};
use graph::ExternalSpec;
use graph::ops::External;
use std::array::from_fn;
use std::sync::Arc;

pub(super) fn run<T: Element + Real>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    compute(op, io, None);
}

/// The body to register under [`DetectionLoss::NAME`] for a loss with given targets: one entry a branch.
pub fn assigned_loss<T: Element + Real>(
    fixed: Arc<[FixedAssignment]>,
) -> impl Fn(&External, &mut ExternalIo<'_, '_, T>) + Send + Sync + 'static {
    move |op, io| compute(op, io, Some(&fixed))
}

fn compute<T: Element + Real>(op: &External, io: &mut ExternalIo<'_, '_, T>, fixed: Option<&[FixedAssignment]>) {
    let spec: &DetectionLoss = op.spec.as_any().downcast_ref().expect("registered under this name");
    let count = 2 * spec.branches * spec.levels;
    // Unused maps stay empty. Nothing here is allocated.
    let maps: [MapRef<'_, T>; MAX_MAPS] = from_fn(|i| if i < count { io.map(op.inputs[i]) } else { no_map() });
    let mut gradients: [Option<MapMut<'_, T>>; MAX_MAPS] = from_fn(|i| {
        let id = op.gradients.get(i).copied().flatten()?;
        let ((pitch, channels_padded), shape) = (io.pitch(id), io.shape(id));
        Some(MapMut { data: io.elements_mut(id), pitch, h: shape.h, w: shape.w, channels_padded })
    });
    let [offsets, classes, boxes] = op.inputs[count..] else { unreachable!("declared with three") };
    let targets = (io.raw::<u32>(offsets), io.raw::<u32>(classes), io.raw::<f32>(boxes));
    let levels = 2 * spec.levels;
    let shapes: [graph::Shape; 2 * MAX_LEVELS] =
        from_fn(|i| if i < levels { io.shape(op.inputs[i]) } else { graph::Shape::vector(0) });
    let sizes = spec.scratch(&shapes[..levels]);
    let (floats, integers) = io.scratch(sizes.statistics, sizes.words);
    let scratch = Scratch { floats, integers };
    let all = body::loss(spec, &maps[..count], &mut gradients[..count], targets, fixed, scratch);
    let values = io.elements_mut(op.outputs[0]);
    values.iter_mut().zip(all).for_each(|(v, a)| *v = <T as Element>::of_f64(a));
}
