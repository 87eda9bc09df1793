//! A model: rows resolved to blocks, and its graph.

use crate::blocks::{Block, BlockContext, DetectHead, Feature, Mode, REGISTRY, Read, RowContext};
use crate::error::{ModelError, Result};
use crate::yaml::{Arg, Description, MAX_BLOCKS, MAX_REPEATS, Row};
use crate::zoo::{self, Source};
use graph::ops::Activation;
use graph::{GraphBuilder, TensorId};

/// Which branches of a dual head are built. A single head has only the main one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Branches {
    #[default]
    All,
    /// Without every layer that the main branch does not reach.
    Main,
}

/// How a graph is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct BuildOptions {
    pub mode: Mode,
    pub branches: Branches,
}

/// Raw outputs of one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLevel {
    /// Box logits (N, h, w, 64): channel = side * 16 + bin, sides left, top, right, bottom.
    pub boxes: TensorId,
    /// Class logits (N, h, w, nc).
    pub classes: TensorId,
    /// Picture pixels per cell.
    pub stride: usize,
}

/// Raw outputs of one branch, finest level first as the head lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// `aux` or `main`.
    pub name: &'static str,
    pub levels: Vec<HeadLevel>,
}

/// Raw outputs of a model. The main branch is the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heads {
    pub branches: Vec<Branch>,
}

impl Heads {
    pub fn main(&self) -> &Branch {
        self.branches.last().expect("a head has a main branch")
    }

    pub fn aux(&self) -> Option<&Branch> {
        self.branches.iter().find(|b| b.name == "aux")
    }
}

/// One resolved row.
#[derive(Debug)]
pub struct Layer {
    /// Position in the description; parameters are called `model.<index>.`.
    pub index: usize,
    /// Inputs as written.
    pub from: Vec<i64>,
    /// After the depth multiple.
    pub repeats: usize,
    /// Name in the registry.
    pub module: String,
    /// Resolved arguments, input channels first.
    pub arguments: String,
    /// Output channels; 0 for the head.
    pub channels: usize,
    /// Picture pixels per output cell; the coarsest level for the head.
    pub stride: usize,
    /// Rows read; `None` is the picture.
    pub(crate) inputs: Vec<Option<usize>>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Blocks(Vec<Box<dyn Block>>),
    Head(DetectHead),
}

/// A model resolved from its description.
#[derive(Debug)]
pub struct Model {
    /// File stem, such as `yolov9-s`.
    pub name: String,
    pub source: Source,
    /// The description as read; `nc` below may differ from the one in it.
    pub yaml: String,
    pub nc: usize,
    /// Strides of the main branch's levels in pixels, such as 8, 16, 32.
    pub strides: Vec<usize>,
    pub layers: Vec<Layer>,
    /// Channels of the picture.
    pub channels: usize,
    activation: Activation,
}

impl Model {
    /// Loads a model by name (`yolov9-s`) or path; `nc` replaces the description's number of classes.
    ///
    /// # Errors
    /// See [`zoo::find`] and [`Model::from_yaml`].
    pub fn load(cfg: &str, nc: Option<usize>) -> Result<Self> {
        let found = zoo::find(cfg)?;
        Self::from_yaml(&found.name, found.source, found.text, nc)
    }

    /// Resolves a description; `name` is the model's, `source` stands in errors.
    ///
    /// # Errors
    /// [`ModelError::Yaml`] and [`ModelError::Row`] name the file and the line.
    pub fn from_yaml(name: &str, source: Source, yaml: String, nc: Option<usize>) -> Result<Self> {
        let file = source.to_string();
        let description = Description::parse(&yaml, &file, nc)?;
        let layers = resolve(&description, &file)?;
        let strides = match layers.last().map(|l| &l.kind) {
            Some(Kind::Head(head)) => head.towers[head.towers.len() - 1].strides.clone(),
            _ => return Err(ModelError::Yaml { file, message: "the last row must be a detection head".into() }),
        };
        let Description { nc, channels, activation, .. } = description;
        Ok(Self { name: name.to_owned(), source, yaml, nc, strides, layers, channels, activation })
    }

    /// The same description for another number of classes.
    ///
    /// # Errors
    /// See [`Model::from_yaml`].
    pub fn with_classes(&self, nc: usize) -> Result<Self> {
        Self::from_yaml(&self.name, self.source.clone(), self.yaml.clone(), Some(nc))
    }

    /// True where the head has an auxiliary branch.
    pub fn has_aux(&self) -> bool {
        self.head().towers.len() > 1
    }

    /// What both sides of a picture must be multiples of: the coarsest stride of any layer, at least 32.
    pub fn size_multiple(&self) -> usize {
        self.layers.iter().map(|l| l.stride).max().unwrap_or(1).max(32)
    }

