//! The training run: epochs of steps, validation, checkpoints, and the run's folder.

use crate::checkpoint::{RunState, RunTensors, SavedLossScale};
use crate::device::{Device, Purpose};
use crate::evaluate::{EvalSettings, Evaluation, Evaluator, evaluate};
use crate::fingerprint::Fingerprint;
use crate::footprint::{self, Footprint, Room};
use crate::image_set::{self, CacheWish, ScanWish, loader_options};
use crate::plans::{GraphSettings, InputShape, TrainingSettings, loss_config};
use crate::saving::Saver;
use crate::schedule::{Iteration, Schedule};
use crate::setup::{self, Settled};
use crate::step::{Outcome, Place, StepPlan, Stepper};
use crate::summary::{TrainEnd, TrainSummary};
use crate::work::{self, Failure, Work, WorkSettings};
use crate::{
    Cache, Observer, Partners, Progress, TrainError, TrainOptions, TrainProgress, cache_choice, card_pictures,
    leftovers, new_length, pictures,
};
use data::{Batch, ImagePool, Loader, LoaderOptions, Split};
use detect::LossConfig;
use graph::{Level, Recompute};
use model::NamedTensors;
use report::results_csv::ResultsCsv;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

mod closing;

/// Training batches that are drawn.
const DRAWN_BATCHES: usize = 3;

/// Trains a model.
///
/// # Errors
/// Everything that is wrong with options and files, before the first batch; a full disk; numbers that leave
/// the numbers. See [`TrainError`].
pub fn run(options: &TrainOptions, observer: &mut dyn Observer) -> Result<TrainSummary, TrainError> {
    let settled = setup::settle(options, observer)?;
    let device = Device::choose(&settled.options.device, settled.options.precision, observer)?;
    let mut run = Run::prepare(device, settled, observer)?;
    run.train(observer)
}

/// A run that is ready for its next batch.
struct Run {
    names: Vec<String>,
    state: RunState,
    schedule: Schedule,
    device: Device,
    stepper: Stepper,
    /// Commits of the epoch whose gradients were too large for fp16, and were left out.
    left_out: usize,
    work: WorkSettings,
    pool: Arc<ImagePool>,
    /// Threads that load images.
    threads: usize,
    validation: Option<Validation>,
    folder: PathBuf,
    csv: ResultsCsv,
    pictures: Vec<PathBuf>,
    /// The best weights so far, where `--nosave` keeps them from the disk.
    unsaved_best: Option<NamedTensors>,
    /// Goes before the lock does: the folder is free once everything is written.
    saver: Saver,
    _lock: leftovers::FolderLock,
}

/// Batches on their way.
struct Loading {
    loader: Loader<Work>,
    failure: Failure,
    /// The epoch whose batches it no longer loads.
    ends_at: usize,
}

struct Validation {
    evaluator: Evaluator,
    pool: Arc<ImagePool>,
    settings: EvalSettings,
}

/// How an epoch ended.
enum EpochEnd {
    Done(Iteration),
    Interrupted,
}

