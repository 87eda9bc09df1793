//! One file that holds a run: weights that anyone can use, and what the run needs to go on bit for bit.
//!
//! `last.safetensors` is a weight file (the averaged weights under the reference's names, the model's
//! description in the metadata) with further tensors whose names start with [`RESUME`]: the raw weights, the
//! optimiser's state, and gradients that wait for a step. Both parts lie in one file because two files could
//! disagree. It is written to a temporary file, synced and renamed, so that the file before survives a full disk.
//! `best.safetensors` holds the averaged weights only.

use crate::TrainError;
use crate::early_stopping::EarlyStopping;
use crate::hyp::Hyp;
use crate::options::TrainOptions;
use crate::schedule::Accumulator;
use crate::summary::Metrics;
use graph::{Executor, ParamGroup, ParamLayout, Region};
use model::weights::{self, Weights, WeightsMeta};
use model::{Model, NamedTensors, StateEntry, StateKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Start of the names of tensors that only a resumed run reads.
pub const RESUME: &str = "resume/";
/// Key of the run's state in the metadata.
const STATE_KEY: &str = "run";
/// Key of the hyper-parameters in the metadata.
pub const HYP_KEY: &str = "hyp";
/// Version of [`RunState`].
const VERSION: u32 = 2;

/// Everything of a run that is not a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    pub version: u32,
    /// Epoch that comes next or is under way.
    pub epoch: usize,
    /// Batches of that epoch that are done.
    pub batch: usize,
    /// Sums of box, class and DFL loss over those batches.
    pub loss_sums: [f64; 3],
    pub accumulator: Accumulator,
    /// Optimiser steps so far, which are also the updates of the average.
    pub updates: u64,
    pub stopping: EarlyStopping,
    /// The run ended because no epoch was better for too long.
    pub stopped_early: bool,
    /// Metrics of the best epoch.
    pub best: Option<Metrics>,
    /// Images of the training part, and a digest of their names, sizes and labels.
    pub images: usize,
    pub digest: String,
    /// A digest of the validation part, where there is one.
    pub val_digest: Option<String>,
    /// mAP50-95 by class of the last validation, for `--image-weights`; empty before it and without the flag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_maps: Vec<f64>,
    /// Of gradients in fp16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<SavedLossScale>,
    /// Which way a card computed each convolution.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub convolutions: BTreeMap<String, String>,
    pub options: TrainOptions,
    /// The folder that relative paths of the options start from.
    #[serde(default)]
    pub started_in: PathBuf,
    pub hyp: Hyp,
    /// The initial weights were random or came from another model, for the record.
    pub origin: String,
}

/// [`graph::LossScale`] in a file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedLossScale {
    pub scale: f32,
    pub good_commits: u32,
}

impl From<graph::LossScale> for SavedLossScale {
    fn from(of: graph::LossScale) -> Self {
        Self { scale: of.scale, good_commits: of.good_commits }
    }
}

impl SavedLossScale {
    /// `None` where the file holds no scale that could have been.
    pub fn usable(self) -> Option<graph::LossScale> {
        let sound = (1.0..=graph::LossScale::MOST).contains(&self.scale) && self.scale.log2().fract() == 0.0;
        sound.then_some(graph::LossScale { scale: self.scale, good_commits: self.good_commits })
    }
}

impl RunState {
    /// The state before the first batch.
    pub fn new(options: TrainOptions, hyp: Hyp, images: usize, digest: String, origin: String) -> Self {
        Self {
            version: VERSION,
            epoch: 0,
            batch: 0,
            loss_sums: [0.0; 3],
            accumulator: Accumulator::default(),
            updates: 0,
            stopping: EarlyStopping::default(),
            stopped_early: false,
            best: None,
            images,
            digest,
            val_digest: None,
            class_maps: Vec::new(),
            loss_scale: None,
            convolutions: BTreeMap::new(),
            options,
            started_in: std::env::current_dir().unwrap_or_default(),
            hyp,
            origin,
        }
    }
}

/// The tensors of a run, by the reference's names.
#[derive(Clone, Debug, PartialEq)]
pub struct RunTensors {
    /// Averaged weights and running statistics: what is validated and published.
    pub ema: NamedTensors,
    /// Weights and running statistics as the optimiser sees them.
    pub raw: NamedTensors,
    /// State buffers of the optimiser.
    pub states: Vec<NamedTensors>,
    /// Gradients that wait, where there are any.
    pub gradients: Option<NamedTensors>,
}