    /// Records the model on `image`, normalised (N, H, W, 3) with both sides multiples of
    /// [`Self::size_multiple`], and returns its raw outputs. Scopes are `model.<index>`.
    ///
    /// # Errors
    /// [`ModelError::ImageSize`], [`ModelError::ImageChannels`], and what the graph refuses.
    pub fn build(&self, b: &mut GraphBuilder, image: TensorId, options: BuildOptions) -> Result<Heads> {
        let shape = b.shape(image);
        self.check_size(shape.h, shape.w)?;
        if shape.c != self.channels {
            return Err(ModelError::ImageChannels { channels: shape.c, expected: self.channels });
        }
        let used = self.used(options.branches);
        let mut outputs: Vec<Option<TensorId>> = vec![None; self.layers.len()];
        let mut heads = None;
        for layer in self.layers.iter().filter(|l| used[l.index]) {
            let name = format!("model.{}", layer.index);
            b.set_scope(name.clone());
            let input = |from: &Option<usize>| from.map_or(Some(image), |i| outputs[i]);
            let inputs: Vec<Option<TensorId>> = layer.inputs.iter().map(input).collect();
            let mut cx =
                BlockContext { builder: &mut *b, mode: options.mode, activation: self.activation, boundary: false };
            match &layer.kind {
                Kind::Blocks(blocks) => {
                    let mut inputs: Vec<TensorId> = inputs.into_iter().flatten().collect();
                    for (j, block) in blocks.iter().enumerate() {
                        let name = if blocks.len() > 1 { format!("{name}.{j}") } else { name.clone() };
                        // The layers down to stride 4 are large and cheap to compute again.
                        cx.boundary = layer.stride >= 8 && j + 1 == blocks.len();
                        inputs = vec![block.build(&mut cx, &name, &inputs)?];
                    }
                    outputs[layer.index] = inputs.first().copied();
                }
                Kind::Head(head) => {
                    cx.boundary = true;
                    heads = Some(head.build(&mut cx, &name, &inputs, options.branches)?);
                    self.check_grids(b, layer, head, &inputs, (shape.h, shape.w))?;
                }
            }
        }
        Ok(Heads { branches: heads.expect("the last row is a head, which is always used") })
    }

    /// Refuses pictures that the strides do not divide.
    pub fn check_size(&self, height: usize, width: usize) -> Result<()> {
        let multiple = self.size_multiple();
        if height > 0 && width > 0 && height.is_multiple_of(multiple) && width.is_multiple_of(multiple) {
            return Ok(());
        }
        let up = |side: usize| side.max(1).div_ceil(multiple).saturating_mul(multiple);
        let (hint_height, hint_width) = (up(height), up(width));
        Err(ModelError::ImageSize { height, width, multiple, hint_height, hint_width })
    }

    fn check_grids(
        &self,
        b: &GraphBuilder,
        layer: &Layer,
        head: &DetectHead,
        inputs: &[Option<TensorId>],
        (height, width): (usize, usize),
    ) -> Result<()> {
        for tower in &head.towers {
            for (position, &stride) in tower.inputs.clone().zip(&tower.strides) {
                let Some(input) = inputs[position] else { continue };
                let shape = b.shape(input);
                if (shape.h, shape.w) != (height / stride, width / stride) {
                    return Err(ModelError::HeadGrid {
                        layer: layer.inputs[position].unwrap_or(0),
                        stride,
                        found: format!("{}x{}", shape.h, shape.w),
                        expected: format!("{}x{}", height / stride, width / stride),
                    });
                }
            }
        }
        Ok(())
    }

    /// What follows each batch norm.
    pub(crate) fn activation(&self) -> Activation {
        self.activation
    }

    pub(crate) fn head(&self) -> &DetectHead {
        match self.layers.last().map(|l| &l.kind) {
            Some(Kind::Head(head)) => head,
            _ => unreachable!("from_yaml checked that the last row is a head"),
        }
    }

    pub(crate) fn head_mut(&mut self) -> &mut DetectHead {
        match self.layers.last_mut().map(|l| &mut l.kind) {
            Some(Kind::Head(head)) => head,
            _ => unreachable!("from_yaml checked that the last row is a head"),
        }
    }

    /// Whether each layer is part of a build.
    pub(crate) fn used(&self, branches: Branches) -> Vec<bool> {
        let mut used = vec![branches == Branches::All; self.layers.len()];
        let Some((last, rest)) = self.layers.split_last() else { return used };
        used[last.index] = true;
        for tower in self.head().used(branches) {
            last.inputs[tower.inputs.clone()].iter().flatten().for_each(|&i| used[i] = true);
        }
        for layer in rest.iter().rev() {
            if used[layer.index] {
                layer.inputs.iter().flatten().for_each(|&i| used[i] = true);
            }
        }
        used
    }
}

