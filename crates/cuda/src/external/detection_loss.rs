//! The detection loss on the host: the reference body that the kernels are tested against.

use super::{HostBody, HostOperands, HostTensor};
use detect::external::DetectionLoss;
use detect::external::body::{self, MAX_MAPS, no_map};
use detect::{MapMut, MapRef, Scratch};
use graph::ops::External;
use std::array::from_fn;
use std::sync::Arc;

/// The body to register under [`DetectionLoss::NAME`] in place of the kernels.
pub fn host_loss() -> HostBody {
    Arc::new(run)
}

fn run(op: &External, io: &mut HostOperands) {
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
    let all = body::loss(spec, &maps[..count], &mut gradients[..count], targets, scratch);
    io.outputs[0].floats_mut().iter_mut().zip(all).for_each(|(v, a)| *v = a as f32);
}
