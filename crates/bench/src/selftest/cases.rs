//! The ops, one small graph a case.

use super::net::Net;
use detect::LossConfig;
use detect::external::{LevelTensors, TargetTensors};
use graph::ops::PoolAttrs;
use graph::{Activation, GraphError, Shape, TensorId};

/// Channel counts: below, above and between the multiples that kernels like.
const CHANNELS: &[usize] = &[3, 20, 60, 64, 66, 90, 128, 180];
/// Those that can be cut in halves.
const EVEN: &[usize] = &[20, 60, 64, 66, 90, 128, 180];
/// Pixels of the small and the large picture. Extents are odd on purpose.
const SMALL: Shape = Shape::new(2, 27, 22, 3);
const LARGE: Shape = Shape::new(3, 61, 48, 3);
/// Channels that the large picture is tried with.
const LARGE_CHANNELS: usize = 60;

/// What a case's graph ends in.
pub(crate) enum Ends {
    /// Tensors that are compared, and that a loss of squares differentiates in training.
    At(Vec<TensorId>),
    /// The detection loss.
    Loss { values: TensorId, targets: TargetTensors },
}

type Build = Box<dyn Fn(&mut Net, TensorId, usize) -> Result<Ends, GraphError>>;

/// A small graph around one op.
pub(crate) struct Case {
    pub name: String,
    pub channels: &'static [usize],
    /// Forward and backward, else forward alone.
    pub training: bool,
    /// Any pixels instead of zeros and ones.
    pub any_pixels: bool,
    pub picture: Shape,
    /// How many times the usual bound passes.
    pub slack: f64,
    pub build: Build,
}

impl Case {
    /// Channels and picture of each run.
    pub fn runs(&self) -> impl Iterator<Item = (usize, Shape)> {
        let large = (self.picture == SMALL).then_some((LARGE_CHANNELS, LARGE));
        self.channels.iter().map(|&c| (c, self.picture)).chain(large)
    }
}

fn case(
    name: impl Into<String>,
    channels: &'static [usize],
    build: impl Fn(&mut Net, TensorId, usize) -> Result<Vec<TensorId>, GraphError> + 'static,
) -> Case {
    let build: Build = Box::new(move |net, x, c| build(net, x, c).map(Ends::At));
    Case { name: name.into(), channels, training: true, any_pixels: false, picture: SMALL, slack: 1.0, build }
}

/// Every case.
pub(crate) fn all() -> Vec<Case> {
    let mut all = convolutions();
    all.extend(norms());
    all.extend(element_wise());
    all.extend(windows());
    all.extend(ranges());
    all.extend(inference());
    all.push(loss());
    all
}

fn convolutions() -> Vec<Case> {
    let mut cases = Vec::new();
    for (kernel, stride) in [(1, 1), (3, 1), (3, 2), (1, 2), (5, 1)] {
        // Two readers of one tensor: the second data gradient is added to the first.
        cases.push(case(format!("conv {kernel}x{kernel} stride {stride}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            Ok(vec![n.conv(y, c, kernel, stride, false)?, n.conv(y, 24, kernel, stride, true)?])
        }));
    }
    let picture = case("conv 3x3 stride 2 of a picture", CHANNELS, |n, x, c| Ok(vec![n.conv(x, c, 3, 2, false)?]));
    cases.push(Case { any_pixels: true, ..picture });
    for kernel in [1, 3] {
        cases.push(case(format!("conv {kernel}x{kernel} in groups"), EVEN, move |n, x, c| {
            let y = n.stem(x, c)?;
            let groups = if c % 4 == 0 { 4 } else { 2 };
            Ok(vec![n.grouped(y, c, kernel, groups, true)?, n.grouped(y, 2 * c, kernel, 2, false)?])
        }));
    }
    cases
}

const ACTIVATIONS: [(&str, Activation); 4] = [
    ("nothing", Activation::Identity),
    ("SiLU", Activation::Silu),
    ("ReLU", Activation::Relu),
    ("leaky ReLU", Activation::LeakyRelu(0.1)),
];