impl RunTensors {
    /// Reads everything from the device. `counter` is the number of batches that the statistics have seen.
    ///
    /// # Errors
    /// What the executor refuses.
    pub fn from_device(
        executor: &dyn Executor,
        layout: &ParamLayout,
        entries: &[StateEntry],
        states: usize,
        pending: bool,
        counter: u64,
    ) -> Result<Self, TrainError> {
        let named = |weights: &[f32], buffers: &[f32], entries: &[StateEntry]| {
            let mut tensors = NamedTensors::zeros(entries);
            for entry in entries.iter().filter(|e| e.kind == StateKind::Counter) {
                if let Some(values) = tensors.values_mut(&entry.name) {
                    values.fill(counter as f32);
                }
            }
            tensors.gather(layout, weights, buffers);
            tensors
        };
        let trained: Vec<StateEntry> = entries.iter().filter(|e| e.kind == StateKind::Param).cloned().collect();
        let read = |region: Region| executor.read_region(region);
        let ema = named(&read(Region::EmaWeights)?, &read(Region::EmaBuffers)?, entries);
        let raw = named(&read(Region::Weights)?, &read(Region::Buffers)?, entries);
        let of_weights = |region: Region| -> Result<NamedTensors, TrainError> {
            let empty = vec![0.0; layout.buffer_elements()];
            Ok(named(&read(region)?, &empty, &trained))
        };
        let states = (0..states).map(|i| of_weights(Region::State(i))).collect::<Result<_, _>>()?;
        // Scales are powers of two: a device that has another one, or none, goes on with the same numbers.
        let scale = executor.loss_scale()?.map_or(1.0, |s| s.scale);
        let mut gradients = if pending { Some(of_weights(Region::Gradients)?) } else { None };
        gradients.iter_mut().for_each(|g| g.scale(1.0 / scale));
        Ok(Self { ema, raw, states, gradients })
    }

    /// Writes everything to the device.
    ///
    /// # Errors
    /// Tensors that do not fit the layout, or what the executor refuses.
    pub fn to_device(&self, executor: &mut dyn Executor, layout: &ParamLayout) -> Result<(), TrainError> {
        let (mut weights, mut buffers) = (vec![0.0; layout.weight_elements()], vec![0.0; layout.buffer_elements()]);
        self.ema.scatter(layout, &mut weights, &mut buffers)?;
        executor.write_region(Region::EmaWeights, &weights)?;
        executor.write_region(Region::EmaBuffers, &buffers)?;
        self.raw.scatter(layout, &mut weights, &mut buffers)?;
        executor.write_region(Region::Weights, &weights)?;
        executor.write_region(Region::Buffers, &buffers)?;
        for (i, state) in self.states.iter().enumerate() {
            executor.write_region(Region::State(i), &flat_weights(state, layout))?;
        }
        let scale = executor.loss_scale()?.map_or(1.0, |s| s.scale);
        let mut gradients = self.gradients.as_ref().map(|g| flat_weights(g, layout)).unwrap_or_default();
        gradients.iter_mut().for_each(|g| *g *= scale);
        gradients.resize(layout.weight_elements(), 0.0);
        executor.write_region(Region::Gradients, &gradients)?;
        Ok(())
    }
}

/// Values of the weights of a layout, zero where there are none.
fn flat_weights(tensors: &NamedTensors, layout: &ParamLayout) -> Vec<f32> {
    let mut flat = vec![0.0; layout.weight_elements()];
    for slot in layout.slots().iter().filter(|s| s.param.group != ParamGroup::Buffer) {
        let values =
            tensors.get(&slot.param.name).map(|t| &t.values).filter(|v| v.len() == slot.param.shape.elements());
        if let Some(values) = values {
            slot.scatter(values, &mut flat);
        }
    }
    flat
}

