//! The model that is left when the auxiliary branch goes: rows that the main branch reaches, numbered anew, below a
//! head of one branch. Nothing is computed: tensors change their names only.

use crate::blocks::Hidden;
use crate::error::Result;
use crate::model::{Branches, Layer, Model};
use crate::state::NamedTensors;
use crate::yaml::{Description, Row};
use crate::zoo::{Source, ZOO};

/// A model of one branch, cut out of one with two.
#[derive(Debug)]
pub struct SingleBranch {
    /// Named as the zoo's model where it has the same rows, otherwise `NAME-converted`.
    pub model: Model,
    /// Starts of tensor names: in the whole model, and in this one.
    prefixes: Vec<(String, String)>,
}

impl SingleBranch {
    /// Tensors of the whole model under the names of this one; those of the auxiliary branch alone are left out.
    pub fn convert(&self, tensors: &NamedTensors) -> Result<NamedTensors> {
        rename(tensors, self.prefixes.iter().map(|(whole, single)| (whole.as_str(), single.as_str())))
    }

    /// Tensors of this model under the names of the whole one.
    pub fn restore(&self, tensors: &NamedTensors) -> Result<NamedTensors> {
        rename(tensors, self.prefixes.iter().map(|(whole, single)| (single.as_str(), whole.as_str())))
    }
}

fn rename<'p>(
    tensors: &NamedTensors,
    prefixes: impl Iterator<Item = (&'p str, &'p str)> + Clone,
) -> Result<NamedTensors> {
    let mut renamed = NamedTensors::new();
    for (name, tensor) in tensors.iter() {
        let new = prefixes.clone().find_map(|(from, to)| name.strip_prefix(from).map(|rest| format!("{to}{rest}")));
        if let Some(new) = new {
            renamed.insert(new, tensor.dims.clone(), tensor.values.clone())?;
        }
    }
    Ok(renamed)
}

impl Model {
    /// This model without its auxiliary branch; `None` where it has none.
    ///
    /// A first row that only hands on the picture (`Silence`) goes too where a single row is left that reads it.
    ///
    /// # Errors
    /// See [`Model::from_yaml`]: none, as long as rows keep their meaning.
    pub fn single_branch(&self) -> Result<Option<SingleBranch>> {
        if !self.has_aux() {
            return Ok(None);
        }
        let whole = Description::parse(&self.yaml, &self.source.to_string(), Some(self.nc))?;
        let mut kept = self.used(Branches::Main);
        if self.first_row_can_go(&kept) {
            kept[0] = false;
        }
        let new_index: Vec<usize> =
            kept.iter().scan(0, |next, &kept| Some(std::mem::replace(next, *next + usize::from(kept)))).collect();
        let main = self.head().towers.len() - 1;
        let main = &self.head().towers[main];
        let head = self.layers.len() - 1;
        let mut rows = Vec::new();
        let mut prefixes = Vec::new();
        for (layer, row) in self.layers.iter().zip(&whole.rows).filter(|(layer, _)| kept[layer.index]) {
            let index = new_index[layer.index];
            let mut row = Row { line: 0, ..row.clone() };
            let mut inputs = layer.inputs.as_slice();
            if layer.index == head {
                inputs = &inputs[main.inputs.clone()];
                row.module = "DDetect".to_owned();
                for (whole, single) in [(main.boxes, "cv2"), (main.classes, "cv3"), (main.dfl, "dfl")] {
                    prefixes.push((format!("model.{head}.{whole}."), format!("model.{index}.{single}.")));
                }
            } else {
                prefixes.push((format!("model.{}.", layer.index), format!("model.{index}.")));
            }
            row.from = inputs.iter().map(|&input| source_row(input, index, &kept, &new_index)).collect();
            rows.push(row);
        }
        let hidden = main.hidden;
        let description = Description { rows, ..whole };
        let model = self.named_as_in_the_zoo(&description, hidden)?;
        Ok(Some(SingleBranch { model, prefixes }))
    }

    /// True where row 0 hands on the picture to one row that becomes the first.
    fn first_row_can_go(&self, kept: &[bool]) -> bool {
        let [first, rest @ ..] = self.layers.as_slice() else { return false };
        let mut readers = rest.iter().filter(|l| kept[l.index] && l.inputs.contains(&Some(0)));
        let next = rest.iter().find(|l| kept[l.index]);
        let reader = readers.next();
        first.module == "Silence"
            && readers.next().is_none()
            && reader.zip(next).is_some_and(|(r, n)| r.index == n.index && r.inputs.len() == 1)
    }

    fn named_as_in_the_zoo(&self, description: &Description, hidden: Hidden) -> Result<Model> {
        let heading = format!("{} without its auxiliary branch.", self.name);
        let name = format!("{}-converted", self.name);
        let source = Source::Text(format!("{} without its auxiliary branch", self.source));
        let mut model = Self::from_yaml(&name, source, description.to_yaml(&heading), Some(self.nc))?;
        for &(name, text) in ZOO {
            let known = Self::from_yaml(name, Source::Embedded(name), text.to_owned(), Some(self.nc))?;
            if known.same_rows(&model) {
                model = known;
                break;
            }
        }
        model.head_mut().towers.iter_mut().for_each(|tower| tower.hidden = hidden);
        Ok(model)
    }

    /// True where both models compute the same from equal tensors under equal names.
    pub(crate) fn same_rows(&self, other: &Model) -> bool {
        let row = |l: &Layer| (l.inputs.clone(), l.repeats, l.module.clone(), l.arguments.clone());
        let alike = self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| row(a) == row(b));
        alike && self.channels == other.channels && self.activation() == other.activation()
    }
}

/// How a row of the new numbering names one of its inputs.
fn source_row(input: Option<usize>, index: usize, kept: &[bool], new_index: &[usize]) -> i64 {
    match input {
        Some(row) if kept[row] && new_index[row] + 1 != index => new_index[row] as i64,
        // The row before, or the picture, which only the first row reads.
        _ => -1,
    }
}
