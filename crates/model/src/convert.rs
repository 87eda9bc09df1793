//! Weights in another form: without the auxiliary branch, folded, with the description of their model.

use crate::error::{ModelError, Result};
use crate::fit::fit;
use crate::fold::fold;
use crate::model::{Branches, Model};
use crate::state::NamedTensors;
use crate::weights::{Weights, WeightsMeta};

/// What to do to weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConvertOptions {
    /// Model of weights that do not say which they belong to.
    pub cfg: Option<String>,
    /// Keep the auxiliary branch, which only training needs.
    pub keep_aux: bool,
    /// Fold batch norms and RepConvN into single convolutions: such weights run as they are and cannot be trained.
    pub fold: bool,
    /// Names of the classes, in place of those of the file.
    pub names: Option<Vec<String>>,
}

/// Converted weights.
#[derive(Debug)]
pub struct Converted {
    pub model: Model,
    pub tensors: NamedTensors,
    pub meta: WeightsMeta,
    /// Tensors of the file that were left out: those of the auxiliary branch.
    pub dropped: usize,
    /// What a user may want to know, a line each.
    pub notes: Vec<String>,
}

/// Converts weights. Predictions of the main branch stay the same: removing a branch only renames tensors, and folding
/// rounds once.
///
/// # Errors
/// What [`fit()`] refuses, and another number of names than classes.
pub fn convert(weights: &Weights, options: &ConvertOptions, what: &str) -> Result<Converted> {
    let fitted = fit(weights, options.cfg.as_deref(), what)?;
    let names = options.names.clone().unwrap_or(fitted.names);
    if names.len() != fitted.model.nc {
        let message = format!("{} class names for {} classes", names.len(), fitted.model.nc);
        return Err(ModelError::Misfit {
            what: what.to_owned(),
            model: fitted.model.name,
            detail: message,
            hint: "one name a class is needed".to_owned(),
        });
    }
    let before = fitted.tensors.len();
    let single = if options.keep_aux { None } else { fitted.model.single_branch()? };
    let (model, tensors) = match single {
        Some(single) => {
            let tensors = single.convert(&fitted.tensors)?;
            (single.model, tensors)
        }
        None if options.keep_aux && fitted.model.has_aux() && fitted.branches == Branches::Main => {
            return Err(ModelError::Misfit {
                what: what.to_owned(),
                model: fitted.model.name,
                detail: "its auxiliary branch is gone already".to_owned(),
                hint: "leave --keep-aux out".to_owned(),
            });
        }
        None => (fitted.model, fitted.tensors),
    };
    let dropped = before - tensors.len();
    let folds = options.fold && !fitted.folded;
    let tensors = if folds { fold(&tensors)? } else { tensors };
    let mut meta = WeightsMeta::of(&model, names, fitted.folded || options.fold);
    meta.extra = weights.meta.as_ref().map(|m| m.extra.clone()).unwrap_or_default();
    Ok(Converted { model, tensors, meta, dropped, notes: fitted.notes })
}
