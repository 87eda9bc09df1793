//! What a user may ask for: one plain struct a command, with the defaults of the reference trainer.
//!
//! The serialised names are the reference's (`opt.yaml`), so that its users find what they know.

use crate::Workers;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Options of [`crate::run`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainOptions {
    /// Weights to start from; `None` (an empty `--weights ''`) starts from scratch.
    pub weights: Option<PathBuf>,
    /// Model YAML: a path, or the name of an embedded model (`yolov9-s`, `models/detect/yolov9-s.yaml`).
    /// `None` takes the model of the weights.
    pub cfg: Option<PathBuf>,
    /// Data YAML.
    pub data: PathBuf,
    /// Hyper-parameter YAML: a path, or the name of an embedded file.
    pub hyp: PathBuf,
    /// Epochs in all.
    pub epochs: usize,
    /// Images a step; -1 asks for the largest that leaves 5 % of the free memory, and becomes its number.
    pub batch_size: i64,
    /// Side of the network input in pixels; rounded up to a multiple of the largest stride.
    pub imgsz: usize,
    /// Rectangular training: no mosaic, no shuffling, one shape a batch.
    pub rect: bool,
    /// Continue a run.
    pub resume: Option<Resume>,
    /// Write the checkpoint only after the last epoch.
    pub nosave: bool,
    /// Validate only after the last epoch.
    pub noval: bool,
    /// Write no pictures.
    pub noplots: bool,
    /// Where decoded pictures stay between epochs.
    pub cache: Cache,
    /// `cpu`, the number of a card, or `auto` (as empty text) for the first card where there is one.
    pub device: String,
    /// Sizes between half and one and a half of `imgsz`.
    pub multi_scale: bool,
    /// Images of rare and badly found classes are drawn more often.
    pub image_weights: bool,
    /// All classes are one.
    pub single_cls: bool,
    pub optimizer: Optimizer,
    /// Threads that load images.
    pub workers: Workers,
    /// Folder of runs.
    pub project: PathBuf,
    /// Name of the run; a number is appended where it is taken.
    pub name: String,
    /// Write into an existing folder of this name.
    pub exist_ok: bool,
    /// Cosine instead of linear decay of the learning rate.
    pub cos_lr: bool,
    /// Constant for half of the epochs, then cosine.
    pub flat_cos_lr: bool,
    /// Constant learning rate.
    pub fixed_lr: bool,
    /// Epochs without improvement before the run stops; 0 never stops.
    pub patience: usize,
    /// Layers that are not trained: one number N freezes the first N layers, several name layers.
    pub freeze: Vec<usize>,
    /// Keep a checkpoint every N epochs; below 1 keeps none.
    pub save_period: i64,
    /// Seed of weights and augmentation.
    pub seed: u64,
    /// Images with fewer labels are left out.
    pub min_items: usize,
    /// Mosaic (and with it mixup and copy-paste) off for the last N epochs.
    pub close_mosaic: usize,
    pub precision: Precision,
    /// Where the other pictures of a mosaic or mixup come from.
    pub partners: Partners,
    /// Label smoothing E in [0, 1) of anchors with an object; goes before the hyper-parameter of that name.
    pub label_smoothing: f64,
    /// Batches of a step, instead of as many as make up `nominal_batch`.
    pub gradient_accumulation_steps: Option<usize>,
    /// Whether learning rates grow with the images of a step.
    pub lr_scale: LrScale,
    /// Images of a step that the rates of the hyper-parameters are meant for; `None` is `nominal_batch`.
    pub lr_base_batch: Option<usize>,
    /// Most bytes of the step's arena (activations, their gradients, workspace): parts of the forward pass are
    /// computed twice where needed. Weights, the validation's arena and pictures come on top.
    pub memory_budget: Option<u64>,
    /// Bytes of memory that the run may take, of the card's where one computes; `None` asks the system.
    #[serde(skip)]
    pub memory_available: Option<u64>,
    /// Folder of the pictures of [`Cache::Disk`]; `None` takes `pictures` in the user's cache folder.
    #[serde(skip)]
    pub picture_folder: Option<PathBuf>,
    /// Long names of the flags that the user gave, such as `batch-size`. `--resume` needs them to tell a wish from
    /// a default.
    #[serde(skip)]
    pub given: Vec<String>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            weights: None,
            cfg: None,
            data: PathBuf::from("data/coco.yaml"),
            hyp: PathBuf::from("data/hyps/hyp.scratch-high.yaml"),
            epochs: 100,
            batch_size: 16,
            imgsz: 640,
            rect: false,
            resume: None,
            nosave: false,
            noval: false,
            noplots: false,
            cache: Cache::None,
            device: String::new(),
            multi_scale: false,
            image_weights: false,
            single_cls: false,
            optimizer: Optimizer::Sgd,
            workers: Workers::default(),
            project: PathBuf::from("runs/train"),
            name: "exp".to_owned(),
            exist_ok: false,
            cos_lr: false,
            flat_cos_lr: false,
            fixed_lr: false,
            patience: 100,
            freeze: vec![0],
            save_period: -1,
            seed: 0,
            min_items: 0,
            close_mosaic: 0,
            precision: Precision::Auto,
            partners: Partners::default(),
            label_smoothing: 0.0,
            gradient_accumulation_steps: None,
            lr_scale: LrScale::None,
            lr_base_batch: None,
            memory_budget: None,
            memory_available: None,
            picture_folder: None,
            given: Vec::new(),
        }
    }
}

