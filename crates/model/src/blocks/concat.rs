//! `Concat`: joins channels.

use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use crate::yaml::MAX_CHANNELS;
use graph::TensorId;

#[derive(Debug)]
struct Concat;

/// `[1]`, the channel dimension.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    row.number(0, "dimension", Some(1), 1..=1)?;
    let Some(first) = row.inputs.first() else {
        return Err(row.error("has no input"));
    };
    let mut channels = 0;
    for input in row.inputs {
        channels += row.plain(input)?.channels;
        if input.stride != first.stride {
            return Err(row.error(format!("joins strides {} and {}", first.stride, input.stride)));
        }
    }
    if channels > MAX_CHANNELS {
        return Err(row.error(format!("{channels} channels together, at most {MAX_CHANNELS}")));
    }
    Ok(Read::Block(Box::new(Concat), Feature::new(channels, first.stride)))
}

impl Block for Concat {
    fn arguments(&self) -> String {
        "[channels]".into()
    }

    fn build(&self, cx: &mut BlockContext<'_>, _name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        Ok(cx.builder.concat(inputs)?)
    }
}
