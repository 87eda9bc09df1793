//! `Silence`: hands its input on; gives the picture a row number.

use super::{Block, BlockContext, Read, RowContext};
use crate::error::Result;
use graph::TensorId;

#[derive(Debug)]
struct Silence;

/// No arguments.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(0)?;
    let output = row.input()?.clone();
    Ok(Read::Block(Box::new(Silence), output))
}

impl Block for Silence {
    fn arguments(&self) -> String {
        "[]".into()
    }

    fn build(&self, _cx: &mut BlockContext<'_>, _name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        Ok(inputs[0])
    }
}