impl Run {
    fn prepare(device: Device, settled: Settled, observer: &mut dyn Observer) -> Result<Self, TrainError> {
        let Settled { options, hyp, resumed } = settled;
        let dataset = image_set::load_dataset(&options.data, observer).map_err(|e| match e {
            TrainError::Missing { what, path, .. } if resumed.is_some() => {
                let hint = "where the data set has moved since, name its YAML with --data".to_owned();
                TrainError::Missing { what, path, hint: Some(hint) }
            }
            other => other,
        })?;
        let names = setup::class_names(&dataset, options.single_cls);
        let (model, start) = match &resumed {
            Some((path, saved)) => (saved.model(path)?, None),
            None => {
                let (model, tensors, origin) = setup::begin(&options, names.len(), observer)?;
                (model, Some((tensors, origin)))
            }
        };
        let model = Arc::new(model);
        if let Some((path, saved)) = &resumed
            && saved.meta.names != names
        {
            return Err(TrainError::Resume {
                path: path.clone(),
                message: format!("{} has other classes than the run", options.data.display()),
                hint: None,
            });
        }
        let frozen = setup::frozen_prefixes(&options.freeze, &model)?;
        let size = setup::round_size(options.imgsz, model.size_multiple(), observer);

        let wish = |split, for_training| ScanWish {
            split,
            for_training,
            single_cls: options.single_cls,
            min_items: options.min_items,
        };
        let (samples, _) = image_set::scan(&dataset, wish(Split::Train, true), observer)?;
        image_set::tell_labels(&samples, &names, observer);
        let fingerprint = Fingerprint::of(&samples);
        if let Some((path, saved)) = &resumed {
            setup::check_same_images(path, &folder_of(path), saved, &fingerprint, samples.len())?;
        }
        let val_samples = if dataset.has(Split::Val) || !options.noval {
            let (val, _) = image_set::scan(&dataset, wish(Split::Val, false), observer)?;
            let shared = data::scan::shared_images(&samples, &val);
            if !shared.is_empty() {
                observer.warn(&format!(
                    "{} of {} validation images are training images too, such as {}: metrics will look too good",
                    shared.len(),
                    val.len(),
                    shared[0].display()
                ));
            }
            Some(val)
        } else {
            None
        };

        let val_digest = val_samples.as_ref().map(|val| Fingerprint::of(val).digest());
        if let Some((_, saved)) = &resumed
            && let (Some(before), Some(now)) = (&saved.state.val_digest, &val_digest)
            && before != now
        {
            observer.warn(
                "the validation part has changed since the run began: metrics before and after cannot be compared, and \
                 the best epoch is chosen among both",
            );
        }

        let config = work::augment_config(&hyp, options.partners);
        let (smallest_side, largest_side) = work::sides(size, model.size_multiple(), options.multi_scale);
        let recompute = options.memory_budget.map_or(Recompute::Level(Level::KeepAll), Recompute::Budget);
        let loss = loss_config(&model, &hyp);
        // Smoothing is for learning: the validation loss keeps the labels as they are.
        let smoothed = LossConfig { label_smoothing: hyp.label_smoothing, ..loss.clone() };
        let precision = device.precision(Purpose::Training);
        let graph = GraphSettings { precision, loss: Some(smoothed), decode: None, training: None };
        let (rect, optimizer, single_cls) = (options.rect, options.optimizer, options.single_cls);
        let compile = |images: usize, recompute: Recompute| {
            let boxes = work::max_boxes(&samples, &config, rect, images);
            let training = Some(TrainingSettings { frozen: frozen.clone(), recompute });
            let graph = GraphSettings { training, ..graph.clone() };
            let shape = InputShape { images, height: largest_side, width: largest_side };
            StepPlan::compile(device.clone(), Arc::clone(&model), graph, shape, boxes, optimizer)
        };
        let threads = image_set::threads(options.workers, &device, observer);
        let mut evaluator = Evaluator::new(device.clone(), Arc::clone(&model), Some(loss));
        let settings = |batch: usize| EvalSettings {
            batch: 2 * batch,
            size,
            rect: true,
            workers: threads,
            single_cls,
            nms: plan::graphs::validation_nms(single_cls),
            keep_pictures: false,
        };
        let validation_plan = |evaluator: &Evaluator, batch: usize| match &val_samples {
            Some(val) => evaluator.largest_plan(val, &settings(batch)),
            None => Ok(None),
        };
        let mut room = Room::new(options.memory_available, &device)?;
        let batch = match options.batch_size {
            setup::AUTO_BATCH => {
                let footprint = |batch: usize| {
                    let planned = validation_plan(&evaluator, batch)?;
                    Ok(Footprint::of_training(&compile(batch, recompute)?, planned.as_ref()))
                };
                room.largest_batch(samples.len(), &device, &footprint, observer)?
            }
            asked => setup::batch_of(asked, samples.len(), observer),
        };
        let chosen = if options.batch_size == setup::AUTO_BATCH { batch as i64 } else { options.batch_size };
        let options = TrainOptions { batch_size: chosen, ..options };
        let work = WorkSettings {
            samples: Arc::clone(&samples),
            config,
            size,
            stride: model.size_multiple(),
            batch,
            seed: options.seed,
            epochs: options.epochs,
            close_mosaic: options.close_mosaic,
            rect: options.rect,
            multi_scale: options.multi_scale,
            weights: None,
        };
        let schedule = setup::schedule(&options, &hyp, work.batches(), batch, observer);
        if let Some((_, saved)) = &resumed {
            let mut before = schedule.clone();
            before.epochs = saved.state.options.epochs;
            new_length::tell(&before, &schedule, saved.state.epoch, options.close_mosaic, observer);
        }
        let mut step = compile(batch, recompute)?;
        let planned = validation_plan(&evaluator, batch)?;
        if options.memory_budget.is_none() {
            let footprint = Footprint::of_training(&step, planned.as_ref());
            if let Some(smaller) = room.squeeze(&footprint, &step, &|r| compile(batch, r), observer)? {
                step = smaller;
            }
        }
        footprint::tell_step(&model, &step, size, observer)?;
        if options.multi_scale {
            observer.info(&format!(
                "multi-scale: sides from {smallest_side} to {largest_side}, one a batch; the memory is that of the largest"
            ));
        }
        room.take_training(
            &Footprint::of_training(&step, planned.as_ref()),
            &step,
            &|batch| {
                let planned = validation_plan(&evaluator, batch)?;
                Ok(Footprint::of_training(&compile(batch, recompute)?, planned.as_ref()))
            },
            &|recompute| compile(batch, recompute),
            observer,
        )?;
        let card_bytes = card_pictures::budget(&mut room, &work, observer);
        let val = val_samples.as_ref().map(|val| val.as_slice());
        let cache = cache_choice::settle(options.cache, card_bytes, &work, val, &room, observer)?;
        let partners = match options.partners {
            _ if options.rect || hyp.mosaic == 0.0 => None,
            Partners::Window(images) => Some(images),
            Partners::Fresh => Some(samples.len()),
        };
        let wish = CacheWish { cache, partners, on_the_way: batch * LoaderOptions::PREFETCH };
        let disk = match cache {
            Cache::Disk => Some(image_set::PictureFolder::of(&dataset, options.picture_folder.clone())?),
            _ => None,
        };
        let settings = settings(batch);
        let (samples_of_pool, val_of_pool) = (Arc::clone(&samples), val_samples.clone());
        let (pool, val_pool) = image_set::pools(samples_of_pool, val_of_pool, size, wish, disk, room, observer)?;
        if observer.should_stop() {
            return Err(TrainError::Stopped { what: "the preparation" });
        }
        // From here on memory is allocated and files are written.
        if let Some((_, saved)) = &resumed {
            device.prefer(&saved.state.convolutions);
        }
        let mut stepper = Stepper::new(step)?;
        if let Some(plan) = planned {
            evaluator.reserve(plan)?;
        }
        if let Some(bytes) = card_bytes {
            stepper.keep_pictures(bytes, Arc::clone(&pool))?;
        }

        let folder;
        let wrote_last = resumed.is_some();
        let (state, tensors) = match (resumed, start) {
            (Some((path, saved)), _) => {
                folder = folder_of(&path);
                let saved = *saved;
                (RunState { options: options.clone(), stopped_early: false, ..saved.state }, saved.tensors)
            }
            (None, start) => {
                folder = report::run_folder::create_run_folder(&options.project, &options.name, options.exist_ok)?;
                if folder.join("weights/last.safetensors").exists() {
                    let place = folder.display();
                    observer.warn(&format!("--exist-ok: {place} holds an earlier run, whose files are written over"));
                }
                let (tensors, origin) = start.unwrap_or_else(|| (NamedTensors::new(), String::new()));
                let digest = fingerprint.digest();
                let saved = TrainOptions { resume: None, ..options.clone() };
                let state = RunState::new(saved, hyp.clone(), samples.len(), digest, origin);
                (state, RunTensors { ema: tensors.clone(), raw: tensors, states: Vec::new(), gradients: None })
            }
        };
        let state = RunState { val_digest: val_digest.or(state.val_digest), ..state };
        stepper.load(&tensors, state.loss_scale.and_then(SavedLossScale::usable))?;
        let lock = leftovers::FolderLock::take(&folder)?;
        let weights = folder.join("weights");
        std::fs::create_dir_all(&weights).map_err(TrainError::io("create", &weights))?;
        leftovers::check_writable(&weights)?;
        let swept = leftovers::sweep(&folder);
        if swept > 0 {
            observer.info(&format!("{swept} half-written files of a run that was killed are removed"));
        }
        fingerprint.write(&folder)?;
        report::atomic::write_bytes_atomic(&folder.join("hyp.yaml"), hyp.to_yaml().as_bytes())?;
        let opt_path = folder.join("opt.yaml");
        // Fails on paths that are no UTF-8, which a checkpoint could not hold either: better now than after an epoch.
        let text = serde_saphyr::to_string(&state.options).map_err(|e| TrainError::Checkpoint {
            path: opt_path.clone(),
            message: format!("the options cannot be written: {e}"),
        })?;
        report::atomic::write_bytes_atomic(&opt_path, text.as_bytes())?;
        let csv_path = folder.join("results.csv");
        let csv = match state.epoch {
            0 => ResultsCsv::create(&csv_path, &[])?,
            next => ResultsCsv::resume(&csv_path, &[], next)?,
        };

        let saver = Saver::start(&weights, model, names.clone(), wrote_last)?;
        let validation = val_pool.map(|pool| Validation { evaluator, pool, settings });
        Ok(Self {
            names,
            state,
            schedule,
            device,
            stepper,
            left_out: 0,
            work,
            pool,
            threads,
            validation,
            folder,
            csv,
            pictures: Vec::new(),
            unsaved_best: None,
            saver,
            _lock: lock,
        })
    }

