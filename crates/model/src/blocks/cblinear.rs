//! `CBLinear`: one biased 1x1 convolution whose output is a list of feature maps.

use super::conv::{ConvUnit, pointwise};
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use crate::yaml::MAX_CHANNELS;
use graph::TensorId;

#[derive(Debug)]
struct CbLinear {
    c_in: usize,
    widths: Vec<usize>,
}

/// `[[width of each list entry]]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    let input = row.input()?;
    let widths = row.list(0, "widths", 1..=MAX_CHANNELS)?;
    let channels = widths.iter().sum();
    if channels > MAX_CHANNELS {
        return Err(row.error(format!("{channels} channels together, at most {MAX_CHANNELS}")));
    }
    let output = Feature { channels, stride: input.stride, parts: Some(widths.clone()) };
    Ok(Read::Block(Box::new(CbLinear { c_in: input.channels, widths }), output))
}

impl Block for CbLinear {
    fn arguments(&self) -> String {
        format!("[{}, {:?}]", self.c_in, self.widths)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let c_out = self.widths.iter().sum();
        let conv = ConvUnit::declare_plain(cx, &format!("{name}.conv"), self.c_in, c_out, pointwise())?;
        conv.forward_end(cx, inputs[0])
    }
}
