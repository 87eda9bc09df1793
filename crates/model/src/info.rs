//! What a model is made of: rows, parameters, multiply-accumulates.

use crate::blocks::Mode;
use crate::error::Result;
use crate::model::{Branches, BuildOptions, Model};
use graph::{Graph, Op};
use std::fmt::Write;

/// Exact size of one build of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Size {
    /// Parameters, the fixed 16 bins of each branch included.
    pub parameters: u64,
    /// Parameters that get a gradient.
    pub trained: u64,
    /// Multiply-accumulates of all convolutions for one picture.
    pub macs: u64,
}

impl Size {
    /// `2 * macs / 1e9`, as published tables count.
    pub fn gflops(&self) -> f64 {
        2.0 * self.macs as f64 / 1e9
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowInfo {
    pub index: usize,
    pub from: Vec<i64>,
    pub repeats: usize,
    pub parameters: u64,
    /// Of the training build.
    pub macs: u64,
    pub module: String,
    pub arguments: String,
    /// False for rows that only the auxiliary branch reads.
    pub main: bool,
}

/// A model's rows and sizes at one picture size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    pub name: String,
    pub nc: usize,
    pub strides: Vec<usize>,
    pub height: usize,
    pub width: usize,
    pub rows: Vec<RowInfo>,
    /// As trained, with the auxiliary branch.
    pub training: Size,
    /// Folded, with the auxiliary branch.
    pub folded: Size,
    /// As trained, main branch only. Equal to `training` for models with one branch.
    pub main: Size,
    /// Folded, main branch only: what runs after training.
    pub main_folded: Size,
}

impl Model {
    /// Counts a model on pictures of `height` x `width` pixels.
    ///
    /// # Errors
    /// [`crate::ModelError::ImageSize`] where the strides do not divide the size.
    pub fn info(&self, height: usize, width: usize) -> Result<Info> {
        let size = |mode, branches| self.size(height, width, BuildOptions { mode, branches });
        let all = BuildOptions { mode: Mode::Training, branches: Branches::All };
        let graph = self.graph(height, width, all)?;
        let mut rows: Vec<RowInfo> = self
            .layers
            .iter()
            .zip(self.used(Branches::Main))
            .map(|(layer, main)| RowInfo {
                index: layer.index,
                from: layer.from.clone(),
                repeats: layer.repeats,
                parameters: 0,
                macs: 0,
                module: layer.module.clone(),
                arguments: layer.arguments.clone(),
                main,
            })
            .collect();
        for entry in self.state(all)?.iter().filter(|e| e.counted()) {
            if let Some(row) = layer_of(&entry.name).and_then(|i| rows.get_mut(i)) {
                row.parameters += entry.elements() as u64;
            }
        }
        for (scope, macs) in convolutions(&graph) {
            if let Some(row) = layer_of(scope).and_then(|i| rows.get_mut(i)) {
                row.macs += macs;
            }
        }
        Ok(Info {
            name: self.name.clone(),
            nc: self.nc,
            strides: self.strides.clone(),
            height,
            width,
            rows,
            training: size(Mode::Training, Branches::All)?,
            folded: size(Mode::Folded, Branches::All)?,
            main: size(Mode::Training, Branches::Main)?,
            main_folded: size(Mode::Folded, Branches::Main)?,
        })
    }

    /// Counts one build on pictures of `height` x `width` pixels.
    ///
    /// # Errors
    /// [`crate::ModelError::ImageSize`] where the strides do not divide the size.
    pub fn size(&self, height: usize, width: usize, options: BuildOptions) -> Result<Size> {
        let graph = self.graph(height, width, options)?;
        let mut size = Size { macs: convolutions(&graph).map(|c| c.1).sum(), ..Size::default() };
        for entry in self.state(options)?.iter().filter(|e| e.counted()) {
            size.parameters += entry.elements() as u64;
            size.trained += if entry.kind == crate::StateKind::Param { entry.elements() as u64 } else { 0 };
        }
        Ok(size)
    }
}

/// The number in `model.<number>...`.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("model.")?.split('.').next()?.parse().ok()
}

/// Scope and multiply-accumulates of every convolution: output pixels times weight elements.
fn convolutions(graph: &Graph) -> impl Iterator<Item = (&str, u64)> {
    graph.nodes().iter().filter_map(|node| match &node.op {
        Op::Conv2d(conv) => {
            let weights = graph.params()[conv.w.index()].shape.elements() as u64;
            Some((node.scope.as_str(), graph.tensor(conv.y).shape.pixels() as u64 * weights))
        }
        _ => None,
    })
}

impl Info {
    /// True where the auxiliary branch adds something.
    pub fn has_aux(&self) -> bool {
        self.training != self.main
    }

    /// The table and its sums, ready to print. Rows of the auxiliary branch alone are marked with `a`.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:>4} {:>24} {:>3} {:>11} {:>9}  {:<14} arguments\n",
            "", "from", "n", "params", "MMACs", "module"
        );
        for row in &self.rows {
            let from = match row.from[..] {
                [one] => one.to_string(),
                ref many => format!("{many:?}"),
            };
            let mark = if row.main { ' ' } else { 'a' };
            let (params, macs) = (row.parameters, row.macs as f64 / 1e6);
            let (index, n, module, arguments) = (row.index, row.repeats, &row.module, &row.arguments);
            let _ =
                writeln!(text, "{index:>3}{mark} {from:>24} {n:>3} {params:>11} {macs:>9.1}  {module:<14} {arguments}");
        }
        let mut sum = |what: &str, size: &Size| {
            let (params, gflops) = (size.parameters, size.gflops());
            let _ = writeln!(text, "{what:<34} {params:>11} parameters {gflops:>7.1} GFLOPs");
        };
        sum("training", &self.training);
        sum("folded", &self.folded);
        if self.has_aux() {
            sum("training, main branch only", &self.main);
            sum("folded, main branch only", &self.main_folded);
        }
        let _ = writeln!(text, "{} with {} classes at {}x{}", self.name, self.nc, self.height, self.width);
        text
    }
}
