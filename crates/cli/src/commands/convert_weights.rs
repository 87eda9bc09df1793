//! `yolov9 convert-weights`.

use super::values;
use crate::console::{Console, out};
use crate::failure::Failure;
use clap::Args;
use model::{ConvertOptions, Model};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Weights: safetensors, or a PyTorch checkpoint (.pt), which is read and never run
    #[arg(long, value_name = "FILE")]
    weights: PathBuf,
    /// Model of weights that do not say which they belong to: a YAML file, or a built-in one by name
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cfg: String,
    /// Where to write: NAME.safetensors, or NAME.pt for a state dict that PyTorch reads
    /// [default: FILE-converted.safetensors]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep the auxiliary branch, which only training needs
    #[arg(long)]
    keep_aux: bool,
    /// Fold batch norms and RepConvN into single convolutions; such weights cannot be trained
    #[arg(long)]
    fold: bool,
    /// Write half-precision numbers
    #[arg(long)]
    half: bool,
    /// Data YAML whose class names replace those of the weights
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
}

/// What to write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Safetensors,
    Torch,
}

/// Converts.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: ConvertArgs) -> Result<(), Failure> {
    let output = args.output.clone().unwrap_or_else(|| beside(&args.weights));
    let format = format_of(&output)?;
    let same = output.canonicalize().is_ok_and(|o| args.weights.canonicalize().is_ok_and(|w| w == o));
    if same {
        return Err(Failure::usage("--output: the weights would be overwritten", "name another file"));
    }
    let names = match &args.data {
        Some(yaml) => Some(train::load_class_names(yaml, &mut Console::default())?),
        None => None,
    };
    let options = ConvertOptions {
        cfg: values::optional_path(&args.cfg).map(|p| p.to_string_lossy().into_owned()),
        keep_aux: args.keep_aux,
        fold: args.fold,
        names,
    };
    let weights = train::load_weights(&args.weights)?;
    weights.notes.iter().for_each(|note| out(note));
    let converted = model::convert(&weights, &options, &args.weights.display().to_string())?;
    converted.notes.iter().for_each(|note| out(note));
    match format {
        Format::Safetensors => model::weights::save_as(&output, &converted.tensors, &converted.meta, args.half)?,
        Format::Torch => model::pytorch::save_state_dict(&output, &converted.tensors, args.half)?,
    }
    let branch = match (converted.dropped, converted.model.has_aux()) {
        (0, true) => "both branches".to_owned(),
        (0, false) => "one branch".to_owned(),
        (dropped, _) => format!("the main branch; {dropped} tensors of the auxiliary branch are left out"),
    };
    let (model, nc, tensors) = (&converted.model.name, converted.model.nc, converted.tensors.len());
    let form = if converted.meta.folded { ", folded" } else { "" };
    out(&format!("{model}, {nc} classes, {tensors} tensors{form}: {branch}"));
    if format == Format::Torch {
        let use_it = match Model::load(model, None).is_ok() {
            true => format!("add --cfg {model}"),
            false => "write .safetensors instead, which holds the description".to_owned(),
        };
        out(&format!("a state dict says nothing about its model: to use it here, {use_it}"));
    }
    out(&format!("Results saved to {}", output.display()));
    Ok(())
}

/// `NAME-converted.safetensors` in the folder of the weights.
fn beside(weights: &Path) -> PathBuf {
    let stem = weights.file_stem().unwrap_or_default().to_string_lossy();
    weights.with_file_name(format!("{stem}-converted.safetensors"))
}

fn format_of(output: &Path) -> Result<Format, Failure> {
    let suffix = output.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    match suffix.as_str() {
        "safetensors" => Ok(Format::Safetensors),
        "pt" | "pth" => Ok(Format::Torch),
        _ => Err(Failure::usage(
            format!("--output {}: the suffix does not name a format", output.display()),
            "end it in .safetensors or .pt",
        )),
    }
}
