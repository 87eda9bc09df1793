//! `RepNCSPELAN4`: the stage of the larger models.

use super::conv::{ConvUnit, pointwise, square};
use super::repncsp::Csp;
use super::{Block, BlockContext, Feature, Read, RowContext};
use crate::error::Result;
use graph::TensorId;

#[derive(Debug)]
struct RepNCspElan4 {
    c_in: usize,
    c_out: usize,
    c3: usize,
    c4: usize,
    n: usize,
}

/// `[c_out, c3, c4, n = 1]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(4)?;
    let input = row.input()?;
    let (c_out, c3, c4) = (row.scaled_channels()?, row.halved(1, "c3")?, row.hidden(2, "c4")?);
    let block = RepNCspElan4 { c_in: input.channels, c_out, c3, c4, n: row.bottlenecks(3)? };
    Ok(Read::Block(Box::new(block), Feature::new(c_out, input.stride)))
}

impl Block for RepNCspElan4 {
    fn arguments(&self) -> String {
        format!("[{}, {}, {}, {}, {}]", self.c_in, self.c_out, self.c3, self.c4, self.n)
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let &Self { c_in, c_out, c3, c4, n } = self;
        let cv1 = ConvUnit::declare(cx, &format!("{name}.cv1"), c_in, c3, pointwise())?;
        let cv2 = Stage::declare(cx, &format!("{name}.cv2"), c3 / 2, c4, n)?;
        let cv3 = Stage::declare(cx, &format!("{name}.cv3"), c4, c4, n)?;
        let cv4 = ConvUnit::declare(cx, &format!("{name}.cv4"), c3 + 2 * c4, c_out, pointwise())?;
        let stem = cv1.forward(cx, inputs[0])?;
        let second_half = cx.builder.slice(stem, c3 / 2, c3 / 2)?;
        let y2 = cv2.forward(cx, second_half)?;
        let y3 = cv3.forward(cx, y2)?;
        // Both halves in order are the stem itself: nothing is copied.
        let all = cx.builder.concat(&[stem, y2, y3])?;
        cv4.forward_end(cx, all)
    }
}

/// RepNCSP, then a 3x3 convolution.
struct Stage {
    csp: Csp,
    conv: ConvUnit,
}

impl Stage {
    fn declare(cx: &mut BlockContext<'_>, name: &str, c_in: usize, c4: usize, n: usize) -> Result<Self> {
        let csp = Csp::declare(cx, &format!("{name}.0"), c_in, c4, n)?;
        let conv = ConvUnit::declare(cx, &format!("{name}.1"), c4, c4, square(1))?;
        Ok(Self { csp, conv })
    }

    fn forward(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = self.csp.forward(cx, x)?;
        self.conv.forward(cx, y)
    }
}
