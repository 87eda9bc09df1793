//! Evaluation decoding on the CPU: `detect::decode` over views of the arena.

use super::ExternalIo;
use crate::Element;
use detect::anchors::MAX_LEVELS;
use detect::external::Decode;
use detect::{Branch, MapRef, Real};
use graph::ops::External;
use std::array::from_fn;

pub(super) fn run<T: Element + Real>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    let spec: &Decode = op.spec.as_any().downcast_ref().expect("registered under this name");
    let levels = spec.strides.len();
    let maps: [[MapRef<'_, T>; MAX_LEVELS]; 2] = from_fn(|part| {
        from_fn(|l| match op.inputs.get(2 * l + part) {
            Some(&id) => io.map(id),
            None => MapRef { data: &[], pitch: 0, h: 0, w: 0 },
        })
    });
    let branch = Branch { boxes: &maps[0][..levels], classes: &maps[1][..levels] };
    let output = op.outputs[0];
    let (batch, pitch) = (io.memory.plan.shape(output).n, io.pitch(output).0);
    let out = io.elements_mut(output);
    detect::decode::decode(&branch, &spec.strides, batch, spec.nc, out, pitch)
        .expect("shapes come from the op's own declaration");
}
