//! The anchor-free heads: `DDetect`, and `DualDDetect` with an auxiliary branch for training.

use super::conv::{ConvUnit, pointwise, square};
use super::{BlockContext, Read, RowContext};
use crate::error::Result;
use crate::model::{Branch, Branches, HeadLevel};
use graph::TensorId;
use graph::ops::ConvAttrs;
use std::ops::Range;

/// Bins of each side's distance distribution.
pub const REG_MAX: usize = 16;
/// Channels of the box logits: four sides (left, top, right, bottom) by [`REG_MAX`] bins.
pub const BOX_CHANNELS: usize = 4 * REG_MAX;
/// Most levels of one branch.
const MAX_LEVELS: usize = 8;

/// One branch of a head: box and class tower on each of its levels.
#[derive(Clone, Debug)]
pub(crate) struct Tower {
    pub name: &'static str,
    pub boxes: &'static str,
    pub classes: &'static str,
    /// The fixed convolution that takes the expectation over the bins, `name.dfl`.
    pub dfl: &'static str,
    /// Which inputs of the head are this branch's levels.
    pub inputs: Range<usize>,
    pub channels: Vec<usize>,
    pub strides: Vec<usize>,
    pub hidden: Hidden,
    nc: usize,
}

/// Inner sizes of a branch's towers, the same on all of its levels. A row has the rule's; weights may have others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hidden {
    pub box_width: usize,
    pub class_width: usize,
    /// Groups of the box tower's second and last convolution.
    pub box_groups: [usize; 2],
}

impl Hidden {
    /// Boxes: `max(ch0 / 4, 64, 16)` rounded up to a multiple of 4, in four groups, one a side. Classes:
    /// `max(ch0, min(2 nc, 128))`. `ch0` are the channels of the branch's first level.
    pub fn by_rule(first_channels: usize, nc: usize) -> Self {
        Self {
            box_width: (first_channels / 4).max(BOX_CHANNELS).max(REG_MAX).next_multiple_of(4),
            class_width: first_channels.max((2 * nc).min(128)),
            box_groups: [4, 4],
        }
    }
}

impl Tower {
    /// The sizes that the description asks for.
    pub fn rule(&self) -> Hidden {
        Hidden::by_rule(self.channels[0], self.nc)
    }

    fn declare(&self, cx: &mut BlockContext<'_>, name: &str) -> Result<Vec<Level>> {
        let grouped = |attrs: ConvAttrs, groups: usize| ConvAttrs { groups, ..attrs };
        let Hidden { box_width: boxes, class_width: classes, box_groups: [middle, end] } = self.hidden;
        let mut towers = Vec::with_capacity(2 * self.channels.len());
        let kinds = [
            (self.boxes, boxes, grouped(square(1), middle), grouped(pointwise(), end), BOX_CHANNELS),
            (self.classes, classes, square(1), pointwise(), self.nc),
        ];
        for (part, width, middle, end, out) in kinds {
            for (level, &c_in) in self.channels.iter().enumerate() {
                let name = format!("{name}.{part}.{level}");
                towers.push([
                    ConvUnit::declare(cx, &format!("{name}.0"), c_in, width, square(1))?,
                    ConvUnit::declare(cx, &format!("{name}.1"), width, width, middle)?,
                    ConvUnit::declare_plain(cx, &format!("{name}.2"), width, out, end)?,
                ]);
            }
        }
        let classes = towers.split_off(self.channels.len());
        Ok(towers.into_iter().zip(classes).map(|(boxes, classes)| Level { boxes, classes }).collect())
    }
}

/// Declared convolutions of one level.
struct Level {
    boxes: [ConvUnit; 3],
    classes: [ConvUnit; 3],
}

fn tower(cx: &mut BlockContext<'_>, [first, second, last]: &[ConvUnit; 3], x: TensorId) -> Result<TensorId> {
    let y = first.forward(cx, x)?;
    let y = second.forward(cx, y)?;
    last.forward_logits(cx, y)
}

