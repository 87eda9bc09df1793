//! `ADown`: 2x2 mean at stride 1, then one half of the channels is convolved at stride 2, the other
//! max-pooled and mixed.

use super::aconv::MEAN;
use super::conv::{ConvUnit, pointwise, square};
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use graph::TensorId;
use graph::ops::PoolAttrs;

#[derive(Debug)]
struct ADown {
    c_in: usize,
    c_out: usize,
}

/// `[c_out]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    let input = row.input()?;
    let (c_in, c_out) = (input.channels, row.scaled_channels()?);
    if c_in % 2 != 0 || c_out % 2 != 0 {
        return Err(row.error(format!("{c_in} and {c_out} channels are cut in halves and must be even")));
    }
    let output = Feature::new(c_out, input.stride * 2);
    Ok(Read::Block(Box::new(ADown { c_in, c_out }), output))
}

impl Block for ADown {
    fn arguments(&self) -> String {
        format!("[{}, {}]", self.c_in, self.c_out)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let (half, out) = (self.c_in / 2, self.c_out / 2);
        let cv1 = ConvUnit::declare(cx, &format!("{name}.cv1"), half, out, square(2))?;
        let cv2 = ConvUnit::declare(cx, &format!("{name}.cv2"), half, out, pointwise())?;
        let mean = cx.builder.avg_pool(inputs[0], MEAN)?;
        let first = cx.builder.slice(mean, 0, half)?;
        let second = cx.builder.slice(mean, half, half)?;
        // Both convolutions end the layer: either is needed to form its output again.
        let first = cv1.forward_end(cx, first)?;
        let second = cx.builder.max_pool(second, PoolAttrs { kernel: 3, stride: 2, pad: 1 })?;
        let second = cv2.forward_end(cx, second)?;
        Ok(cx.builder.concat(&[first, second])?)
    }
}