    fn train(&mut self, observer: &mut dyn Observer) -> Result<TrainSummary, TrainError> {
        let epochs = self.work.epochs;
        observer.info(&format!(
            "{} images in {} batches of {}, {} epochs, {}; results in {}",
            self.work.samples.len(),
            self.work.batches(),
            self.work.batch,
            epochs,
            self.state.options.optimizer.name(),
            self.folder.display()
        ));
        if self.state.options.image_weights && self.state.options.noval {
            observer
                .info("--image-weights without validation: images are drawn by the frequency of their classes alone");
        }
        let mut loading = self.load()?;
        observer.info(&report::tables::training_header());
        while self.state.epoch < epochs {
            if loading.ends_at <= self.state.epoch {
                loading = self.load()?;
            }
            let epoch = self.state.epoch;
            if self.work.close_mosaic > 0 && epoch + self.work.close_mosaic == epochs && self.state.batch == 0 {
                observer.info(&format!("closing mosaic for the last {} epochs", self.work.close_mosaic));
            }
            let last_epoch = epoch + 1 == epochs;
            let EpochEnd::Done(at) = self.epoch(&mut loading, last_epoch, observer)? else {
                return self.interrupted();
            };
            let validates = !self.state.options.noval || last_epoch;
            let (tensors, evaluation) = match self.validate(validates, observer)? {
                Some(found) => found,
                None => return self.interrupted(),
            };
            if self.close_epoch(&at, tensors, evaluation, observer)? {
                return self.finish(TrainEnd::EarlyStop, observer);
            }
        }
        self.finish(TrainEnd::Finished, observer)
    }

