//! The state dict: every tensor of a model by its name in the reference's files, and values by name.

use crate::blocks::{Mode, REG_MAX};
use crate::error::{ModelError, Result, first_five};
use crate::model::{Branches, BuildOptions, Model};
use graph::{DType, Graph, GraphBuilder, ParamGroup, ParamLayout, Shape};
use std::collections::HashMap;
use std::fmt;

/// What a tensor of the state dict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateKind {
    /// Trained by the optimiser.
    Param,
    /// Running mean or variance.
    Buffer,
    /// `num_batches_tracked`, an integer that only the file format needs.
    Counter,
    /// The bins 0 to 15 of the box distribution: listed among the parameters, never trained.
    Fixed,
}

/// One tensor of a model's state dict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    pub name: String,
    /// As files hold it: (out, in / groups, kernel, kernel), (channels), or none for a counter.
    pub dims: Vec<usize>,
    pub kind: StateKind,
    pub group: ParamGroup,
}

impl StateEntry {
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// True for what a parameter count counts: parameters and the fixed bins.
    pub fn counted(&self) -> bool {
        matches!(self.kind, StateKind::Param | StateKind::Fixed)
    }
}

impl Model {
    /// The graph on one picture, without a loss.
    pub(crate) fn graph(&self, height: usize, width: usize, options: BuildOptions) -> Result<Graph> {
        let mut b = GraphBuilder::new();
        let image = b.input("image", Shape::new(1, height, width, self.channels), DType::F32);
        self.build(&mut b, image, options)?;
        Ok(b.finish())
    }

    /// Every tensor of the state dict in the reference's order.
    ///
    /// # Errors
    /// What [`Model::build`] refuses.
    pub fn state(&self, options: BuildOptions) -> Result<Vec<StateEntry>> {
        let side = self.size_multiple();
        let graph = self.graph(side, side, options)?;
        let mut entries = Vec::with_capacity(2 * graph.params().len());
        for param in graph.params() {
            let kind = if param.group == ParamGroup::Buffer { StateKind::Buffer } else { StateKind::Param };
            let (name, dims) = (param.name.clone(), param.shape.dims());
            let counter = name.strip_suffix("running_var").map(|stem| format!("{stem}num_batches_tracked"));
            entries.push(StateEntry { name, dims, kind, group: param.group });
            if let Some(name) = counter {
                let (kind, group) = (StateKind::Counter, ParamGroup::Buffer);
                entries.push(StateEntry { name, dims: Vec::new(), kind, group });
            }
        }
        let head = self.layers.len() - 1;
        for tower in self.head().used(options.branches) {
            let name = format!("model.{head}.{}.conv.weight", tower.dfl);
            let (dims, kind) = (vec![1, REG_MAX, 1, 1], StateKind::Fixed);
            entries.push(StateEntry { name, dims, kind, group: ParamGroup::Weight });
        }
        Ok(entries)
    }

    /// The whole training state dict.
    ///
    /// # Errors
    /// What [`Model::build`] refuses.
    pub fn training_state(&self) -> Result<Vec<StateEntry>> {
        self.state(BuildOptions { mode: Mode::Training, branches: Branches::All })
    }
}

/// Values of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    pub dims: Vec<usize>,
    /// Row-major. Counters are held here too: exact up to 2^24 batches.
    pub values: Vec<f32>,
}

/// An ordered map from names to tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedTensors {
    entries: Vec<(String, NamedTensor)>,
    index: HashMap<String, usize>,
}

