//! Non-maximum suppression on the CPU: `detect::nms` over views of the arena, images in parallel.

use super::ExternalIo;
use crate::Element;
use detect::Real;
use detect::external::Suppress;
use graph::ops::External;
use rayon::prelude::*;

pub(super) fn run<T: Element + Real>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    let spec: &Suppress = op.spec.as_any().downcast_ref().expect("registered under this name");
    let (&[predictions], &[rows, found]) = (&op.inputs[..], &op.outputs[..]) else {
        unreachable!("declared with these operands")
    };
    let (images, anchors, most) = (io.shape(predictions).n, io.shape(predictions).w, io.shape(rows).w);
    let (pitch, out_pitch) = (io.pitch(predictions).0, io.pitch(rows).0);
    let words = spec.words(anchors);
    let (_, scratch) = io.scratch(0, images * words);
    let values = io.elements(predictions).par_chunks(anchors * pitch);
    let (out, found) = (io.elements_mut(rows).par_chunks_mut(most * out_pitch), io.elements_mut(found).par_iter_mut());
    values.zip(scratch.par_chunks_mut(words)).zip(out.zip(found)).for_each(|((values, words), (out, found))| {
        let count = detect::nms::suppress_into(&spec.config, (values, pitch), spec.nc, words, (out, out_pitch))
            .expect("sizes come from the op's own declaration");
        *found = <T as Element>::of_f64(count as f64);
    });
}