    /// Starts to load batches: all to the end of the run, or those of one epoch where the next epoch's images depend on
    /// this one's validation.
    fn load(&mut self) -> Result<Loading, TrainError> {
        let (epoch, batch) = (self.state.epoch, self.state.batch);
        let (work, ends_at) = if self.state.options.image_weights {
            let settings = self.work.weighted_by_classes(self.names.len(), &self.state.class_maps);
            (Work::new(settings, epoch, batch)?.this_epoch(), epoch + 1)
        } else {
            (Work::new(self.work.clone(), epoch, batch)?, self.work.epochs)
        };
        let failure = work.failure();
        let (pool, options) = (Arc::clone(&self.pool), loader_options(self.threads));
        let loader = match self.stepper.next_loader() {
            Some(kept) => Loader::unrendered(pool, work, options, kept)?,
            None => Loader::new(pool, work, options)?,
        };
        Ok(Loading { loader, failure, ends_at })
    }

    /// The batches of the epoch under way.
    fn epoch(
        &mut self,
        loading: &mut Loading,
        last_epoch: bool,
        observer: &mut dyn Observer,
    ) -> Result<EpochEnd, TrainError> {
        let total = self.work.batches();
        let epoch = self.state.epoch;
        let first = self.state.batch;
        let start = Instant::now();
        let mut images = 0;
        let mut at = self.schedule.at(epoch * total + total - 1);
        while self.state.batch < total {
            let ended = || data::DataError::LoaderStopped { reason: "no batch is left".into() };
            let batch =
                loading.loader.next().ok_or_else(|| loading.failure.take().unwrap_or_else(|| ended().into()))??;
            for problem in &batch.failures {
                observer.warn(&format!("{problem}; its place stays grey"));
            }
            if let Some(problem) = self.pool.take_disk_problem() {
                observer.warn(&format!("--cache disk: {problem}"));
            }
            self.saver.check()?;
            let iteration = epoch * total + self.state.batch;
            at = self.schedule.at(iteration);
            self.draw(iteration, &batch)?;
            let place = Place { epoch, batch: self.state.batch };
            self.stepper.run(&batch, place)?;
            // The last part of an accumulation is not lost with the end of the run.
            let ends = last_epoch && self.state.batch + 1 == total;
            if self.state.accumulator.advance(at.accumulate) || (ends && self.state.accumulator.flush()) {
                self.commit(place, &at)?;
            }
            self.state.batch += 1;
            // An epoch's first and last losses are waited for, the others while the next batch is computed.
            let waits = [first + 1, total].contains(&self.state.batch);
            self.hear(if waits { 0 } else { self.device.lag() })?;
            images += batch.images.len();
            let done = self.state.batch;
            let heard = done - self.stepper.under_way();
            let elapsed = start.elapsed();
            observer.progress(&Progress::Train(TrainProgress {
                epoch,
                epochs: self.work.epochs,
                done,
                total,
                losses: self.state.loss_sums.map(|sum| sum / heard as f64),
                instances: batch.targets.len(),
                image_size: batch.shape[1].max(batch.shape[2]),
                memory: self.stepper.memory_bytes(),
                images_per_second: images as f64 / elapsed.as_secs_f64().max(1e-9),
                eta: elapsed.mul_f64((total - done) as f64 / (done - first) as f64),
            }));
            if observer.should_stop() {
                self.hear(0)?;
                return Ok(EpochEnd::Interrupted);
            }
        }
        if self.left_out > 0 {
            observer.info(&format!(
                "fp16: {} updates of epoch {epoch} were left out, for their gradients left the numbers; the loss scale is \
                 lowered where that happens",
                std::mem::take(&mut self.left_out)
            ));
        }
        Ok(EpochEnd::Done(at))
    }

