//! `yolov9 detect`.

use super::{saved_to, values};
use crate::compute::Compute;
use crate::console::Console;
use crate::device;
use crate::failure::Failure;
use crate::reference_flags::{Flag, ReferenceFlags, Table, Values};
use clap::Args;
use std::path::PathBuf;
use train::{DetectOptions, Precision};

#[derive(Debug, Args)]
pub struct DetectArgs {
    /// Weights, such as runs/train/exp/weights/best.safetensors
    #[arg(long, value_name = "FILE", num_args = 1.., default_value = "yolo.safetensors")]
    weights: Vec<String>,
    /// Model of weights that do not say which they belong to: a YAML file, or a built-in one by name
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cfg: String,
    /// Data YAML with names of classes, for weights that hold none
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    data: String,
    /// An image, a folder, or a pattern such as 'photos/*.jpg'
    #[arg(long, default_value = "data/images")]
    source: String,
    /// Side of the network input in pixels, or height and width
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", num_args = 1..=2, default_values_t = [640])]
    imgsz: Vec<usize>,
    /// Leave out predictions below
    #[arg(long, visible_alias = "conf", value_name = "0..1", default_value_t = 0.25)]
    conf_thres: f64,
    /// IoU above which the weaker of two boxes is dropped
    #[arg(long, visible_alias = "iou", value_name = "0..1", default_value_t = 0.45)]
    iou_thres: f64,
    /// Most boxes an image
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_det: usize,
    /// Only these classes, by number
    #[arg(long, value_name = "CLASS", num_args = 1..)]
    classes: Option<Vec<usize>>,
    /// Boxes of different classes suppress each other
    #[arg(long)]
    agnostic_nms: bool,
    /// Images a step
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 1)]
    batch_size: usize,

    /// Write predictions as YOLO text files
    #[arg(long, help_heading = "Output")]
    save_txt: bool,
    /// With confidences in them
    #[arg(long, help_heading = "Output")]
    save_conf: bool,
    /// Write predictions as COCO results
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write decoded predictions before suppression as safetensors; inputs are squares then
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    save_raw: Option<PathBuf>,
    /// Draw no pictures
    #[arg(long, help_heading = "Output")]
    nosave: bool,
    /// Width of drawn lines in pixels [default: fits the picture]
    #[arg(long, value_name = "PIXELS", help_heading = "Output")]
    line_thickness: Option<usize>,
    /// Draw boxes without text
    #[arg(long, help_heading = "Output")]
    hide_labels: bool,
    /// Draw class names without confidences
    #[arg(long, help_heading = "Output")]
    hide_conf: bool,
    /// Folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs/detect", help_heading = "Output")]
    project: PathBuf,
    /// Name of the run; a number is appended where it is taken
    #[arg(long, default_value = "exp", help_heading = "Output")]
    name: String,
    /// Write into the existing folder of that name
    #[arg(long, help_heading = "Output")]
    exist_ok: bool,

    #[command(flatten)]
    compute: Compute,
    /// The same as --precision fp16
    #[arg(long, conflicts_with = "precision", help_heading = "Machine")]
    half: bool,

    #[command(flatten)]
    reference: ReferenceFlags<NotHere>,
}

#[derive(Debug)]
struct NotHere;

impl Table for NotHere {
    const FLAGS: &'static [Flag] = &[
        Flag::ignored("dnn", Values::None, "weights are run by this program, whatever the format"),
        Flag::ignored("view-img", Values::None, "no window is opened; look at the pictures in the folder"),
        Flag::ignored("update", Values::None, "weight files are never changed"),
        Flag::ignored("vid-stride", Values::One, "sources are images"),
        Flag::refused("augment", Values::None, "test-time augmentation is not supported", "leave the flag out"),
        Flag::refused("visualize", Values::None, "feature maps are not drawn", "leave the flag out"),
        Flag::refused(
            "save-crop",
            Values::None,
            "boxes are not cut out",
            "use --save-txt or --json for their coordinates",
        ),
    ];
}

/// Detects.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: DetectArgs) -> Result<(), Failure> {
    args.reference.answer()?;
    let options = DetectOptions {
        weights: values::one_weights_file(args.weights)?,
        cfg: values::optional_path(&args.cfg),
        data: values::optional_path(&args.data),
        source: args.source,
        imgsz: args.imgsz,
        conf_thres: args.conf_thres,
        iou_thres: args.iou_thres,
        max_det: args.max_det,
        device: args.compute.device,
        precision: if args.half { Precision::Fp16 } else { args.compute.precision },
        batch_size: args.batch_size,
        save_txt: args.save_txt,
        save_conf: args.save_conf,
        json: args.json,
        save_raw: args.save_raw,
        nosave: args.nosave,
        classes: args.classes,
        agnostic_nms: args.agnostic_nms,
        project: args.project,
        name: args.name,
        exist_ok: args.exist_ok,
        line_thickness: args.line_thickness,
        hide_labels: args.hide_labels,
        hide_conf: args.hide_conf,
        ..DetectOptions::default()
    };
    device::announce();
    let summary = train::detect(&options, &mut Console::default())?;
    saved_to(&summary.folder);
    Ok(())
}
