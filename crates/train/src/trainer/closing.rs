//! What closes an epoch and a run: results, checkpoints, early stopping, and the best weights once more.

use super::Run;
use crate::checkpoint::{self, RunTensors};
use crate::evaluate::{EvalSettings, Evaluation, evaluate};
use crate::saving::Snapshot;
use crate::schedule::Iteration;
use crate::summary::{TrainEnd, TrainSummary};
use crate::table::table;
use crate::{Observer, TrainError, pictures};
use report::results_csv::EpochResults;
use std::path::PathBuf;

impl Run {
    /// Results, checkpoints and early stopping; `true` where the run stops.
    pub(super) fn close_epoch(
        &mut self,
        at: &Iteration,
        tensors: RunTensors,
        evaluation: Option<Evaluation>,
        observer: &mut dyn Observer,
    ) -> Result<bool, TrainError> {
        self.keep_epoch(at, tensors, evaluation, observer).map_err(|e| self.saver.explained(e))
    }

    fn keep_epoch(
        &mut self,
        at: &Iteration,
        tensors: RunTensors,
        evaluation: Option<Evaluation>,
        observer: &mut dyn Observer,
    ) -> Result<bool, TrainError> {
        let epoch = self.state.epoch;
        let train_losses = self.state.loss_sums.map(|sum| sum / self.work.batches() as f64);
        let metrics = evaluation.as_ref().map(|e| e.metrics).unwrap_or_default();
        self.csv.append(&EpochResults {
            epoch,
            train_losses,
            precision: metrics.precision,
            recall: metrics.recall,
            map50: metrics.map50,
            map50_95: metrics.map50_95,
            val_losses: metrics.losses,
            learning_rates: at.lr,
            extra: self.telemetry.results(),
        })?;
        let mut improved = false;
        if let Some(evaluation) = &evaluation {
            table(evaluation, false).iter().for_each(|line| observer.info(line));
            if !evaluation.metrics.losses.iter().all(|loss| loss.is_finite()) {
                observer.warn(&format!(
                    "the validation loss of epoch {epoch} is not finite: the run is diverging; a lower lr0 may help"
                ));
            }
            if self.state.options.image_weights {
                self.state.class_maps = evaluation.class_maps(self.names.len());
            }
            improved = self.state.stopping.note(epoch, evaluation.fitness);
            if improved {
                self.state.best = Some(evaluation.metrics);
            }
        }
        let patience = self.state.options.patience;
        let stops = evaluation.is_some() && self.state.stopping.stops(epoch, patience);
        (self.state.epoch, self.state.batch, self.state.loss_sums) = (epoch + 1, 0, [0.0; 3]);
        self.state.stopped_early = stops && self.state.epoch < self.work.epochs;
        let ends = stops || self.state.epoch == self.work.epochs;
        if improved {
            self.unsaved_best = Some(tensors.ema.clone());
        }
        if !self.state.options.nosave || ends {
            let period = usize::try_from(self.state.options.save_period).unwrap_or(0);
            let keep = (period > 0 && epoch.is_multiple_of(period)).then_some(epoch);
            self.save(tensors, keep)?;
        }
        if stops {
            observer.info(&format!(
                "stopped: no improvement in the last {patience} epochs, best was epoch {}; --patience 0 never stops",
                self.state.stopping.best_epoch
            ));
        }
        Ok(stops)
    }

    /// Starts to write what the run is made of now, and the weights of epoch `keep` in a file of their own.
    fn save(&mut self, tensors: RunTensors, keep: Option<usize>) -> Result<(), TrainError> {
        let (state, best) = (self.state.clone(), self.unsaved_best.take());
        self.saver.save(Snapshot { state, tensors, best, keep })
    }

    pub(super) fn interrupted(&mut self) -> Result<TrainSummary, TrainError> {
        let tensors = self.tensors()?;
        self.save(tensors, None)?;
        self.saver.settle()?;
        Ok(self.summary(TrainEnd::Interrupted))
    }

    /// The best weights once more, with the table of classes and pictures.
    pub(super) fn finish(&mut self, end: TrainEnd, observer: &mut dyn Observer) -> Result<TrainSummary, TrainError> {
        self.saver.settle()?;
        if self.validation.is_some() && !observer.should_stop() {
            let best = self.saver.best();
            let ema = if best.is_file() { checkpoint::load_weights(&best)?.tensors } else { self.tensors()?.ema };
            let drawn = !self.state.options.noplots;
            if let Some(validation) = &mut self.validation {
                observer.info(&format!(
                    "validating {}",
                    if best.is_file() { best.display().to_string() } else { "the last weights".into() }
                ));
                validation.evaluator.set_training_weights(&ema)?;
                let settings = EvalSettings { keep_pictures: drawn, ..validation.settings.clone() };
                let found = evaluate(&mut validation.evaluator, &validation.pool, &self.names, &settings, observer)?;
                if let Some(evaluation) = found {
                    table(&evaluation, true).iter().for_each(|line| observer.info(line));
                    self.state.best = Some(evaluation.metrics);
                    if drawn {
                        self.pictures.extend(pictures::draw_validation(&self.folder, &evaluation.drawn, &self.names)?);
                    }
                }
            }
        }
        Ok(self.summary(end))
    }

    fn summary(&self, end: TrainEnd) -> TrainSummary {
        let there = |path: PathBuf| Some(path).filter(|p| p.is_file());
        TrainSummary {
            folder: self.folder.clone(),
            last: there(self.saver.last()),
            best: there(self.saver.best()).filter(|_| self.state.stopping.seen),
            epochs: self.state.epoch,
            end,
            metrics: self.state.best,
            pictures: self.pictures.clone(),
        }
    }
}
