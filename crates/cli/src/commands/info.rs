//! `yolov9 info`.

use crate::console::out;
use crate::failure::Failure;
use clap::Args;
use model::Model;
use std::path::Path;

/// Largest side of the network input in pixels, as everywhere else.
const MAX_SIDE: usize = 16_384;

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A built-in model such as yolov9-s, a model YAML, or a weight file
    model: String,
    /// Model of a weight file that does not say which it belongs to
    #[arg(long, value_name = "MODEL")]
    cfg: Option<String>,
    /// Side of the network input in pixels, or height and width
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", num_args = 1..=2, default_values_t = [640])]
    imgsz: Vec<usize>,
    /// Number of classes [default: the model's own]
    #[arg(long, value_name = "N")]
    nc: Option<usize>,
}

/// Prints a model's rows and sizes.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    if let Some(side) = args.imgsz.iter().find(|side| !(1..=MAX_SIDE).contains(*side)) {
        let hint = "the sizes that models are trained for are about 320 to 1280";
        return Err(Failure::usage(format!("--img: {side} must be between 1 and {MAX_SIDE}"), hint));
    }
    let model = load(args)?;
    let (height, width) = match args.imgsz[..] {
        [height, width] => (height, width),
        _ => (args.imgsz[0], args.imgsz[0]),
    };
    out(model.info(height, width)?.table().trim_end());
    Ok(())
}

fn load(args: &InfoArgs) -> Result<Model, Failure> {
    let path = Path::new(&args.model);
    let suffix = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let weights = match suffix {
        "yaml" | "yml" => false,
        "safetensors" | "pt" | "pth" => true,
        _ => path.is_file(),
    };
    if !weights {
        return Ok(Model::load(&args.model, args.nc)?);
    }
    if args.nc.is_some() {
        let hint = "leave --nc out, or name a model YAML";
        return Err(Failure::usage("--nc: weights have the number of classes that they were trained for", hint));
    }
    let weights = train::load_weights(path)?;
    let fitted = model::fit(&weights, args.cfg.as_deref(), &args.model)?;
    fitted.notes.iter().for_each(|note| out(note));
    Ok(fitted.model)
}