/// Which run to continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// The newest `last.safetensors` below `runs/`.
    Newest,
    /// A checkpoint, or the folder of a run.
    From(PathBuf),
}

/// Where decoded pictures stay between epochs. Speed only: results do not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Those that mosaics may need soon stay in memory all the same, within a quarter of what is free.
    #[default]
    None,
    /// As many as fit into four fifths of the free memory.
    Ram,
    /// All of them in files in the user's cache folder, also for later runs. In memory as without a wish.
    Disk,
    /// Those of the validation in memory, as many as fit; those of the training as without a wish.
    Val,
    /// All of the training on the card, which is checked before the first batch; those of the validation as with
    /// [`Self::Val`].
    Gpu,
    /// As [`Self::Gpu`] where the card has room, otherwise as [`Self::Ram`] where the memory has, otherwise as without
    /// a wish. Writes nothing to the disk.
    Auto,
}

/// Where the other pictures of a mosaic or mixup come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Partners {
    /// From this many images before it in the order of the epoch: an image is then decoded once or twice an epoch
    /// also where the set does not fit into memory. Smaller sets are drawn from as a whole.
    Window(usize),
    /// From the whole set, as in the reference.
    Fresh,
}

impl Default for Partners {
    fn default() -> Self {
        Self::Window(1024)
    }
}

impl Partners {
    pub(crate) fn of_the_recipes(self) -> data::Partners {
        match self {
            Self::Window(images) => data::Partners::Window(images),
            Self::Fresh => data::Partners::WholeSet,
        }
    }
}

impl fmt::Display for Partners {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Window(images) => write!(f, "window:{images}"),
            Self::Fresh => f.write_str("fresh"),
        }
    }
}

impl FromStr for Partners {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let window = text.strip_prefix("window:").and_then(|n| n.parse().ok()).filter(|&n| n > 0);
        match (text, window) {
            ("fresh", _) => Ok(Self::Fresh),
            (_, Some(images)) => Ok(Self::Window(images)),
            _ => Err(format!("'{text}' is neither fresh nor window:N with N above 0")),
        }
    }
}

impl TryFrom<String> for Partners {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Partners> for String {
    fn from(partners: Partners) -> Self {
        partners.to_string()
    }
}

/// Update rule of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Optimizer {
    /// Nesterov momentum.
    #[default]
    #[serde(rename = "SGD")]
    Sgd,
    Adam,
    /// Decoupled weight decay, amsgrad.
    AdamW,
    #[serde(rename = "LION")]
    Lion,
}

impl Optimizer {
    /// The graph's name for it.
    pub fn kind(self) -> graph::OptimizerKind {
        match self {
            Self::Sgd => graph::OptimizerKind::Sgd,
            Self::Adam => graph::OptimizerKind::Adam,
            Self::AdamW => graph::OptimizerKind::AdamW,
            Self::Lion => graph::OptimizerKind::Lion,
        }
    }

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sgd => "SGD",
            Self::Adam => "Adam",
            Self::AdamW => "AdamW",
            Self::Lion => "LION",
        }
    }
}

/// Whether learning rates grow with the images of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrScale {
    /// As the hyper-parameters say.
    #[default]
    None,
    /// `lr0` and `warmup_bias_lr` times batch times batches of a step, divided by the base batch (Goyal et al. 2017,
    /// arXiv 1706.02677).
    Linear,
}

/// How a card stores feature maps and multiplies. Statistics, loss and master weights are float32 in any case, and so is
/// everything on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Half precision: bf16 in training where the card has it, fp16 in inference.
    #[default]
    Auto,
    F32,
    /// Stored as float32, multiplied with 10 bits after the point.
    Tf32,
    Bf16,
    /// In training with a loss scale that follows the gradients.
    Fp16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::F32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "fp32" | "f32" | "float32" => Ok(Self::F32),
            "tf32" => Ok(Self::Tf32),
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "fp16" | "f16" | "float16" | "half" => Ok(Self::Fp16),
            _ => Err(format!("'{text}' is none of auto, fp32, tf32, bf16, fp16")),
        }
    }
}

/// Which part of the data set is validated on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    Train,
    #[default]
    Val,
    Test,
}

