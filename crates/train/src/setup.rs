//! What must be settled before the first batch: options checked, a run resumed or begun, model and weights found.

use crate::checkpoint::{self, Checkpoint};
use crate::fingerprint::Fingerprint;
use crate::hyp::Hyp;
use crate::schedule::{Decay, Schedule};
use crate::{LrScale, Observer, Resume, TrainError, TrainOptions};
use data::Dataset;
use model::{Model, NamedTensors, Transfer};
use report::number::format_g;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// `--batch` that asks for the largest that fits.
pub(crate) const AUTO_BATCH: i64 = -1;
/// Smallest side of the network input.
const MIN_SIZE: usize = 64;
/// Options that may change when a run goes on: they do not change what is computed, or only how far.
const CHANGEABLE: [&str; 13] = [
    "epochs",
    "workers",
    "device",
    "precision",
    "cache",
    "patience",
    "noval",
    "nosave",
    "noplots",
    "save_period",
    "data",
    "memory_budget",
    "resume",
];

/// Options with the checkpoint that they go on from.
pub(crate) struct Settled {
    pub options: TrainOptions,
    pub hyp: Hyp,
    pub resumed: Option<(PathBuf, Box<Checkpoint>)>,
}

/// Checks options and finds the run to go on with.
pub(crate) fn settle(wish: &TrainOptions, observer: &mut dyn Observer) -> Result<Settled, TrainError> {
    let Some(resume) = &wish.resume else {
        check(wish)?;
        if wish.nosave && wish.save_period > 0 {
            observer.warn("--save-period keeps nothing before the last epoch: --nosave does not write");
        }
        let loaded = Hyp::load(&wish.hyp)?;
        loaded.notes.iter().for_each(|note| observer.info(note));
        loaded.warnings.iter().for_each(|warning| observer.warn(warning));
        let (mut options, mut hyp) = (wish.clone(), loaded.hyp);
        // Both say the same from here on: what a flag does not ask for is the file's.
        let flag = options.label_smoothing != 0.0 || options.given.iter().any(|flag| flag == "label-smoothing");
        let smoothing = if flag { options.label_smoothing } else { hyp.label_smoothing };
        (options.label_smoothing, hyp.label_smoothing) = (smoothing, smoothing);
        return Ok(Settled { options, hyp, resumed: None });
    };
    let path = match resume {
        Resume::Newest => checkpoint::newest_last(Path::new("runs"))?,
        Resume::From(path) => checkpoint::checkpoint_of(path)?,
    };
    let saved = checkpoint::load_last(&path)?;
    let mut notes = Vec::new();
    let mut options = merge(&path, wish, &saved.state.options, observer, &mut notes)?;
    let moved = saved.state.started_in.join(&options.data);
    if options.data == saved.state.options.data && !options.data.exists() && moved.exists() {
        options.data = moved;
    }
    check(&options)?;
    let done = saved.state.epoch;
    let ended = |message: String, hint: String| TrainError::Resume { path: path.clone(), message, hint: Some(hint) };
    if done >= options.epochs {
        let message = format!("all {done} epochs of it are done");
        return Err(ended(message, format!("to train on, ask for more: --epochs {}", done + 10)));
    }
    if saved.state.stopped_early && saved.state.stopping.stops(done.saturating_sub(1), options.patience) {
        let (best, since) = (saved.state.stopping.best_epoch, done.saturating_sub(saved.state.stopping.best_epoch + 1));
        let message = format!("it stopped early: no improvement in the {since} epochs since epoch {best}");
        return Err(ended(
            message,
            format!("to train on, ask for more patience: --patience {}; 0 never stops", since + 50),
        ));
    }
    notes.iter().for_each(|note| observer.info(note));
    let place = if saved.state.batch > 0 { format!(", batch {}", saved.state.batch) } else { String::new() };
    observer.info(&format!("resuming {} at epoch {done} of {}{place}", path.display(), options.epochs));
    Ok(Settled { options, hyp: saved.state.hyp.clone(), resumed: Some((path, Box::new(saved))) })
}

