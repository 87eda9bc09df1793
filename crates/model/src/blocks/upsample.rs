//! `Upsample`: nearest neighbour, by a whole factor.

use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use crate::yaml::Arg;
use graph::TensorId;

#[derive(Debug)]
struct Upsample {
    factor: usize,
}

/// `[None, factor, nearest]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(3)?;
    let input = row.input()?;
    if let Some(size) = row.arg(0) {
        return Err(row.error(format!("a fixed size ({}) is not supported: give None and a factor", size.show())));
    }
    let factor = match row.arg(1) {
        Some(Arg::Float(f)) if f.fract() == 0.0 && (1.0..=8.0).contains(f) => *f as usize,
        _ => row.number(1, "factor", None, 1..=8)?,
    };
    match row.arg(2) {
        None => {}
        Some(Arg::Text(mode)) if mode == "nearest" => {}
        Some(other) => return Err(row.error(format!("mode {} is not supported, only nearest", other.show()))),
    }
    if input.stride % factor != 0 {
        return Err(row.error(format!("enlarges stride {} by {factor}", input.stride)));
    }
    let output = Feature::new(input.channels, input.stride / factor);
    Ok(Read::Block(Box::new(Upsample { factor }), output))
}

impl Block for Upsample {
    fn arguments(&self) -> String {
        format!("[x{} nearest]", self.factor)
    }

    fn build(&self, cx: &mut BlockContext<'_>, _name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let from = cx.builder.shape(inputs[0]);
        Ok(cx.builder.resize(inputs[0], from.h * self.factor, from.w * self.factor))
    }
}
