//! `yolov9 val`.

use super::{saved_to, values};
use crate::compute::Compute;
use crate::console::Console;
use crate::device;
use crate::failure::Failure;
use crate::reference_flags::{Flag, ReferenceFlags, Table, Values};
use clap::Args;
use std::path::PathBuf;
use train::{Precision, Task, ValOptions};

#[derive(Debug, Args)]
pub struct ValArgs {
    /// Data YAML: where images are, names of classes
    #[arg(long, value_name = "FILE", default_value = "data/coco.yaml")]
    data: PathBuf,
    /// Weights, such as runs/train/exp/weights/best.safetensors
    #[arg(long, value_name = "FILE", num_args = 1.., default_value = "yolo.safetensors")]
    weights: Vec<String>,
    /// Model of weights that do not say which they belong to: a YAML file, or a built-in one by name
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cfg: String,
    /// Images a step
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = 32)]
    batch_size: usize,
    /// Long side of the network input in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = 640)]
    imgsz: usize,
    /// Predictions below are not counted
    #[arg(long, visible_alias = "conf", value_name = "0..1", default_value_t = 0.001)]
    conf_thres: f64,
    /// IoU above which the weaker of two boxes is dropped
    #[arg(long, visible_alias = "iou", value_name = "0..1", default_value_t = 0.7)]
    iou_thres: f64,
    /// Most predictions an image
    #[arg(long, value_name = "N", default_value_t = 300)]
    max_det: usize,
    /// Part of the data set
    #[arg(long, default_value = "val", value_parser = ["train", "val", "test", "speed", "study"], hide_possible_values = true)]
    task: String,
    /// Treat all classes as one
    #[arg(long)]
    single_cls: bool,
    /// Leave out images with fewer labels
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_items: usize,
    /// A row for each class, also where there are many
    #[arg(long)]
    verbose: bool,
    /// Square inputs instead of the smallest rectangle that fits
    #[arg(long)]
    no_rect: bool,

    /// Write predictions as YOLO text files
    #[arg(long, help_heading = "Output")]
    save_txt: bool,
    /// With confidences in them
    #[arg(long, help_heading = "Output")]
    save_conf: bool,
    /// Write predictions as COCO results
    #[arg(long, help_heading = "Output")]
    save_json: bool,
    /// Write no pictures
    #[arg(long, help_heading = "Output")]
    noplots: bool,
    /// Folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs/val", help_heading = "Output")]
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
    /// Threads that load images
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Machine")]
    workers: usize,

    #[command(flatten)]
    reference: ReferenceFlags<NotHere>,
}

#[derive(Debug)]
struct NotHere;

impl Table for NotHere {
    const FLAGS: &'static [Flag] = &[
        Flag::ignored("dnn", Values::None, "weights are run by this program, whatever the format"),
        Flag::refused("augment", Values::None, "test-time augmentation is not supported", "leave the flag out"),
        Flag::refused(
            "save-hybrid",
            Values::None,
            "labels are not mixed into predictions",
            "use --save-txt --save-conf",
        ),
    ];
}

/// Validates.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: ValArgs) -> Result<(), Failure> {
    args.reference.answer()?;
    let options = options(args)?;
    device::announce();
    let summary = train::validate(&options, &mut Console::default())?;
    saved_to(&summary.folder);
    Ok(())
}

fn options(args: ValArgs) -> Result<ValOptions, Failure> {
    let task = match args.task.as_str() {
        "train" => Task::Train,
        "val" => Task::Val,
        "test" => Task::Test,
        other => {
            let message = format!("--task {other}: sweeps over sizes and thresholds are not supported");
            return Err(Failure::usage(message, "run val once for each --imgsz"));
        }
    };
    Ok(ValOptions {
        data: args.data,
        weights: values::one_weights_file(args.weights)?,
        cfg: values::optional_path(&args.cfg),
        batch_size: args.batch_size,
        imgsz: args.imgsz,
        conf_thres: args.conf_thres,
        iou_thres: args.iou_thres,
        max_det: args.max_det,
        task,
        device: args.compute.device,
        precision: if args.half { Precision::Fp16 } else { args.compute.precision },
        workers: args.workers,
        single_cls: args.single_cls,
        verbose: args.verbose,
        save_txt: args.save_txt,
        save_conf: args.save_conf,
        save_json: args.save_json,
        noplots: args.noplots,
        project: args.project,
        name: args.name,
        exist_ok: args.exist_ok,
        min_items: args.min_items,
        rect: !args.no_rect,
        ..ValOptions::default()
    })
}