/// Options of [`crate::validate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ValOptions {
    /// Data YAML.
    pub data: PathBuf,
    /// Weights file.
    pub weights: PathBuf,
    /// Model of weights that do not say which they belong to: a YAML file, or an embedded model by name.
    pub cfg: Option<PathBuf>,
    pub batch_size: usize,
    /// Long side of the network input in pixels.
    pub imgsz: usize,
    /// Predictions below are not counted.
    pub conf_thres: f64,
    /// IoU above which NMS drops the weaker of two boxes.
    pub iou_thres: f64,
    /// Most predictions an image.
    pub max_det: usize,
    pub task: Task,
    /// As [`TrainOptions::device`].
    pub device: String,
    pub precision: Precision,
    pub workers: usize,
    pub single_cls: bool,
    /// Rows per class, also for more than 50 classes.
    pub verbose: bool,
    /// Predictions as YOLO text files.
    pub save_txt: bool,
    /// With confidences in them.
    pub save_conf: bool,
    /// Predictions as COCO results.
    pub save_json: bool,
    /// Write no pictures.
    pub noplots: bool,
    pub project: PathBuf,
    pub name: String,
    pub exist_ok: bool,
    /// Images with fewer labels are left out.
    pub min_items: usize,
    /// Batches of one aspect ratio in the smallest rectangle that fits; otherwise squares.
    pub rect: bool,
    /// Bytes of memory that may be taken, of the card's where one computes; `None` asks the system.
    #[serde(skip)]
    pub memory_available: Option<u64>,
}

impl Default for ValOptions {
    fn default() -> Self {
        Self {
            data: PathBuf::from("data/coco.yaml"),
            weights: PathBuf::from("yolo.safetensors"),
            cfg: None,
            batch_size: 32,
            imgsz: 640,
            conf_thres: 0.001,
            iou_thres: 0.7,
            max_det: 300,
            task: Task::Val,
            device: String::new(),
            precision: Precision::Auto,
            workers: 8,
            single_cls: false,
            verbose: false,
            save_txt: false,
            save_conf: false,
            save_json: false,
            noplots: false,
            project: PathBuf::from("runs/val"),
            name: "exp".to_owned(),
            exist_ok: false,
            min_items: 0,
            rect: true,
            memory_available: None,
        }
    }
}

/// Options of [`crate::detect`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DetectOptions {
    /// Weights file.
    pub weights: PathBuf,
    /// Model of weights that do not say which they belong to: a YAML file, or an embedded model by name.
    pub cfg: Option<PathBuf>,
    /// Data YAML whose class names stand in for those that the weights do not hold.
    pub data: Option<PathBuf>,
    /// An image, a folder of images, or a pattern with `*`.
    pub source: String,
    /// Side of the network input in pixels, or height and width.
    pub imgsz: Vec<usize>,
    /// Predictions below are left out.
    pub conf_thres: f64,
    /// IoU above which NMS drops the weaker of two boxes.
    pub iou_thres: f64,
    /// Most predictions an image.
    pub max_det: usize,
    /// As [`TrainOptions::device`].
    pub device: String,
    pub precision: Precision,
    /// Images a step; only images of one network shape share a step.
    pub batch_size: usize,
    /// Predictions as YOLO text files below `labels/`.
    pub save_txt: bool,
    /// With confidences in them.
    pub save_conf: bool,
    /// Predictions as COCO results in `predictions.json`.
    pub json: bool,
    /// Decoded predictions before NMS, as one safetensors tensor `predictions` (images, 4 + nc, anchors).
    pub save_raw: Option<PathBuf>,
    /// Draw no pictures.
    pub nosave: bool,
    /// Only these classes.
    pub classes: Option<Vec<usize>>,
    /// Boxes of different classes suppress each other.
    pub agnostic_nms: bool,
    pub project: PathBuf,
    pub name: String,
    pub exist_ok: bool,
    /// Width of drawn lines in pixels; `None` fits the picture.
    pub line_thickness: Option<usize>,
    pub hide_labels: bool,
    pub hide_conf: bool,
    /// Bytes of memory that may be taken, of the card's where one computes; `None` asks the system.
    #[serde(skip)]
    pub memory_available: Option<u64>,
}

impl Default for DetectOptions {
    fn default() -> Self {
        Self {
            weights: PathBuf::from("yolo.safetensors"),
            cfg: None,
            data: None,
            source: "data/images".to_owned(),
            imgsz: vec![640],
            conf_thres: 0.25,
            iou_thres: 0.45,
            max_det: 1000,
            device: String::new(),
            precision: Precision::Auto,
            batch_size: 1,
            save_txt: false,
            save_conf: false,
            json: false,
            save_raw: None,
            nosave: false,
            classes: None,
            agnostic_nms: false,
            project: PathBuf::from("runs/detect"),
            name: "exp".to_owned(),
            exist_ok: false,
            line_thickness: None,
            hide_labels: false,
            hide_conf: false,
            memory_available: None,
        }
    }
}