/// A head with its numbers resolved. The main branch is the last.
#[derive(Clone, Debug)]
pub(crate) struct DetectHead {
    pub towers: Vec<Tower>,
    nc: usize,
}

/// `[nc]`: one branch.
pub(crate) fn read_single(row: &RowContext<'_>) -> Result<Read> {
    let n = row.inputs.len();
    let main = tower_of(row, ("main", "cv2", "cv3", "dfl"), 0..n)?;
    Ok(Read::Head(DetectHead { nc: main.nc, towers: vec![main] }))
}

/// `[nc]`: the first half of the inputs feeds the auxiliary branch, the second the main one.
pub(crate) fn read_dual(row: &RowContext<'_>) -> Result<Read> {
    let n = row.inputs.len();
    if !n.is_multiple_of(2) {
        return Err(row.error(format!("takes as many auxiliary as main levels, has {n} inputs")));
    }
    let aux = tower_of(row, ("aux", "cv2", "cv3", "dfl"), 0..n / 2)?;
    let main = tower_of(row, ("main", "cv4", "cv5", "dfl2"), n / 2..n)?;
    if aux.strides != main.strides {
        return Err(row.error(format!("auxiliary strides {:?} differ from main {:?}", aux.strides, main.strides)));
    }
    Ok(Read::Head(DetectHead { nc: main.nc, towers: vec![aux, main] }))
}

type Names = (&'static str, &'static str, &'static str, &'static str);

fn tower_of(row: &RowContext<'_>, (name, boxes, classes, dfl): Names, inputs: Range<usize>) -> Result<Tower> {
    row.at_most(1)?;
    let expected = row.description.nc;
    let nc = row.number(0, "classes", Some(expected), 1..=crate::yaml::MAX_CLASSES)?;
    if nc != expected {
        return Err(row.error(format!("has {nc} classes, the model {expected}\n  hint: write nc")));
    }
    if inputs.is_empty() || inputs.len() > MAX_LEVELS {
        return Err(row.error(format!("a branch has 1 to {MAX_LEVELS} levels, this one {}", inputs.len())));
    }
    let levels = row.inputs[inputs.clone()].iter().map(|f| row.plain(f)).collect::<Result<Vec<_>>>()?;
    let (channels, strides): (Vec<usize>, _) = levels.iter().map(|f| (f.channels, f.stride)).unzip();
    let hidden = Hidden::by_rule(channels[0], nc);
    Ok(Tower { name, boxes, classes, dfl, inputs, channels, strides, hidden, nc })
}

impl DetectHead {
    pub fn arguments(&self) -> String {
        let channels: Vec<usize> = self.towers.iter().flat_map(|t| t.channels.iter().copied()).collect();
        format!("[{}, {channels:?}]", self.nc)
    }

    /// The towers that a build has.
    pub fn used(&self, branches: Branches) -> &[Tower] {
        match branches {
            Branches::All => &self.towers,
            Branches::Main => &self.towers[self.towers.len() - 1..],
        }
    }

    /// Builds the used branches; `inputs` holds what they read, at the head's own positions.
    pub fn build(
        &self,
        cx: &mut BlockContext<'_>,
        name: &str,
        inputs: &[Option<TensorId>],
        branches: Branches,
    ) -> Result<Vec<Branch>> {
        let used = self.used(branches);
        let declared = used.iter().map(|t| t.declare(cx, name)).collect::<Result<Vec<_>>>()?;
        let mut built = Vec::with_capacity(used.len());
        for (spec, levels) in used.iter().zip(&declared) {
            let mut out = Vec::with_capacity(levels.len());
            for ((level, input), &stride) in levels.iter().zip(&inputs[spec.inputs.clone()]).zip(&spec.strides) {
                let x = input.expect("every layer that a used branch reads is built");
                let boxes = tower(cx, &level.boxes, x)?;
                out.push(HeadLevel { boxes, classes: tower(cx, &level.classes, x)?, stride });
            }
            built.push(Branch { name: spec.name, levels: out });
        }
        Ok(built)
    }
}
