//! The training run: epochs of steps, validation, checkpoints, and the run's folder.

use crate::checkpoint::{RunState, RunTensors, SavedLossScale};
use crate::device::Device;
use crate::evaluate::{EvalSettings, Evaluation, Evaluator, evaluate};
use crate::image_set::loader_options;
use crate::saving::Saver;
use crate::schedule::{Iteration, Schedule};
use crate::setup;
use crate::step::{Outcome, Place, Stepper};
use crate::summary::{TrainEnd, TrainSummary};
use crate::telemetry::RunTelemetry;
use crate::work::{Failure, Work, WorkSettings};
use crate::{Observer, Progress, TrainError, TrainOptions, TrainProgress, leftovers, pictures};
use data::{Batch, ImagePool, Loader};
use model::NamedTensors;
use report::results_csv::ResultsCsv;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

mod closing;
mod data_watch;
mod pace;
mod prepare;

use data_watch::DataWatch;
use pace::Pace;
pub(crate) use pace::Paced;

/// How often it is asked whether the device has become idle, while there is no batch for it.
const GLANCE: Duration = Duration::from_millis(1);
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
    telemetry: RunTelemetry,
    data_watch: DataWatch,
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
        self.telemetry.begin_epoch(epoch, observer);
        self.data_watch.begin_epoch();
        let mut pace = Pace::new(self.stepper.upload_wait());
        let mut at = self.schedule.at(epoch * total + total - 1);
        while self.state.batch < total {
            let ended = || data::DataError::LoaderStopped { reason: "no batch is left".into() };
            // A wait beside a device at work costs nothing.
            while self.stepper.busy()? && !loading.loader.wait(GLANCE) {}
            let batch = pace
                .wait(|| loading.loader.next())
                .ok_or_else(|| loading.failure.take().unwrap_or_else(|| ended().into()))??;
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
            let flops = self.stepper.run(&batch, place)?;
            // The last part of an accumulation is not lost with the end of the run.
            let ends = last_epoch && self.state.batch + 1 == total;
            if self.state.accumulator.advance(at.accumulate) || (ends && self.state.accumulator.flush()) {
                self.commit(place, &at)?;
            }
            self.state.batch += 1;
            // An epoch's first and last losses are waited for, the others while the next batch is computed.
            let waits = [first + 1, total].contains(&self.state.batch);
            self.hear(if waits { 0 } else { self.device.lag() })?;
            pace.add(batch.images.len(), self.stepper.upload_wait());
            self.telemetry.step(flops, observer);
            let (done, paced) = (self.state.batch, pace.so_far());
            self.data_watch.step(&paced, || self.pool.times(), observer);
            let heard = done - self.stepper.under_way();
            observer.progress(&Progress::Train(TrainProgress {
                epoch,
                epochs: self.work.epochs,
                done,
                total,
                losses: self.state.loss_sums.map(|sum| sum / heard as f64),
                instances: batch.targets.len(),
                image_size: batch.shape[1].max(batch.shape[2]),
                memory: self.stepper.memory_bytes(),
                images_per_second: paced.images_per_second(),
                data_wait: paced.data_wait(),
                mfu: self.telemetry.mfu(&paced),
                card: self.telemetry.latest().map(Box::new),
                eta: paced.time_of(total - done),
            }));
            if observer.should_stop() {
                self.hear(0)?;
                return Ok(EpochEnd::Interrupted);
            }
        }
        self.telemetry.end_epoch(&pace.so_far(), observer);
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
