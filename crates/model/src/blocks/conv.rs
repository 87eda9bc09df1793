//! `Conv`: convolution, batch norm, activation; and the biased convolution that ends heads.

use super::{BN_EPS, Block, BlockContext, Feature, Mode, Read, RowContext};
use crate::error::Result;
use crate::yaml::MAX_CHANNELS;
use graph::ops::{Activation, ConvAttrs};
use graph::{BnParams, ParamGroup, ParamId, ParamShape, TensorId};

/// A declared convolution with what follows it.
pub(crate) struct ConvUnit {
    weight: ParamId,
    bias: Option<ParamId>,
    bn: Option<BnParams>,
    activation: Activation,
    attrs: ConvAttrs,
}

fn weight_shape(c_in: usize, c_out: usize, attrs: ConvAttrs) -> ParamShape {
    ParamShape::Conv { out: c_out, in_per_group: c_in / attrs.groups, kernel: attrs.kernel }
}

impl ConvUnit {
    /// `name.conv` and `name.bn`, then the model's activation; folded: `name.conv` with a bias.
    pub fn declare(cx: &mut BlockContext<'_>, name: &str, c_in: usize, c_out: usize, attrs: ConvAttrs) -> Result<Self> {
        let b = &mut *cx.builder;
        let vector = ParamShape::Vector { channels: c_out };
        let weight = b.param(&format!("{name}.conv.weight"), weight_shape(c_in, c_out, attrs), ParamGroup::Weight)?;
        let (bias, bn) = match cx.mode {
            Mode::Folded => (Some(b.param(&format!("{name}.conv.bias"), vector, ParamGroup::Bias)?), None),
            Mode::Training => {
                let mut param = |what: &str, group| b.param(&format!("{name}.bn.{what}"), vector, group);
                let bn = BnParams {
                    weight: param("weight", ParamGroup::Norm)?,
                    bias: param("bias", ParamGroup::Bias)?,
                    running_mean: param("running_mean", ParamGroup::Buffer)?,
                    running_var: param("running_var", ParamGroup::Buffer)?,
                };
                (None, Some(bn))
            }
        };
        Ok(Self { weight, bias, bn, activation: cx.activation, attrs })
    }

    /// `name.weight` and `name.bias`, in both modes, nothing after.
    pub fn declare_plain(
        cx: &mut BlockContext<'_>,
        name: &str,
        c_in: usize,
        c_out: usize,
        attrs: ConvAttrs,
    ) -> Result<Self> {
        let b = &mut *cx.builder;
        let weight = b.param(&format!("{name}.weight"), weight_shape(c_in, c_out, attrs), ParamGroup::Weight)?;
        let channels = ParamShape::Vector { channels: c_out };
        let bias = Some(b.param(&format!("{name}.bias"), channels, ParamGroup::Bias)?);
        Ok(Self { weight, bias, bn: None, activation: Activation::Identity, attrs })
    }

    /// The same without its activation.
    pub fn linear(self) -> Self {
        Self { activation: Activation::Identity, ..self }
    }

    pub fn forward(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = cx.builder.conv(x, self.weight, self.bias, self.attrs)?;
        Ok(self.after(cx, y))
    }

    /// [`Self::forward`] of a layer's last convolution.
    pub fn forward_end(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = cx.builder.conv(x, self.weight, self.bias, self.attrs)?;
        cx.end(y);
        Ok(self.after(cx, y))
    }

    /// [`Self::forward_end`] of a head's tower: logits keep full precision.
    pub fn forward_logits(&self, cx: &mut BlockContext<'_>, x: TensorId) -> Result<TensorId> {
        let y = cx.builder.conv_to_statistic(x, self.weight, self.bias, self.attrs)?;
        cx.end(y);
        Ok(y)
    }

    fn after(&self, cx: &mut BlockContext<'_>, y: TensorId) -> TensorId {
        let y = match self.bn {
            Some(bn) => cx.builder.batch_norm(y, bn, BN_EPS),
            None => y,
        };
        cx.builder.activation(y, self.activation)
    }
}

/// A 1x1 convolution's geometry.
pub(crate) fn pointwise() -> ConvAttrs {
    ConvAttrs::new(1, 1)
}

/// A 3x3 convolution's geometry.
pub(crate) fn square(stride: usize) -> ConvAttrs {
    ConvAttrs::new(3, stride)
}

#[derive(Debug)]
struct Conv {
    c_in: usize,
    c_out: usize,
    attrs: ConvAttrs,
}

/// `[c_out, kernel = 1, stride = 1, padding = kernel / 2, groups = 1]`.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(5)?;
    let input = row.input()?;
    let (c_in, c_out) = (input.channels, row.scaled_channels()?);
    let kernel = row.number(1, "kernel", Some(1), 1..=31)?;
    let stride = row.number(2, "stride", Some(1), 1..=8)?;
    if !stride.is_power_of_two() {
        return Err(row.error(format!("stride {stride} is no power of two")));
    }
    let pad = row.number(3, "padding", Some(kernel / 2), 0..=31)?;
    let groups = row.number(4, "groups", Some(1), 1..=MAX_CHANNELS)?;
    if c_in % groups != 0 || c_out % groups != 0 {
        return Err(row.error(format!("{c_in} and {c_out} channels do not divide into {groups} groups")));
    }
    let output = Feature::new(c_out, input.stride * stride);
    Ok(Read::Block(Box::new(Conv { c_in, c_out, attrs: ConvAttrs { kernel, stride, pad, groups } }), output))
}

impl Block for Conv {
    fn arguments(&self) -> String {
        let ConvAttrs { kernel, stride, pad, groups } = self.attrs;
        match (pad == kernel / 2, groups) {
            (true, 1) => format!("[{}, {}, {kernel}, {stride}]", self.c_in, self.c_out),
            _ => format!("[{}, {}, {kernel}, {stride}, {pad}, {groups}]", self.c_in, self.c_out),
        }
    }

    fn build(&self, cx: &mut BlockContext<'_>, name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        ConvUnit::declare(cx, name, self.c_in, self.c_out, self.attrs)?.forward_end(cx, inputs[0])
    }
}
