//! Small graphs for single ops.

use graph::ops::ConvAttrs;
use graph::{Activation, BnParams, GraphBuilder, GraphError, ParamGroup, ParamLayout, ParamShape, TensorId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use crate::Numbers;

type Result<T> = std::result::Result<T, GraphError>;

/// A graph under construction with numbered parameters.
///
/// [`Net::stem`] gives tensors that every number format holds exactly, so that the op that follows sees the same
/// values everywhere: sums of three sixteenths, from a picture of zeros and ones.
pub(crate) struct Net {
    pub b: GraphBuilder,
    /// Tensors that are compared beside those that the graph ends in.
    pub seen: Vec<TensorId>,
    count: usize,
}

impl Net {
    pub fn new() -> Self {
        Self { b: GraphBuilder::new(), seen: Vec::new(), count: 0 }
    }

    /// `c` channels, exact in every format. `x` is the picture.
    pub fn stem(&mut self, x: TensorId, c: usize) -> Result<TensorId> {
        self.named_conv("stem", x, c, ConvAttrs::new(1, 1), false)
    }

    /// A stem whose pixels lie `stride` apart.
    pub fn strided_stem(&mut self, x: TensorId, c: usize, stride: usize) -> Result<TensorId> {
        self.named_conv("stem", x, c, ConvAttrs::new(1, stride), false)
    }

    /// A convolution padded by half of its kernel.
    pub fn conv(&mut self, x: TensorId, c: usize, kernel: usize, stride: usize, bias: bool) -> Result<TensorId> {
        self.named_conv("conv", x, c, ConvAttrs::new(kernel, stride), bias)
    }

    pub fn grouped(&mut self, x: TensorId, c: usize, kernel: usize, groups: usize, bias: bool) -> Result<TensorId> {
        self.named_conv("conv", x, c, ConvAttrs { groups, ..ConvAttrs::new(kernel, 1) }, bias)
    }

    /// A biased 1x1 convolution to logits, which stay in float32.
    pub fn logits(&mut self, x: TensorId, c: usize) -> Result<TensorId> {
        let (w, bias) = self.conv_params("conv", x, c, ConvAttrs::new(1, 1), true)?;
        self.b.conv_to_statistic(x, w, bias, ConvAttrs::new(1, 1))
    }

    pub fn bn(&mut self, x: TensorId) -> Result<TensorId> {
        self.count += 1;
        let name = format!("bn{}", self.count);
        self.b.set_scope(&name);
        let vector = ParamShape::Vector { channels: self.b.shape(x).c };
        let mut param = |what: &str, group| self.b.param(&format!("{name}.{what}"), vector, group);
        let params = BnParams {
            weight: param("weight", ParamGroup::Norm)?,
            bias: param("bias", ParamGroup::Bias)?,
            running_mean: param("running_mean", ParamGroup::Buffer)?,
            running_var: param("running_var", ParamGroup::Buffer)?,
        };
        Ok(self.b.batch_norm(x, params, 1e-3))
    }

    /// A concatenation, which is compared, and a convolution that reads it: no other op takes channels in several ranges.
    pub fn read_concat(&mut self, parts: &[TensorId]) -> Result<TensorId> {
        let whole = self.b.concat(parts)?;
        self.seen.push(whole);
        self.conv(whole, 24, 1, 1, false)
    }

    /// A stem, batch norm and SiLU.
    pub fn block(&mut self, x: TensorId, c: usize) -> Result<TensorId> {
        let y = self.stem(x, c)?;
        let y = self.bn(y)?;
        Ok(self.b.activation(y, Activation::Silu))
    }

    fn named_conv(&mut self, kind: &str, x: TensorId, c: usize, attrs: ConvAttrs, bias: bool) -> Result<TensorId> {
        let (w, bias) = self.conv_params(kind, x, c, attrs, bias)?;
        self.b.conv(x, w, bias, attrs)
    }

    fn conv_params(
        &mut self,
        kind: &str,
        x: TensorId,
        out: usize,
        attrs: ConvAttrs,
        bias: bool,
    ) -> Result<(graph::ParamId, Option<graph::ParamId>)> {
        self.count += 1;
        let name = format!("{kind}{}", self.count);
        self.b.set_scope(&name);
        let in_per_group = attrs.in_per_group(self.b.shape(x).c);
        let shape = ParamShape::Conv { out, in_per_group, kernel: attrs.kernel };
        let w = self.b.param(&format!("{name}.weight"), shape, ParamGroup::Weight)?;
        let vector = ParamShape::Vector { channels: out };
        let bias = match bias {
            true => Some(self.b.param(&format!("{name}.bias"), vector, ParamGroup::Bias)?),
            false => None,
        };
        Ok((w, bias))
    }
}

/// Weights and running statistics of a net, flat: exact for stems, rounded to the format for other convolutions.
pub(crate) fn weights(layout: &ParamLayout, numbers: Numbers, rng: &mut ChaCha8Rng) -> (Vec<f32>, Vec<f32>) {
    let (mut weights, mut buffers) = (vec![0.0; layout.weight_elements()], vec![0.0; layout.buffer_elements()]);
    for slot in layout.slots() {
        let (name, shape) = (slot.param.name.as_str(), slot.param.shape);
        let fan_in = shape.elements() / shape.dims()[0];
        let mut unit = || rng.random_range(-1.0f32..1.0);
        let mut value = || match name {
            _ if name.ends_with("running_mean") => 0.1 * unit(),
            _ if name.ends_with("running_var") || name.starts_with("bn") && name.ends_with("weight") => {
                1.0 + 0.3 * unit()
            }
            _ if name.ends_with("bias") => 0.3 * unit(),
            _ if name.starts_with("stem") => (16.0 * unit()).round() / 16.0,
            _ => numbers.round((3.0 / fan_in as f32).sqrt() * unit()),
        };
        let values: Vec<f32> = (0..shape.elements()).map(|_| value()).collect();
        slot.scatter(&values, if slot.param.group == ParamGroup::Buffer { &mut buffers } else { &mut weights });
    }
    (weights, buffers)
}

/// Flat weights and running statistics of one layout in another of the same parameters: devices pad differently.
pub(crate) fn relaid(
    from: &ParamLayout,
    to: &ParamLayout,
    (weights, buffers): (&[f32], &[f32]),
) -> (Vec<f32>, Vec<f32>) {
    let (mut w, mut b) = (vec![0.0; to.weight_elements()], vec![0.0; to.buffer_elements()]);
    for (old, new) in from.slots().iter().zip(to.slots()) {
        match old.param.group {
            ParamGroup::Buffer => new.scatter(&old.gather(buffers), &mut b),
            _ => new.scatter(&old.gather(weights), &mut w),
        }
    }
    (w, b)
}