/// The saved options with those wishes that a run can follow.
///
/// A wish that cannot be followed is refused: silence would train something else than was asked for.
fn merge(
    path: &Path,
    wish: &TrainOptions,
    saved: &TrainOptions,
    observer: &mut dyn Observer,
    notes: &mut Vec<String>,
) -> Result<TrainOptions, TrainError> {
    let broken = |e: serde_json::Error| TrainError::Resume {
        path: path.to_path_buf(),
        message: format!("its options cannot be compared: {e}"),
        hint: None,
    };
    let map = |options: &TrainOptions| match serde_json::to_value(options) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(serde_json::Map::new()),
        Err(e) => Err(broken(e)),
    };
    let (wished, default, mut merged) = (map(wish)?, map(&TrainOptions::default())?, map(saved)?);
    let given: Vec<String> = wish.given.iter().map(|name| key_of(name)).collect();
    let mut changed = Vec::new();
    for (key, value) in &wished {
        let asked = if given.is_empty() { default.get(key) != Some(value) } else { given.contains(key) };
        let old = merged.get(key).cloned().unwrap_or(Value::Null);
        // A run keeps the batch that it chose itself.
        let keeps = key == "batch_size" && value.as_i64() == Some(AUTO_BATCH);
        if !asked || old == *value || key == "resume" || keeps {
            continue;
        }
        let run_folder = ["project", "name", "exist_ok"].contains(&key.as_str());
        if run_folder {
            observer.warn(&format!("--{} is left aside: the run goes on in its own folder", flag_of(key)));
        } else if key == "noval" && saved.image_weights {
            // What is drawn depends on what the validations find.
            return Err(TrainError::Resume {
                path: path.to_path_buf(),
                message: "--noval was asked for, but the run draws its images by the results of validation".to_owned(),
                hint: Some("leave the flag out, or start a new run from its weights with --weights".to_owned()),
            });
        } else if CHANGEABLE.contains(&key.as_str()) {
            changed.push(format!("--{} {} -> {}", flag_of(key), text(&old), text(value)));
            merged.insert(key.clone(), value.clone());
        } else {
            return Err(TrainError::ResumeOption {
                path: path.to_path_buf(),
                flag: flag_of(key),
                asked: text(value),
                kept: text(&old),
            });
        }
    }
    if !changed.is_empty() {
        notes.push(format!("changed for the rest of the run: {}", changed.join(", ")));
    }
    merged.insert("resume".to_owned(), Value::Null);
    let merged: TrainOptions = serde_json::from_value(Value::Object(merged)).map_err(broken)?;
    Ok(TrainOptions { picture_folder: wish.picture_folder.clone(), ..merged })
}

/// A value of an option as it is typed.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

/// The key of a flag's long name.
fn key_of(flag: &str) -> String {
    match flag.trim_start_matches('-') {
        "batch" | "batch-size" => "batch_size".to_owned(),
        "img" | "img-size" | "imgsz" => "imgsz".to_owned(),
        other => other.replace('-', "_"),
    }
}

fn flag_of(key: &str) -> String {
    match key {
        "batch_size" => "batch".to_owned(),
        "imgsz" => "img".to_owned(),
        other => other.replace('_', "-"),
    }
}

fn check(options: &TrainOptions) -> Result<(), TrainError> {
    let refuse = |flag, message: String, hint: Option<&str>| TrainError::option(flag, message, hint);
    if options.epochs == 0 {
        return Err(refuse("epochs", "must be at least 1".to_owned(), None));
    }
    if options.batch_size != AUTO_BATCH && !(1..=65_536).contains(&options.batch_size) {
        return Err(refuse("batch", format!("{} must be between 1 and 65536", options.batch_size), None));
    }
    if !(1..=16_384).contains(&options.imgsz) {
        return Err(refuse("img", format!("{} must be between 1 and 16384", options.imgsz), None));
    }
    if options.image_weights && options.rect {
        return Err(refuse(
            "image-weights",
            "cannot be obeyed with --rect, whose batches hold images of one shape each".into(),
            Some("leave one of the two out"),
        ));
    }
    if [options.cos_lr, options.flat_cos_lr, options.fixed_lr].iter().filter(|&&x| x).count() > 1 {
        return Err(refuse("cos-lr", "only one of --cos-lr, --flat-cos-lr and --fixed-lr can be obeyed".into(), None));
    }
    check_name(&options.name)?;
    if !(0.0..1.0).contains(&options.label_smoothing) {
        let message = format!("{} must be at least 0 and below 1", options.label_smoothing);
        return Err(refuse("label-smoothing", message, Some("usual values are 0.05 to 0.1")));
    }
    if let Some(steps) = options.gradient_accumulation_steps.filter(|steps| !(1..=65_536).contains(steps)) {
        let message = format!("{steps} must be between 1 and 65536 batches");
        return Err(refuse("gradient-accumulation-steps", message, Some("leave it out for a nominal batch of 64")));
    }
    if let Some(base) = options.lr_base_batch {
        if options.lr_scale == LrScale::None {
            let message = "it is the base of --lr-scale linear, which is not given".to_owned();
            return Err(refuse("lr-base-batch", message, Some("add --lr-scale linear, or leave it out")));
        }
        if base == 0 {
            return Err(refuse("lr-base-batch", "must be at least 1 image".to_owned(), None));
        }
    }
    Ok(())
}