/// A batch norm's gradient has no part along its input, of which a stem's weights see the rest: roundings weigh more.
const NORM_SLACK: f64 = 4.0;

fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, act) in ACTIVATIONS {
        cases.push(case(format!("batch norm and {name}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            let y = n.bn(y)?;
            Ok(vec![n.b.activation(y, act)])
        }));
        cases.push(case(format!("two batch norms and {name}"), CHANNELS, move |n, x, c| {
            let (a, b) = (n.stem(x, c)?, n.stem(x, c)?);
            let (a, b) = (n.bn(a)?, n.bn(b)?);
            let sum = n.b.add(&[a, b])?;
            Ok(vec![n.b.activation(sum, act)])
        }));
    }
    cases.push(case("batch norm and residual", CHANNELS, |n, x, c| {
        let (a, b) = (n.block(x, c)?, n.block(x, c)?);
        Ok(vec![n.b.add(&[a, b])?])
    }));
    // Both branches read one tensor: their data gradients are added.
    cases.push(case("two convolutions, batch norms and SiLU", CHANNELS, |n, x, c| {
        let y = n.stem(x, c)?;
        let (a, b) = (n.conv(y, c, 3, 1, false)?, n.conv(y, c, 1, 1, false)?);
        let (a, b) = (n.bn(a)?, n.bn(b)?);
        let sum = n.b.add(&[a, b])?;
        Ok(vec![n.b.activation(sum, Activation::Silu)])
    }));
    cases.into_iter().map(|case| Case { slack: NORM_SLACK, ..case }).collect()
}

fn element_wise() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, act) in &ACTIVATIONS[1..] {
        let act = *act;
        cases.push(case(format!("{name} of a tensor with other readers"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            Ok(vec![n.b.activation(y, act), n.conv(y, 8, 1, 1, false)?])
        }));
    }
    cases.push(case("sums of three, and of one twice", CHANNELS, |n, x, c| {
        let (a, b, d) = (n.stem(x, c)?, n.stem(x, c)?, n.stem(x, c)?);
        let three = n.b.add(&[a, b, d])?;
        let twice = n.b.add(&[three, three])?;
        Ok(vec![n.b.add(&[twice, a])?])
    }));
    cases
}

fn windows() -> Vec<Case> {
    let pool = |kernel, stride, pad| PoolAttrs { kernel, stride, pad };
    let mut cases = Vec::new();
    for (name, attrs) in [("5x5", pool(5, 1, 2)), ("3x3 stride 2", pool(3, 2, 1)), ("2x2 stride 2", pool(2, 2, 0))] {
        cases.push(case(format!("max pool {name}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            Ok(vec![n.b.max_pool(y, attrs)?, n.conv(y, 8, 1, 1, false)?])
        }));
    }
    cases.push(case("max pools in a row", CHANNELS, move |n, x, c| {
        let y = n.stem(x, c)?;
        let a = n.b.max_pool(y, pool(5, 1, 2))?;
        let b = n.b.max_pool(a, pool(5, 1, 2))?;
        Ok(vec![n.read_concat(&[y, a, b])?])
    }));
    for (name, attrs) in [("2x2", pool(2, 1, 0)), ("3x3 stride 2", pool(3, 2, 1))] {
        cases.push(case(format!("average pool {name}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            Ok(vec![n.b.avg_pool(y, attrs)?, n.conv(y, 8, 1, 1, false)?])
        }));
    }
    for (name, h, w) in [("twice the size", 54, 44), ("odd factors", 35, 22), ("less", 13, 11)] {
        cases.push(case(format!("resize to {name}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            Ok(vec![n.b.resize(y, h, w), n.conv(y, 8, 1, 1, false)?])
        }));
    }
    cases
}

