//! `RepNBottleneck` and `RepNCSP`, which chains it in one of two paths.

use super::conv::{ConvUnit, pointwise, square};
use super::repconv::RepConv;
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use graph::TensorId;

/// `x + cv2(cv1(x))`.
pub(crate) struct Bottleneck {
    cv1: RepConv,
    cv2: ConvUnit,
}

impl Bottleneck {
    pub fn declare(cx: &mut BlockContext<'_>, name: &str, channels: usize) -> Result<Self> {
        let cv1 = RepConv::declare(cx, &format!("{name}.cv1"), channels, channels, 1)?;
        let cv2 = ConvUnit::declare(cx, &format!("{name}.cv2"), channels, channels, square(1))?;
        Ok(Self { cv1, cv2 })
    }

    pub fn forward(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = self.cv1.forward(cx, x)?;
        let y = self.cv2.forward(cx, y)?;
        Ok(cx.builder.add(&[x, y])?)
    }

    fn forward_end(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = self.cv1.forward(cx, x)?;
        let y = self.cv2.forward_end(cx, y)?;
        Ok(cx.builder.add(&[x, y])?)
    }
}

/// `cv3(concat[m(cv1(x)), cv2(x)])`, hidden width half of the output's.
pub(crate) struct Csp {
    cv1: ConvUnit,
    cv2: ConvUnit,
    cv3: ConvUnit,
    m: Vec<Bottleneck>,
}

impl Csp {
    pub fn declare(cx: &mut BlockContext<'_>, name: &str, c_in: usize, c_out: usize, n: usize) -> Result<Self> {
        let hidden = c_out / 2;
        let cv1 = ConvUnit::declare(cx, &format!("{name}.cv1"), c_in, hidden, pointwise())?;
        let cv2 = ConvUnit::declare(cx, &format!("{name}.cv2"), c_in, hidden, pointwise())?;
        let cv3 = ConvUnit::declare(cx, &format!("{name}.cv3"), 2 * hidden, c_out, pointwise())?;
        let m = (0..n).map(|i| Bottleneck::declare(cx, &format!("{name}.m.{i}"), hidden)).collect::<Result<_>>()?;
        Ok(Self { cv1, cv2, cv3, m })
    }

    pub fn forward(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let joined = self.joined(cx, x)?;
        self.cv3.forward(cx, joined)
    }

    fn joined(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let mut deep = self.cv1.forward(cx, x)?;
        for bottleneck in &self.m {
            deep = bottleneck.forward(cx, deep)?;
        }
        let shallow = self.cv2.forward(cx, x)?;
        Ok(cx.builder.concat(&[deep, shallow])?)
    }
}

#[derive(Debug)]
struct RepNBottleneck {
    channels: usize,
}

/// `[c_out]`, equal to the input's channels.
pub(crate) fn read_bottleneck(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    let (input, channels) = (row.input()?, row.scaled_channels()?);
    if channels != input.channels {
        let c_in = input.channels;
        return Err(row.error(format!("adds its {c_in} input channels to {channels} output channels; they must agree")));
    }
    Ok(Read::Block(Box::new(RepNBottleneck { channels }), Feature::new(channels, input.stride)))
}

impl Block for RepNBottleneck {
    fn arguments(&self) -> String {
        format!("[{}, {}]", self.channels, self.channels)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        Bottleneck::declare(cx, name, self.channels)?.forward_end(cx, inputs[0])
    }
}

#[derive(Debug)]
struct RepNCsp {
    c_in: usize,
    c_out: usize,
    n: usize,
}

/// `[c_out, n = 1]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(2)?;
    let input = row.input()?;
    let block = RepNCsp { c_in: input.channels, c_out: row.scaled_channels()?, n: row.bottlenecks(1)? };
    if block.c_out < 2 {
        return Err(row.error("needs at least 2 output channels"));
    }
    let output = Feature::new(block.c_out, input.stride);
    Ok(Read::Block(Box::new(block), output))
}

impl Block for RepNCsp {
    fn arguments(&self) -> String {
        format!("[{}, {}, {}]", self.c_in, self.c_out, self.n)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let csp = Csp::declare(cx, name, self.c_in, self.c_out, self.n)?;
        let joined = csp.joined(cx, inputs[0])?;
        csp.cv3.forward_end(cx, joined)
    }
}
