//! `yolov9 train`.

use super::{saved_to, values};
use crate::compute::Compute;
use crate::console::{Console, out};
use crate::failure::{Failure, INTERRUPTED};
use crate::reference_flags::{Flag, ReferenceFlags, Table, Values};
use crate::{device, interrupt};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use train::{Cache, LrScale, Optimizer, Partners, Precision, Resume, TrainEnd, TrainOptions, Workers};

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// Data YAML: where images are, names of classes
    #[arg(long, value_name = "FILE", default_value = "data/coco.yaml", help_heading = "Model and data")]
    data: PathBuf,
    /// Model: a YAML file, or a built-in one by name such as yolov9-s
    #[arg(long, value_name = "FILE", default_value = "", help_heading = "Model and data", hide_default_value = true)]
    cfg: String,
    /// Weights to start from; '' starts from scratch
    #[arg(long, value_name = "FILE", default_value = "", help_heading = "Model and data", hide_default_value = true)]
    weights: String,
    /// Hyper-parameters: a YAML file, or a built-in one: hyp.scratch-low, -med and -high.yaml, hyp.demo.yaml
    #[arg(long, value_name = "FILE", default_value = "hyp.scratch-high.yaml", help_heading = "Model and data")]
    hyp: PathBuf,
    /// Treat all classes as one
    #[arg(long, help_heading = "Model and data")]
    single_cls: bool,
    /// Leave out images with fewer labels
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Model and data")]
    min_items: usize,

    /// Epochs in all
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Training")]
    epochs: usize,
    /// Images a step; auto (or -1) takes the largest batch that fits, by the plan and what is free
    #[arg(
        long,
        visible_alias = "batch",
        value_name = "N|auto",
        default_value = "16",
        value_parser = values::batch,
        allow_negative_numbers = true,
        help_heading = "Training"
    )]
    batch_size: i64,
    /// Side of the network input in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = 640, help_heading = "Training")]
    imgsz: usize,
    /// Update rule of the weights
    #[arg(long, default_value = "SGD", ignore_case = true, value_parser = optimizers(), help_heading = "Training")]
    optimizer: Optimizer,
    /// Learning rate falls along a cosine instead of a line
    #[arg(long, help_heading = "Training")]
    cos_lr: bool,
    /// Learning rate stays for half of the epochs, then falls along a cosine
    #[arg(long, help_heading = "Training")]
    flat_cos_lr: bool,
    /// Learning rate stays
    #[arg(long, help_heading = "Training")]
    fixed_lr: bool,
    /// Mosaic, mixup and copy-paste off for the last N epochs
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Training")]
    close_mosaic: usize,
    /// A network input between half and one and a half of --imgsz for each batch
    #[arg(long, help_heading = "Training")]
    multi_scale: bool,
    /// Draw images of rare and badly found classes more often
    #[arg(long, help_heading = "Training")]
    image_weights: bool,
    /// Rectangular batches without mosaic and shuffling
    #[arg(long, help_heading = "Training")]
    rect: bool,
    /// Do not train the first N layers, or the layers named
    #[arg(long, value_name = "N", num_args = 1.., default_values_t = [0], help_heading = "Training")]
    freeze: Vec<usize>,
    /// Stop after N epochs without improvement; 0 never stops
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Training")]
    patience: usize,
    /// Seed of weights and augmentation
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Training")]
    seed: u64,
    /// Where the other images of a mosaic come from: the N before it in the epoch's order, or the whole set (fresh)
    #[arg(long, value_name = "window:N|fresh", default_value_t = Partners::default(), help_heading = "Training")]
    partners: Partners,
    /// Class targets of anchors with an object: 1 - E/2 for its class and E/2 for the others, times the target score
    #[arg(long, value_name = "E", default_value_t = 0.0, help_heading = "Training")]
    label_smoothing: f64,
    /// Batches a step [default: as many as make up a nominal batch of 64]
    #[arg(long, value_name = "N", help_heading = "Training")]
    gradient_accumulation_steps: Option<usize>,
    /// Learning rates grow with the images of a step
    #[arg(long, value_name = "RULE", default_value = "none", value_parser = lr_scales(), help_heading = "Training")]
    lr_scale: LrScale,
    /// Images of a step that lr0 is meant for, for --lr-scale linear [default: the nominal batch]
    #[arg(long, value_name = "N", help_heading = "Training")]
    lr_base_batch: Option<usize>,
    /// Go on with the newest run, or with the one named
    #[arg(long, value_name = "RUN", num_args = 0..=1, default_missing_value = "", help_heading = "Training")]
    resume: Option<String>,

    /// Folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs/train", help_heading = "Output")]
    project: PathBuf,
    /// Name of the run; a number is appended where it is taken
    #[arg(long, default_value = "exp", help_heading = "Output")]
    name: String,
    /// Write into the existing folder of that name
    #[arg(long, help_heading = "Output")]
    exist_ok: bool,
    /// Validate after the last epoch only
    #[arg(long, help_heading = "Output")]
    noval: bool,
    /// Write weights after the last epoch only
    #[arg(long, help_heading = "Output")]
    nosave: bool,
    /// Write no pictures
    #[arg(long, help_heading = "Output")]
    noplots: bool,
    /// Keep the weights of every Nth epoch
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true, help_heading = "Output")]
    save_period: i64,

    #[command(flatten)]
    compute: Compute,
    /// Half precision on a GPU, as without a word about it
    #[arg(long, conflicts_with = "precision", help_heading = "Machine")]
    amp: bool,
    /// Threads that load images; auto fits the machine
    #[arg(long, value_name = "N|auto", default_value_t = Workers::default(), help_heading = "Machine")]
    workers: Workers,
    /// Keep decoded images between epochs: all in memory, in files of the user's cache folder, only those of the
    /// validation in memory, those of the training on the GPU, or wherever the machine has room
    #[arg(long, value_name = "WHERE", num_args = 0..=1, default_missing_value = "ram", value_parser = ["none", "ram", "disk", "val", "gpu", "auto"], help_heading = "Machine")]
    cache: Option<String>,
    /// Most bytes of the step's arena, such as 2GiB; weights, validation and images come on top. Parts of the forward
    /// pass are computed twice where needed
    #[arg(long, value_name = "BYTES", value_parser = values::bytes, help_heading = "Machine")]
    memory_budget: Option<u64>,

    #[command(flatten)]
    reference: ReferenceFlags<NotHere>,
}