/// Refuses names that no folder of a run can have.
pub(crate) fn check_name(name: &str) -> Result<(), TrainError> {
    report::run_folder::check_run_name(name)
        .map_err(|e| TrainError::option("name", e.to_string(), Some("take letters, digits, - and _, such as exp")))
}

/// The schedule of a run of batches of `batch` images, `batches` of them an epoch; tells what flags make of it.
pub(crate) fn schedule(
    options: &TrainOptions,
    hyp: &Hyp,
    batches: usize,
    batch: usize,
    observer: &mut dyn Observer,
) -> Schedule {
    let mut schedule = Schedule::new(hyp, decay_of(options), options.epochs, batches, batch);
    if let Some(steps) = options.gradient_accumulation_steps {
        schedule = schedule.with_accumulation(steps);
        observer.info(&format!("a step is {steps} batches of {batch}: {} images", batch * steps));
        let all = batches.saturating_mul(options.epochs);
        if steps > all {
            observer.warn(&format!(
                "--gradient-accumulation-steps {steps} is more than the {all} batches of the run: few steps are taken"
            ));
        }
    }
    if options.lr_scale == LrScale::Linear {
        let steps = schedule.accumulate();
        let base = options.lr_base_batch.map_or(hyp.nominal_batch, |base| base as f64);
        let factor = (batch * steps) as f64 / base;
        schedule = schedule.with_rate_factor(factor);
        let text = |value: f64| format_g(value, 5);
        observer.info(&format!(
            "learning rate {} = lr0 {} x {} ({batch} images x {steps} batches a step / {base}); biases warm up from {}",
            text(schedule.rate()),
            text(hyp.lr0),
            text(factor),
            text(hyp.warmup_bias_lr * factor)
        ));
        let images = match options.gradient_accumulation_steps {
            Some(_) => format!("over the {} images of a step", batch * steps),
            None => format!("up to a nominal batch of {} images", hyp.nominal_batch),
        };
        observer.info(&format!("gradients are summed {images} already, so scaling is usually not needed"));
    }
    schedule
}

/// How the learning rate falls.
fn decay_of(options: &TrainOptions) -> Decay {
    match (options.cos_lr, options.flat_cos_lr, options.fixed_lr) {
        (true, _, _) => Decay::Cosine,
        (_, true, _) => Decay::FlatCosine,
        (_, _, true) => Decay::Fixed,
        _ => Decay::Linear,
    }
}

/// The batch that was asked for, or all of the images where there are fewer.
pub(crate) fn batch_of(asked: i64, images: usize, observer: &mut dyn Observer) -> usize {
    let asked = usize::try_from(asked).unwrap_or(1);
    let batch = asked.min(images);
    if batch < asked {
        observer.warn(&format!("--batch {asked} is more than the {batch} training images: {batch} is used"));
    }
    batch
}

/// A side of the network input: a multiple of `stride`, rounded up, at least 64. Tells when it differs.
pub(crate) fn round_size(size: usize, stride: usize, observer: &mut dyn Observer) -> usize {
    let rounded = size.max(1).div_ceil(stride.max(1)).saturating_mul(stride).max(MIN_SIZE.next_multiple_of(stride));
    if rounded != size {
        observer
            .warn(&format!("--img {size} must be a multiple of {stride} of at least {MIN_SIZE}: {rounded} is used"));
    }
    rounded
}

