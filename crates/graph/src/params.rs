//! Parameters: names and shapes as in weight files, and their place in flat buffers.

use crate::graph::{Graph, TensorId};
use crate::{CHANNEL_ALIGN, ChannelMap, Kind, Op};

/// A parameter or buffer of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub(crate) u32);

impl ParamId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Optimiser group, in the reference's order, or a buffer that no optimiser touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamGroup {
    /// Biases of convolutions and norms: no weight decay, own warm-up rate.
    Bias,
    /// Convolution weights: weight decay.
    Weight,
    /// Norm weights: no weight decay.
    Norm,
    /// Running statistics.
    Buffer,
}

impl ParamGroup {
    /// 0, 1, 2 as in the reference's `x/lr0..2`; `None` for buffers.
    pub fn index(self) -> Option<usize> {
        match self {
            ParamGroup::Bias => Some(0),
            ParamGroup::Weight => Some(1),
            ParamGroup::Norm => Some(2),
            ParamGroup::Buffer => None,
        }
    }
}

/// Logical shape of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamShape {
    /// Convolution weight; files hold it as (out, in / groups, kernel, kernel).
    Conv { out: usize, in_per_group: usize, kernel: usize },
    /// One value a channel.
    Vector { channels: usize },
}

impl ParamShape {
    pub fn elements(&self) -> usize {
        match *self {
            ParamShape::Conv { out, in_per_group, kernel } => out * in_per_group * kernel * kernel,
            ParamShape::Vector { channels } => channels,
        }
    }

    /// Extents as weight files store them.
    pub fn dims(&self) -> Vec<usize> {
        match *self {
            ParamShape::Conv { out, in_per_group, kernel } => vec![out, in_per_group, kernel, kernel],
            ParamShape::Vector { channels } => vec![channels],
        }
    }
}

/// A parameter as declared by the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub name: String,
    pub shape: ParamShape,
    pub group: ParamGroup,
    /// False for frozen parameters: they get no gradient and no update.
    pub trained: bool,
}

/// The four parameters of a batch norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BnParams {
    pub weight: ParamId,
    pub bias: ParamId,
    pub running_mean: ParamId,
    pub running_var: ParamId,
}

/// Where one parameter lies in its flat buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSlot {
    pub param: Param,
    /// First element. Trained and frozen parameters share one numbering, buffers have another.
    pub offset: usize,
    /// Elements taken, padding included.
    pub len: usize,
    out: ChannelMap,
    /// Input channels of a convolution weight; grouped ones are dense.
    input: ChannelMap,
}

/// The flat layout of all parameters of a graph: physical channels, (out, kernel, kernel, in), zero in
/// the padding, each parameter aligned. Master weights, gradients, optimiser state and averages share it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ParamLayout {
    slots: Vec<ParamSlot>,
    weights: usize,
    buffers: usize,
}

impl ParamLayout {
    /// Derives the layout from a graph whose channel maps are known.
    pub(crate) fn of(graph: &Graph) -> Self {
        let mut maps: Vec<Option<(ChannelMap, ChannelMap)>> = vec![None; graph.params.len()];
        let mut set = |id: ParamId, out: &ChannelMap, input: ChannelMap| {
            maps[id.index()].get_or_insert_with(|| (out.clone(), input));
        };
        let map_of = |id: TensorId| &graph.tensor(id).map;
        for node in &graph.nodes {
            match &node.op {
                Op::Conv2d(op) => {
                    let out = map_of(op.y);
                    let x = graph.tensor(op.x);
                    let input = match (op.attrs.groups, x.kind) {
                        // Weights are padded as over the normalised picture, whoever normalises it.
                        (1, Kind::Raw(_)) => ChannelMap::dense(x.shape.c),
                        (1, _) => x.map.clone(),
                        _ => ChannelMap::packed(op.attrs.in_per_group(x.shape.c)),
                    };
                    set(op.w, out, input);
                    if let Some(bias) = op.bias {
                        set(bias, out, ChannelMap::packed(1));
                    }
                }
                Op::BnApply(op) => {
                    for branch in &op.branches {
                        let p = branch.params;
                        for id in [p.weight, p.bias, p.running_mean, p.running_var] {
                            set(id, map_of(branch.x), ChannelMap::packed(1));
                        }
                    }
                }
                _ => {}
            }
        }
        let mut layout = Self::default();
        for (param, maps) in graph.params.iter().zip(maps) {
            let (out, input) = maps.unwrap_or_else(|| match param.shape {
                ParamShape::Conv { out, in_per_group, .. } => (ChannelMap::dense(out), ChannelMap::dense(in_per_group)),
                ParamShape::Vector { channels } => (ChannelMap::dense(channels), ChannelMap::packed(1)),
            });
            let len = match param.shape {
                ParamShape::Conv { kernel, .. } => out.physical() * kernel * kernel * input.physical(),
                ParamShape::Vector { .. } => out.physical(),
            };
            let end = if param.group == ParamGroup::Buffer { &mut layout.buffers } else { &mut layout.weights };
            layout.slots.push(ParamSlot { param: param.clone(), offset: *end, len, out, input });
            *end += len.next_multiple_of(2 * CHANNEL_ALIGN);
        }
        layout
    }

    pub fn slots(&self) -> &[ParamSlot] {
        &self.slots
    }

    pub fn slot(&self, id: ParamId) -> &ParamSlot {
        &self.slots[id.index()]
    }

    /// The slot of a name, if any.
    pub fn find(&self, name: &str) -> Option<&ParamSlot> {
        self.slots.iter().find(|s| s.param.name == name)
    }

    /// Elements of a flat buffer over all weights, biases and norms.
    pub fn weight_elements(&self) -> usize {
        self.weights
    }

    /// Elements of a flat buffer over all running statistics.
    pub fn buffer_elements(&self) -> usize {
        self.buffers
    }
}

impl ParamSlot {
    /// Elements of the flat buffer, padding included.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }

    /// Calls `f(logical index in file order, physical index in the flat buffer)` for every element.
    pub fn for_each(&self, mut f: impl FnMut(usize, usize)) {
        match self.param.shape {
            ParamShape::Vector { channels } => {
                for c in 0..channels {
                    f(c, self.offset + self.out.index(c));
                }
            }
            ParamShape::Conv { out, in_per_group, kernel } => {
                let taps = kernel * kernel;
                let inputs: Vec<usize> = (0..in_per_group).map(|i| self.input.index(i)).collect();
                let pitch = self.input.physical();
                for o in 0..out {
                    let row = self.offset + self.out.index(o) * taps * pitch;
                    for (i, input) in inputs.iter().enumerate() {
                        for tap in 0..taps {
                            f((o * in_per_group + i) * taps + tap, row + tap * pitch + input);
                        }
                    }
                }
            }
        }
    }

    /// Values in file order, taken from a flat buffer.
    pub fn gather<T: Copy + Default>(&self, flat: &[T]) -> Vec<T> {
        let mut values = vec![T::default(); self.param.shape.elements()];
        self.for_each(|logical, physical| values[logical] = flat[physical]);
        values
    }

    /// Writes values in file order into a flat buffer; padding is left as it is.
    pub fn scatter<T: Copy>(&self, values: &[T], flat: &mut [T]) {
        self.for_each(|logical, physical| flat[physical] = values[logical]);
    }
}
