//! PyTorch's files: checkpoints and state dicts are read, state dicts are written.
//!
//! A `.pt` file is a zip archive with a pickle, which is a program that builds objects. Here it is parsed and never
//! run: classes and functions are names, their instances inert values (`value`), and only what tensors need is
//! understood (`calls`). So a checkpoint of whole pickled modules gives its tensors without the code of their
//! classes, and a hostile file can do no more than be refused.

mod archive;
mod calls;
mod danger;
mod describe;
mod module;
mod pickle;
mod scalar;
mod tensors;
mod value;
mod write;

pub use write::save_state_dict;

use crate::error::{ModelError, Result};
use crate::state::NamedTensors;
use crate::weights::Weights;
use archive::Archive;
use module::Taken;
use std::path::Path;
use value::{Id, Values};

/// Reads a checkpoint; see [`crate::weights::load`].
pub(crate) fn load(path: &Path) -> Result<Weights> {
    read(path).map_err(|message| ModelError::Format { path: path.to_owned(), message })
}

fn read(path: &Path) -> std::result::Result<Weights, String> {
    let mut archive = Archive::open(path)?;
    let bytes = archive.pickle()?;
    let (values, root) = pickle::parse(&bytes)?;
    let taken = module::find(&values, root)?;
    let mut tensors = NamedTensors::new();
    for ((name, _), tensor) in taken.tensors.iter().zip(tensors::read(&values, &taken.tensors, &mut archive)?) {
        tensors.insert(name.clone(), tensor.dims, tensor.values).map_err(|e| e.to_string())?;
    }
    let mut notes = notes(&values, root, &taken);
    let meta = match describe::meta(&values, root, &taken, &tensors, &mut archive, path) {
        Ok(meta) => Some(meta),
        Err(why) => {
            notes.push(why);
            None
        }
    };
    archive.verify_rest()?;
    Ok(Weights { tensors, meta, notes })
}

fn notes(values: &Values, root: Id, taken: &Taken) -> Vec<String> {
    let mut notes = Vec::new();
    let of_epoch = describe::epoch(values, root).map_or(String::new(), |e| format!(" of epoch {e}"));
    match taken.part {
        Some("ema") => notes.push(format!("the averaged weights (ema){of_epoch} are taken")),
        Some(part) => notes.push(format!("the weights under '{part}'{of_epoch} are taken")),
        None => {}
    }
    if taken.skipped > 0 {
        notes.push(format!("entries that are no tensors are left out: {}", taken.skipped));
    }
    notes
}