/// Writes `last.safetensors`.
///
/// # Errors
/// The disk's; the older file is left as it was then.
pub fn save_last(
    path: &Path,
    model: &Model,
    names: &[String],
    state: &RunState,
    tensors: RunTensors,
) -> Result<(), TrainError> {
    // Nothing is copied: a run's tensors may be a third of the memory there is.
    let mut all = tensors.ema;
    let mut add = |part: &str, tensors: NamedTensors| -> Result<(), TrainError> {
        for (name, tensor) in tensors {
            all.insert(format!("{RESUME}{part}/{name}"), tensor.dims, tensor.values)?;
        }
        Ok(())
    };
    add("weights", tensors.raw)?;
    for (i, state) in tensors.states.into_iter().enumerate() {
        add(&format!("state{i}"), state)?;
    }
    if let Some(gradients) = tensors.gradients {
        add("gradients", gradients)?;
    }
    let mut meta = WeightsMeta::of(model, names.to_vec(), false);
    let text = serde_json::to_string(state).map_err(|e| TrainError::Checkpoint {
        path: path.to_path_buf(),
        message: format!("the run's state cannot be written: {e}"),
    })?;
    meta.extra.insert(STATE_KEY.to_owned(), text);
    describe(&mut meta, state, state.epoch);
    Ok(weights::save(path, &all, &meta)?)
}

/// Writes `best.safetensors` or the like: averaged weights only, trained for `epochs` epochs.
///
/// # Errors
/// The disk's.
pub fn save_weights(
    path: &Path,
    model: &Model,
    names: &[String],
    state: &RunState,
    epochs: usize,
    ema: &NamedTensors,
) -> Result<(), TrainError> {
    let mut meta = WeightsMeta::of(model, names.to_vec(), false);
    describe(&mut meta, state, epochs);
    Ok(weights::save(path, ema, &meta)?)
}

fn describe(meta: &mut WeightsMeta, state: &RunState, epochs: usize) {
    meta.extra.insert("epochs".to_owned(), epochs.to_string());
    meta.extra.insert(HYP_KEY.to_owned(), state.hyp.to_yaml());
    meta.extra.insert("imgsz".to_owned(), state.options.imgsz.to_string());
}

/// The model of a weight file and its weights, with what is worth telling about them.
///
/// `cfg` names the model where the file does not say, or overrules it.
///
/// # Errors
/// As [`load_weights`]; weights that fill no model.
pub fn load_fitted(
    path: &Path,
    cfg: Option<&Path>,
    observer: &mut dyn crate::Observer,
) -> Result<LoadedWeights, TrainError> {
    let weights = load_weights(path)?;
    weights.notes.iter().for_each(|note| observer.info(note));
    warn_not_finite(path, &weights.tensors, observer);
    let cfg = cfg.map(|cfg| cfg.to_string_lossy().into_owned());
    let fitted = model::fit(&weights, cfg.as_deref(), &path.display().to_string())?;
    fitted.notes.iter().for_each(|note| observer.info(note));
    Ok(LoadedWeights { meta: weights.meta, fitted })
}

/// A weight file whose model is found.
#[derive(Debug)]
pub struct LoadedWeights {
    /// `None` for files without a description.
    pub meta: Option<WeightsMeta>,
    pub fitted: model::Fitted,
}

/// A weight file without the tensors of a run.
///
/// # Errors
/// [`TrainError::Missing`] where there is no file; damage is named with bytes.
pub fn load_weights(path: &Path) -> Result<Weights, TrainError> {
    let loaded = load_any(path)?;
    let mut tensors = NamedTensors::new();
    for (name, tensor) in loaded.tensors.iter().filter(|(name, _)| !name.starts_with(RESUME)) {
        tensors.insert(name, tensor.dims.clone(), tensor.values.clone())?;
    }
    Ok(Weights { tensors, meta: loaded.meta, notes: loaded.notes })
}

fn load_any(path: &Path) -> Result<Weights, TrainError> {
    if !path.is_file() {
        let hint = "weights come out of training (runs/train/NAME/weights/best.safetensors); checkpoints of \
                    the reference trainer (.pt) are read too";
        return Err(TrainError::Missing { what: "the weight file", path: path.to_path_buf(), hint: Some(hint.into()) });
    }
    weights::load(path).map_err(|e| match e {
        model::ModelError::Truncated { path, have, need } => TrainError::Truncated { path, have, need },
        other => other.into(),
    })
}

/// A checkpoint of a run.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub meta: WeightsMeta,
    pub state: RunState,
    pub tensors: RunTensors,
}

impl Checkpoint {
    /// The model that is trained.
    ///
    /// # Errors
    /// Averaged weights that do not fill it.
    pub fn model(&self, path: &Path) -> Result<Model, TrainError> {
        let weights = Weights { tensors: self.tensors.ema.clone(), meta: Some(self.meta.clone()), notes: Vec::new() };
        Ok(model::fit(&weights, None, &path.display().to_string())?.model)
    }
}

