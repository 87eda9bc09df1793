//! `AConv`: 2x2 mean at stride 1, then a 3x3 convolution at stride 2.

use super::conv::{ConvUnit, square};
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use graph::TensorId;
use graph::ops::PoolAttrs;

/// The mean that AConv and ADown start with; the picture loses one row and one column.
pub(super) const MEAN: PoolAttrs = PoolAttrs { kernel: 2, stride: 1, pad: 0 };

#[derive(Debug)]
struct AConv {
    c_in: usize,
    c_out: usize,
}

/// `[c_out]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    let input = row.input()?;
    let block = AConv { c_in: input.channels, c_out: row.scaled_channels()? };
    let output = Feature::new(block.c_out, input.stride * 2);
    Ok(Read::Block(Box::new(block), output))
}

impl Block for AConv {
    fn arguments(&self) -> String {
        format!("[{}, {}]", self.c_in, self.c_out)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let cv1 = ConvUnit::declare(cx, &format!("{name}.cv1"), self.c_in, self.c_out, square(2))?;
        let mean = cx.builder.avg_pool(inputs[0], MEAN)?;
        cv1.forward_end(cx, mean)
    }
}