    /// Takes note of what steps gave, all but the last `lag` of them.
    fn hear(&mut self, lag: usize) -> Result<(), TrainError> {
        while let Some(Outcome { place, losses, commit }) = self.stepper.outcome(lag)? {
            if let Some(losses) = losses {
                let named = ["box loss", "class loss", "DFL loss"].into_iter().zip(losses.items);
                for (term, value) in named.chain([("total loss", losses.total)]) {
                    if !value.is_finite() {
                        return Err(self.not_finite(place, term));
                    }
                }
                self.state.loss_sums.iter_mut().zip(losses.items).for_each(|(sum, item)| *sum += item);
            }
            if let Some(report) = commit.filter(|report| !report.applied) {
                // With a loss scale of 1 left there is nothing to lower.
                if report.loss_scale <= 1.0 {
                    return Err(self.not_finite(place, "the gradient"));
                }
                self.left_out += 1;
            }
        }
        Ok(())
    }

    fn commit(&mut self, place: Place, at: &Iteration) -> Result<(), TrainError> {
        let updates = self.state.updates + 1;
        self.stepper.commit(place, at, self.state.hyp.momentum, self.schedule.weight_decay, updates)?;
        self.state.updates = updates;
        Ok(())
    }

    fn not_finite(&mut self, place: Place, term: &str) -> TrainError {
        // Where the last write failed, the checkpoint before it is what is kept.
        let _ = self.saver.settle();
        let kept = self.saver.kept();
        TrainError::NotFinite { epoch: place.epoch, batch: place.batch, term: term.to_owned(), kept }
    }