/// Starts of the names of frozen parameters: one number freezes that many layers, several name layers.
pub(crate) fn frozen_prefixes(freeze: &[usize], model: &Model) -> Result<Vec<String>, TrainError> {
    let layers: Vec<usize> = match freeze {
        [] => Vec::new(),
        [first] => (0..*first).collect(),
        several => several.to_vec(),
    };
    let count = model.layers.len();
    if let Some(beyond) = layers.iter().find(|&&l| l >= count) {
        return Err(TrainError::option(
            "freeze",
            match freeze {
                [first] => format!("{first} layers are more than the model has, {count}"),
                _ => format!("{beyond} was asked for, but the model has the layers 0 to {}", count - 1),
            },
            None,
        ));
    }
    if (0..count).all(|l| layers.contains(&l)) {
        return Err(TrainError::option("freeze", "all layers are frozen: nothing is left to train", None));
    }
    Ok(layers.iter().map(|l| format!("model.{l}.")).collect())
}

/// Class names that the model is trained for.
pub(crate) fn class_names(dataset: &Dataset, single_cls: bool) -> Vec<String> {
    if single_cls && dataset.nc() != 1 { vec!["item".to_owned()] } else { dataset.names.clone() }
}

/// The model and the weights that a new run starts with, and a line about where they come from.
pub(crate) fn begin(
    options: &TrainOptions,
    nc: usize,
    observer: &mut dyn Observer,
) -> Result<(Model, NamedTensors, String), TrainError> {
    let weights = match &options.weights {
        Some(path) => Some((path, checkpoint::load_weights(path)?)),
        None => None,
    };
    if let Some((path, weights)) = &weights {
        weights.notes.iter().for_each(|note| observer.info(note));
        checkpoint::warn_not_finite(path, &weights.tensors, observer);
    }
    let model = match (&options.cfg, &weights) {
        (Some(cfg), _) => Model::load(&cfg.to_string_lossy(), Some(nc))?,
        (None, Some((path, weights))) => {
            let what = path.display().to_string();
            let meta = weights.meta.as_ref().ok_or(model::ModelError::NoDescription { what: what.clone() })?;
            Model::from_yaml(&meta.model, model::Source::Text(what), meta.yaml.clone(), Some(nc))?
        }
        (None, None) => {
            let hint =
                Some("for instance --cfg yolov9-s.yaml to start from scratch, or --weights FILE to go on from one");
            return Err(TrainError::option("cfg", "neither a model nor weights are given", hint));
        }
    };
    let Some((path, weights)) = weights else {
        let tensors = model::init(&model, options.seed)?;
        return Ok((model, tensors, format!("random weights, seed {}", options.seed)));
    };
    let Transfer { model, tensors, report, notes } =
        model::transfer(model, &weights, options.seed, &path.display().to_string())?;
    notes.iter().for_each(|note| observer.info(note));
    observer.info(&format!("{}: {report}", path.display()));
    if report.transferred == 0 {
        observer.warn(&format!("{}: nothing fits {}: training starts from random weights", path.display(), model.name));
    }
    Ok((model, tensors, format!("{} of {} tensors from {}", report.transferred, report.total, path.display())))
}

/// Refuses to go on with other images than the run in `folder` began with, and names them.
pub(crate) fn check_same_images(
    path: &Path,
    folder: &Path,
    saved: &Checkpoint,
    now: &Fingerprint,
    count: usize,
) -> Result<(), TrainError> {
    if saved.state.digest == now.digest() {
        return Ok(());
    }
    let known = Fingerprint::read(folder).filter(|before| before.digest() == saved.state.digest);
    let changes = known.map(|before| format!("; {}", before.changes(now))).unwrap_or_default();
    Err(TrainError::Resume {
        path: path.to_path_buf(),
        message: format!(
            "the training part has changed since it began ({} images then, {count} now{changes}): it would not be the \
             same run",
            saved.state.images,
        ),
        hint: Some("start a new run from its weights with --weights".to_owned()),
    })
}