/// Reads `last.safetensors` in full.
///
/// # Errors
/// Damage, a file without a run's state (such as best.safetensors), a state of a newer program.
pub fn load_last(path: &Path) -> Result<Checkpoint, TrainError> {
    let loaded = load_any(path)?;
    let broken = |message: String| TrainError::Checkpoint { path: path.to_path_buf(), message };
    let stripped = || TrainError::Resume {
        path: path.to_path_buf(),
        message: "it holds weights only".to_owned(),
        hint: Some("resume from last.safetensors, or start a new run with --weights".to_owned()),
    };
    let meta = loaded.meta.ok_or_else(stripped)?;
    let text = meta.extra.get(STATE_KEY).ok_or_else(stripped)?;
    let version: Version = serde_json::from_str(text).map_err(|e| broken(format!("the run's state: {e}")))?;
    if version.version != VERSION {
        return Err(broken(format!("its state has version {}, this program reads {VERSION}", version.version)));
    }
    let state: RunState = serde_json::from_str(text).map_err(|e| broken(format!("the run's state: {e}")))?;
    let (mut ema, mut raw, mut gradients) = (NamedTensors::new(), NamedTensors::new(), NamedTensors::new());
    let mut states = vec![NamedTensors::new(); state.options.optimizer.kind().states()];
    for (name, tensor) in loaded.tensors {
        let (part, name) = match name.strip_prefix(RESUME).map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
            None => (Some(&mut ema), name.as_str()),
            Some(("weights", name)) => (Some(&mut raw), name),
            Some(("gradients", name)) => (Some(&mut gradients), name),
            Some((part, name)) => {
                let index = part.strip_prefix("state").and_then(|i| i.parse::<usize>().ok());
                (index.and_then(|i| states.get_mut(i)), name)
            }
        };
        if let Some(part) = part {
            part.insert(name, tensor.dims, tensor.values)?;
        }
    }
    let tensors = RunTensors { ema, raw, states, gradients: Some(gradients).filter(|g| !g.is_empty()) };
    if tensors.states.iter().any(NamedTensors::is_empty)
        || (state.accumulator.pending > 0 && tensors.gradients.is_none())
    {
        return Err(broken("its optimiser state is incomplete".to_owned()));
    }
    Ok(Checkpoint { meta, state, tensors })
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The checkpoint that `--resume` means: the newest `last.safetensors` below `root`.
///
/// # Errors
/// [`TrainError::Missing`] where there is none.
pub fn newest_last(root: &Path) -> Result<PathBuf, TrainError> {
    let mut newest: Option<(std::time::SystemTime, PathBuf)> = None;
    let mut folders = vec![(root.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && depth < 8 {
                folders.push((path, depth + 1));
            } else if entry.file_name() == "last.safetensors"
                && let Ok(time) = entry.metadata().and_then(|m| m.modified())
                && newest.as_ref().is_none_or(|(best, at)| (time, &path) > (*best, at))
            {
                newest = Some((time, path));
            }
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| TrainError::Missing {
        what: "a checkpoint last.safetensors below",
        path: root.to_path_buf(),
        hint: Some("name one: --resume runs/train/NAME/weights/last.safetensors".to_owned()),
    })
}

/// The checkpoint of a path that may be a run's folder.
///
/// # Errors
/// Nothing of that name, or a folder without a checkpoint.
pub fn checkpoint_of(path: &Path) -> Result<PathBuf, TrainError> {
    let inside = path.join("weights").join("last.safetensors");
    if inside.is_file() {
        return Ok(inside);
    }
    let refuse = |message: &str| TrainError::Resume {
        path: path.to_path_buf(),
        message: message.to_owned(),
        hint: Some("name a run's folder, such as runs/train/exp, or its weights/last.safetensors".to_owned()),
    };
    if path.is_dir() {
        return Err(refuse("the folder holds no weights/last.safetensors"));
    }
    if !path.exists() {
        return Err(refuse("there is no such run"));
    }
    Ok(path.to_path_buf())
}

/// Warns of weights that are not numbers: whatever is computed from them is not either.
pub fn warn_not_finite(path: &Path, tensors: &NamedTensors, observer: &mut dyn crate::Observer) {
    let broken: Vec<&str> =
        tensors.iter().filter(|(_, t)| !t.values.iter().all(|v| v.is_finite())).map(|(name, _)| name).collect();
    if let Some(first) = broken.first() {
        let count = broken.len();
        observer.warn(&format!("{}: {count} tensors hold values that are not finite, {first} first", path.display()));
    }
}