fn ranges() -> Vec<Case> {
    vec![
        // Halves of a tensor, and a whole whose parts are written where it is read: every view has a pitch.
        case("channel ranges", EVEN, |n, x, c| {
            let t = n.stem(x, c)?;
            let (a, b) = (n.b.slice(t, 0, c / 2)?, n.b.slice(t, c / 2, c / 2)?);
            let a = n.bn(a)?;
            let a = n.b.activation(a, Activation::Silu);
            let pooled = n.b.max_pool(b, PoolAttrs { kernel: 3, stride: 1, pad: 1 })?;
            let b = n.conv(b, c / 2 + 1, 3, 1, false)?;
            Ok(vec![n.read_concat(&[a, t, pooled, b])?])
        }),
        case("convolutions between channel ranges", EVEN, |n, x, c| {
            let t = n.stem(x, c)?;
            let half = n.b.slice(t, c / 2, c / 2)?;
            let three = n.conv(half, c / 2, 3, 1, false)?;
            let one = n.conv(half, c / 2, 1, 1, false)?;
            Ok(vec![n.read_concat(&[t, three, one])?])
        }),
        case("one tensor in two concatenations", EVEN, |n, x, c| {
            let (a, b) = (n.stem(x, c)?, n.stem(x, 12)?);
            Ok(vec![n.read_concat(&[a, b])?, n.read_concat(&[b, a, b])?])
        }),
        case("the picture in a concatenation", CHANNELS, |n, x, c| {
            let a = n.stem(x, c)?;
            let whole = n.b.concat(&[a, x])?;
            Ok(vec![n.conv(whole, 8, 3, 1, false)?])
        }),
        case("a part of which only a half is read", EVEN, |n, x, c| {
            let a = n.stem(x, c)?;
            let half = n.b.slice(a, 4, c / 2)?;
            Ok(vec![n.conv(half, 8, 1, 1, false)?])
        }),
    ]
}

fn inference() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, act) in ACTIVATIONS {
        let folded = case(format!("folded convolutions and {name}"), CHANNELS, move |n, x, c| {
            let y = n.stem(x, c)?;
            let (three, one) = (n.conv(y, c, 3, 1, true)?, n.conv(y, 24, 1, 1, true)?);
            Ok(vec![n.b.activation(three, act), n.b.activation(one, act)])
        });
        cases.push(Case { training: false, ..folded });
    }
    let decode = case("decoding", &[3, 20, 80], |n, x, nc| {
        let levels = heads(n, x, nc)?;
        Ok(vec![detect::external::decode(&mut n.b, &levels, &STRIDES, nc)])
    });
    cases.push(Case { training: false, picture: LOSS_PICTURE, ..decode });
    cases
}

/// Network pixels of the loss's case.
pub(super) const LOSS_PICTURE: Shape = Shape::new(3, 96, 128, 3);
pub(super) const STRIDES: [usize; 2] = [8, 16];

/// Logits of every level.
pub(super) fn heads(n: &mut Net, x: TensorId, nc: usize) -> Result<Vec<LevelTensors>, GraphError> {
    let level = |n: &mut Net, stride: usize| {
        let feature = n.strided_stem(x, 24, stride)?;
        Ok(LevelTensors { boxes: n.logits(feature, detect::dfl::BOX_CHANNELS)?, classes: n.logits(feature, nc)? })
    };
    STRIDES.into_iter().map(|stride| level(n, stride)).collect()
}

fn loss() -> Case {
    let build: Build = Box::new(|n, x, nc| {
        let branches = [heads(n, x, nc)?, heads(n, x, nc)?];
        let config = LossConfig { strides: STRIDES.to_vec(), ..LossConfig::new(nc, vec![0.25, 1.0]) };
        let size = (LOSS_PICTURE.h, LOSS_PICTURE.w);
        let (values, targets) = detect::external::loss(&mut n.b, config, &branches, 16, size);
        Ok(Ends::Loss { values, targets })
    });
    let (channels, picture) = (&[3, 20, 80], LOSS_PICTURE);
    Case { name: "detection loss".to_owned(), channels, training: true, any_pixels: false, picture, slack: 1.0, build }
}
