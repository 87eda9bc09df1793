//! `SPPELAN`: three chained 5x5 maxima, joined with what they start from.

use super::conv::{ConvUnit, pointwise};
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use graph::TensorId;
use graph::ops::PoolAttrs;

#[derive(Debug)]
struct SppElan {
    c_in: usize,
    c_out: usize,
    c3: usize,
}

/// `[c_out, c3]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(2)?;
    let input = row.input()?;
    let block = SppElan { c_in: input.channels, c_out: row.scaled_channels()?, c3: row.hidden(1, "c3")? };
    let output = Feature::new(block.c_out, input.stride);
    Ok(Read::Block(Box::new(block), output))
}

impl Block for SppElan {
    fn arguments(&self) -> String {
        format!("[{}, {}, {}]", self.c_in, self.c_out, self.c3)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let cv1 = ConvUnit::declare(cx, &format!("{name}.cv1"), self.c_in, self.c3, pointwise())?;
        // The pools hold the names cv2 to cv4.
        let cv5 = ConvUnit::declare(cx, &format!("{name}.cv5"), 4 * self.c3, self.c_out, pointwise())?;
        let mut all = vec![cv1.forward(cx, inputs[0])?];
        for _ in 0..3 {
            let last = all[all.len() - 1];
            all.push(cx.builder.max_pool(last, PoolAttrs { kernel: 5, stride: 1, pad: 2 })?);
        }
        let all = cx.builder.concat(&all)?;
        cv5.forward_end(cx, all)
    }
}