/// Reads every row in order.
fn resolve(description: &Description, file: &str) -> Result<Vec<Layer>> {
    let image = Feature::new(description.channels, 1);
    let mut features: Vec<Feature> = Vec::with_capacity(description.rows.len());
    let mut layers: Vec<Layer> = Vec::with_capacity(description.rows.len());
    let mut blocks_total = 0usize;
    for (index, row) in description.rows.iter().enumerate() {
        let error = |message: String| RowContext { file, index, row, description, inputs: &[] }.error(message);
        if matches!(layers.last().map(|l| &l.kind), Some(Kind::Head(_))) {
            return Err(error("follows the detection head, which must be the last row".into()));
        }
        let inputs = inputs(row, index).map_err(error)?;
        let feature_of = |from: &Option<usize>| from.map_or_else(|| image.clone(), |i| features[i].clone());
        let mut input_features: Vec<Feature> = inputs.iter().map(feature_of).collect();
        let repeats = repeats(row, description).map_err(error)?;
        blocks_total += repeats * inner_repeats(row);
        if blocks_total > MAX_BLOCKS {
            return Err(error(format!("more than {MAX_BLOCKS} blocks up to here, repetitions counted")));
        }
        let entry = REGISTRY.iter().find(|e| e.name == row.module).ok_or_else(|| {
            let known = REGISTRY.iter().map(|e| e.name).collect::<Vec<_>>().join(", ");
            error(format!("no block has this name\n  hint: known blocks are {known}"))
        })?;
        let mut blocks: Vec<Box<dyn Block>> = Vec::with_capacity(repeats);
        let mut head = None;
        for _ in 0..repeats {
            match (entry.read)(&RowContext { file, index, row, description, inputs: &input_features })? {
                Read::Block(block, output) => {
                    if output.stride > 1024 {
                        return Err(error(format!("stride {} is reached, at most 1024", output.stride)));
                    }
                    blocks.push(block);
                    input_features = vec![output];
                }
                Read::Head(_) if repeats > 1 => return Err(error("a head is not repeated".into())),
                Read::Head(read) => head = Some(read),
            }
        }
        let (kind, arguments, channels, stride) = match head {
            Some(head) => {
                let stride = head.towers.iter().flat_map(|t| t.strides.iter().copied()).max().unwrap_or(1);
                let arguments = head.arguments();
                (Kind::Head(head), arguments, 0, stride)
            }
            None => {
                let output = &input_features[0];
                let arguments = blocks[0].arguments();
                (Kind::Blocks(blocks), arguments, output.channels, output.stride)
            }
        };
        features.push(input_features[0].clone());
        let (from, module) = (row.from.clone(), row.module.clone());
        layers.push(Layer { index, from, repeats, module, arguments, channels, stride, inputs, kind });
    }
    Ok(layers)
}

/// Rows that a row reads; `None` is the picture, the row before the first.
fn inputs(row: &Row, index: usize) -> std::result::Result<Vec<Option<usize>>, String> {
    if row.from.is_empty() || row.from.len() > 64 {
        return Err(format!("reads {} inputs, must be 1 to 64", row.from.len()));
    }
    let resolve = |&from: &i64| match from {
        -1 if index == 0 => Ok(None),
        f if f < 0 => usize::try_from(index as i64 + f).map(Some).map_err(|_| f),
        f if (f as u64) < index as u64 => Ok(Some(f as usize)),
        f => Err(f),
    };
    row.from
        .iter()
        .map(resolve)
        .collect::<std::result::Result<_, i64>>()
        .map_err(|from| format!("reads row {from}, which is not before it"))
}

fn repeats(row: &Row, description: &Description) -> std::result::Result<usize, String> {
    let written = usize::try_from(row.repeats).ok().filter(|n| (1..=MAX_REPEATS).contains(n));
    let written = written.ok_or_else(|| format!("{} repeats, must be 1 to {MAX_REPEATS}", row.repeats))?;
    match description.repeats(written) {
        n if n > MAX_REPEATS => Err(format!("{n} repeats after scaling, at most {MAX_REPEATS}")),
        n => Ok(n),
    }
}

/// Upper bound of the bottlenecks inside of a row's block, for the limit on all of them.
fn inner_repeats(row: &Row) -> usize {
    match (row.module.as_str(), row.args.as_slice()) {
        ("RepNCSPELAN4", [_, _, _, Arg::Int(n)]) | ("RepNCSP", [_, Arg::Int(n)]) => (*n).clamp(1, 1 << 20) as usize,
        _ => 1,
    }
}