pub(super) fn optimizers() -> impl TypedValueParser<Value = Optimizer> {
    const ALL: [Optimizer; 4] = [Optimizer::Sgd, Optimizer::Adam, Optimizer::AdamW, Optimizer::Lion];
    PossibleValuesParser::new(ALL.map(Optimizer::name))
        .map(|typed| ALL.into_iter().find(|o| o.name().eq_ignore_ascii_case(&typed)).unwrap_or_default())
}

fn lr_scales() -> impl TypedValueParser<Value = LrScale> {
    PossibleValuesParser::new(["none", "linear"])
        .map(|typed| if typed == "linear" { LrScale::Linear } else { LrScale::None })
}

#[derive(Debug)]
struct NotHere;

impl Table for NotHere {
    const FLAGS: &'static [Flag] = {
        use Values::{None, One, Optional};
        const LOGGERS: &str = "no online logger is contacted; results.csv in the run's folder has the numbers";
        &[
            Flag::ignored("local_rank", One, "it belongs to the launcher of several processes"),
            Flag::ignored("sync-bn", None, "one device holds the whole batch"),
            Flag::ignored("noautoanchor", None, "the model has no anchors to fit"),
            Flag::ignored("entity", One, LOGGERS),
            Flag::ignored("upload_dataset", Optional, LOGGERS),
            Flag::ignored("bbox_interval", One, LOGGERS),
            Flag::ignored("artifact_alias", One, LOGGERS),
            Flag::refused(
                "evolve",
                Optional,
                "hyper-parameters are not searched for",
                "run the search outside: one file for --hyp and one --name a try",
            ),
            Flag::refused("bucket", One, "runs are not uploaded", "copy the run's folder when it is done"),
            Flag::refused(
                "quad",
                None,
                "batches of quadruple size are not built",
                "a larger --imgsz has a similar use",
            ),
        ]
    };
}

/// Trains.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: TrainArgs, given: Vec<String>) -> Result<(), Failure> {
    args.reference.answer()?;
    device::announce();
    interrupt::graceful(true);
    let summary = train::run(&options(args, given), &mut Console::default())?;
    if summary.end == TrainEnd::Interrupted {
        saved_to(&summary.folder);
        out(&format!("stopped; go on with: yolov9 train --resume {}", values::quoted(&summary.folder)));
        return Err(Failure::silent(INTERRUPTED));
    }
    saved_to(&summary.folder);
    Ok(())
}

fn options(args: TrainArgs, given: Vec<String>) -> TrainOptions {
    TrainOptions {
        weights: values::optional_path(&args.weights),
        cfg: values::optional_path(&args.cfg),
        data: args.data,
        hyp: args.hyp,
        epochs: args.epochs,
        batch_size: args.batch_size,
        imgsz: args.imgsz,
        rect: args.rect,
        resume: args.resume.map(|run| values::optional_path(&run).map_or(Resume::Newest, Resume::From)),
        nosave: args.nosave,
        noval: args.noval,
        noplots: args.noplots,
        cache: match args.cache.as_deref() {
            Some("ram") => Cache::Ram,
            Some("disk") => Cache::Disk,
            Some("val") => Cache::Val,
            Some("gpu") => Cache::Gpu,
            Some("auto") => Cache::Auto,
            _ => Cache::None,
        },
        device: args.compute.device,
        precision: if args.amp { Precision::Auto } else { args.compute.precision },
        multi_scale: args.multi_scale,
        image_weights: args.image_weights,
        single_cls: args.single_cls,
        optimizer: args.optimizer,
        workers: args.workers,
        project: args.project,
        name: args.name,
        exist_ok: args.exist_ok,
        cos_lr: args.cos_lr,
        flat_cos_lr: args.flat_cos_lr,
        fixed_lr: args.fixed_lr,
        patience: args.patience,
        freeze: args.freeze,
        save_period: args.save_period,
        seed: args.seed,
        min_items: args.min_items,
        close_mosaic: args.close_mosaic,
        partners: args.partners,
        label_smoothing: args.label_smoothing,
        gradient_accumulation_steps: args.gradient_accumulation_steps,
        lr_scale: args.lr_scale,
        lr_base_batch: args.lr_base_batch,
        memory_budget: args.memory_budget,
        given,
        ..TrainOptions::default()
    }
}