    /// Averaged weights and, where asked for, what they are worth. `None` where the observer asked to stop.
    fn validate(
        &mut self,
        wanted: bool,
        observer: &mut dyn Observer,
    ) -> Result<Option<(RunTensors, Option<Evaluation>)>, TrainError> {
        let tensors = self.tensors()?;
        let Some(validation) = self.validation.as_mut().filter(|_| wanted) else { return Ok(Some((tensors, None))) };
        validation.evaluator.set_training_weights(&tensors.ema)?;
        let found = evaluate(&mut validation.evaluator, &validation.pool, &self.names, &validation.settings, observer)?;
        if let Some(problem) = validation.pool.take_disk_problem() {
            observer.warn(&format!("--cache disk: {problem}"));
        }
        Ok(found.map(|evaluation| (tensors, Some(evaluation))))
    }

    fn draw(&mut self, iteration: usize, batch: &Batch) -> Result<(), TrainError> {
        if iteration < DRAWN_BATCHES && !self.state.options.noplots {
            let path = self.folder.join(format!("train_batch{iteration}.jpg"));
            let rendered = batch.unrendered.as_ref().map(|unrendered| {
                let pixels = unrendered.render(&self.pool, [batch.shape[1], batch.shape[2]]);
                Batch { pixels, unrendered: None, ..batch.clone() }
            });
            pictures::draw_labels(&path, rendered.as_ref().unwrap_or(batch), &self.names)?;
            self.pictures.push(path);
        }
        Ok(())
    }

    /// Everything that a checkpoint holds, from the device; what the state says of the device goes with it.
    fn tensors(&mut self) -> Result<RunTensors, TrainError> {
        // One snapshot at a time is in memory.
        self.saver.settle()?;
        self.state.loss_scale = self.stepper.loss_scale()?.map(SavedLossScale::from);
        self.state.convolutions = self.device.choices();
        let batches = self.state.epoch * self.work.batches() + self.state.batch;
        self.stepper.tensors(self.state.accumulator.pending > 0, batches as u64)
    }
}

/// The run's folder of a checkpoint in its `weights` folder.
fn folder_of(checkpoint: &Path) -> PathBuf {
    let inside = checkpoint.parent().unwrap_or(Path::new("."));
    match (inside.file_name().is_some_and(|n| n == "weights"), inside.parent()) {
        (true, Some(folder)) => folder.to_path_buf(),
        _ => inside.to_path_buf(),
    }
}
