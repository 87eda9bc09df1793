//! `RepConvN`: a 3x3 and a 1x1 convolution, each with batch norm, summed; folded: one 3x3.

use super::conv::{ConvUnit, pointwise, square};
use super::{Block, BlockContext, Feature, Mode, Read, RowContext};
use crate::error::Result;
use graph::TensorId;
use graph::ops::{Activation, ConvAttrs};

/// A declared RepConvN.
pub(crate) enum RepConv {
    /// 3x3 and 1x1 branch, and the activation of their sum.
    Branches(ConvUnit, ConvUnit, Activation),
    Merged(ConvUnit),
}

impl RepConv {
    /// `name.conv1` (3x3) and `name.conv2` (1x1); folded: `name.conv`.
    pub fn declare(cx: &mut BlockContext<'_>, name: &str, c_in: usize, c_out: usize, stride: usize) -> Result<Self> {
        Ok(match cx.mode {
            Mode::Folded => Self::Merged(ConvUnit::declare(cx, name, c_in, c_out, square(stride))?),
            Mode::Training => {
                let point = ConvAttrs { stride, ..pointwise() };
                let conv1 = ConvUnit::declare(cx, &format!("{name}.conv1"), c_in, c_out, square(stride))?;
                let conv2 = ConvUnit::declare(cx, &format!("{name}.conv2"), c_in, c_out, point)?;
                Self::Branches(conv1.linear(), conv2.linear(), cx.activation)
            }
        })
    }

    pub fn forward(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        self.run(cx, x, ConvUnit::forward)
    }

    fn run(
        &self,
        cx: &mut BlockContext<'_>,
        x: TensorId,
        conv: fn(&ConvUnit, &mut BlockContext<'_>, TensorId) -> Result<TensorId>,
    ) -> Result<TensorId> {
        match self {
            Self::Merged(unit) => conv(unit, cx, x),
            Self::Branches(conv1, conv2, activation) => {
                let (a, b) = (conv(conv1, cx, x)?, conv(conv2, cx, x)?);
                let sum = cx.builder.add(&[a, b])?;
                Ok(cx.builder.activation(sum, *activation))
            }
        }
    }
}

#[derive(Debug)]
struct RepConvN {
    c_in: usize,
    c_out: usize,
    stride: usize,
}

/// `[c_out, kernel = 3, stride = 1]`; the kernel is always 3.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(3)?;
    let input = row.input()?;
    row.number(1, "kernel", Some(3), 3..=3)?;
    let stride = row.number(2, "stride", Some(1), 1..=2)?;
    let block = RepConvN { c_in: input.channels, c_out: row.scaled_channels()?, stride };
    let output = Feature::new(block.c_out, input.stride * stride);
    Ok(Read::Block(Box::new(block), output))
}

impl Block for RepConvN {
    fn arguments(&self) -> String {
        format!("[{}, {}, 3, {}]", self.c_in, self.c_out, self.stride)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        RepConv::declare(cx, name, self.c_in, self.c_out, self.stride)?.run(cx, inputs[0], ConvUnit::forward_end)
    }
}