impl IntoIterator for NamedTensors {
    type Item = (String, NamedTensor);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    /// Names and tensors in order, without a copy.
    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl NamedTensors {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor at the end, or replaces the one of this name in place.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] where the number of values does not fit the extents.
    pub fn insert(&mut self, name: impl Into<String>, dims: Vec<usize>, values: Vec<f32>) -> Result<()> {
        let name = name.into();
        let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        if elements != Some(values.len()) {
            let message = format!("{} values do not fill the shape {dims:?}", values.len());
            return Err(ModelError::Tensor { name, message });
        }
        let tensor = NamedTensor { dims, values };
        match self.index.get(&name) {
            Some(&i) => self.entries[i].1 = tensor,
            None => {
                self.index.insert(name.clone(), self.entries.len());
                self.entries.push((name, tensor));
            }
        }
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&NamedTensor> {
        self.index.get(name).map(|&i| &self.entries[i].1)
    }

    /// Values of a tensor, to be changed in place.
    pub fn values_mut(&mut self, name: &str) -> Option<&mut [f32]> {
        self.index.get(name).map(|&i| &mut self.entries[i].1.values[..])
    }

    /// Names and tensors in order.
    /// Multiplies all values.
    pub fn scale(&mut self, factor: f32) {
        self.entries.iter_mut().flat_map(|(_, tensor)| &mut tensor.values).for_each(|value| *value *= factor);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &NamedTensor)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All tensors at zero, except the fixed bins.
    pub fn zeros(entries: &[StateEntry]) -> Self {
        let mut tensors = Self::new();
        for entry in entries {
            let values = match entry.kind {
                StateKind::Fixed => (0..entry.elements()).map(|i| i as f32).collect(),
                _ => vec![0.0; entry.elements()],
            };
            tensors.insert(entry.name.clone(), entry.dims.clone(), values).expect("as many values as elements");
        }
        tensors
    }

    /// Succeeds where the tensors are exactly the entries', in any order.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] names the first five that are missing, foreign, or of another shape. `what`
    /// says whose tensors these are, such as a file.
    pub fn check(&self, entries: &[StateEntry], what: &str) -> Result<()> {
        let report = self.compare(entries.iter().map(|e| (e.name.as_str(), e.dims.as_slice())));
        if report.transferred == report.total && report.foreign.is_empty() {
            return Ok(());
        }
        Err(ModelError::Tensors { what: what.to_owned(), detail: report.reasons() })
    }

    /// Copies every tensor whose name and shape agree from `source`.
    pub fn transfer_from(&mut self, source: &NamedTensors) -> TransferReport {
        let report = source.compare(self.entries.iter().map(|(name, t)| (name.as_str(), t.dims.as_slice())));
        for (name, tensor) in &mut self.entries {
            if let Some(from) = source.get(name).filter(|from| from.dims == tensor.dims) {
                tensor.values.copy_from_slice(&from.values);
            }
        }
        report
    }

    /// Holds these tensors against wanted names and shapes.
    pub(crate) fn compare<'w>(&self, wanted: impl Iterator<Item = (&'w str, &'w [usize])>) -> TransferReport {
        let mut report = TransferReport::default();
        let mut seen = vec![false; self.entries.len()];
        for (name, dims) in wanted {
            report.total += 1;
            match self.index.get(name) {
                None => report.missing.push(name.to_owned()),
                Some(&i) => {
                    seen[i] = true;
                    let have = &self.entries[i].1.dims;
                    if have == dims {
                        report.transferred += 1;
                    } else {
                        report.shapes.push((name.to_owned(), have.clone(), dims.to_vec()));
                    }
                }
            }
        }
        let unseen = self.entries.iter().zip(seen).filter(|(_, seen)| !seen);
        report.foreign = unseen.map(|(entry, _)| entry.0.clone()).collect();
        report
    }

    /// Writes the values of every parameter of a layout into its flat buffers; padding is left as it is.
    ///
    /// # Errors
    /// [`ModelError::Tensors`] names what the layout has and these tensors lack, or hold in another shape.
    pub fn scatter<T: Copy + From<f32>>(
        &self,
        layout: &ParamLayout,
        weights: &mut [T],
        buffers: &mut [T],
    ) -> Result<()> {
        let wanted: Vec<_> = layout.slots().iter().map(|s| (s.param.name.as_str(), s.param.shape.dims())).collect();
        let report = self.compare(wanted.iter().map(|(name, dims)| (*name, dims.as_slice())));
        if report.transferred != report.total {
            let detail = TransferReport { foreign: Vec::new(), ..report }.reasons();
            return Err(ModelError::Tensors { what: "a set of weights".into(), detail });
        }
        for slot in layout.slots() {
            let values = &self.get(&slot.param.name).expect("compared above").values;
            let flat = if slot.param.group == ParamGroup::Buffer { &mut *buffers } else { &mut *weights };
            slot.for_each(|logical, physical| flat[physical] = T::from(values[logical]));
        }
        Ok(())
    }

    /// Takes the values of every parameter that a layout and these tensors share out of flat buffers.
    pub fn gather<T: Copy + Into<f64>>(&mut self, layout: &ParamLayout, weights: &[T], buffers: &[T]) {
        for slot in layout.slots() {
            let flat = if slot.param.group == ParamGroup::Buffer { buffers } else { weights };
            if let Some(values) = self.values_mut(&slot.param.name).filter(|v| v.len() == slot.param.shape.elements()) {
                slot.for_each(|logical, physical| values[logical] = flat[physical].into() as f32);
            }
        }
    }
}

/// What went from one set of tensors into another, and why the rest did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferReport {
    pub transferred: usize,
    /// Tensors of the receiving side.
    pub total: usize,
    /// Tensors that only the receiving side has.
    pub missing: Vec<String>,
    /// Tensors that only the giving side has.
    pub foreign: Vec<String>,
    /// Name, shape of the giving side, shape of the receiving side.
    pub shapes: Vec<(String, Vec<usize>, Vec<usize>)>,
}

impl TransferReport {
    /// Why tensors stayed behind: the first five of each reason.
    pub fn reasons(&self) -> String {
        let shapes: Vec<String> = self.shapes.iter().map(|(n, a, b)| format!("{n} {a:?} instead of {b:?}")).collect();
        let kinds = [("missing", &self.missing), ("foreign", &self.foreign), ("of another shape", &shapes)];
        let parts = kinds.iter().filter(|k| !k.1.is_empty());
        parts
            .map(|(what, names)| format!("{} {what} ({})", names.len(), first_five(names)))
            .collect::<Vec<_>>()
            .join("; ")
    }
}

impl fmt::Display for TransferReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transferred {}/{} tensors", self.transferred, self.total)?;
        match self.reasons() {
            reasons if reasons.is_empty() => Ok(()),
            reasons => write!(f, ": {reasons}"),
        }
    }
}
