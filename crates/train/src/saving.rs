//! Checkpoints, written by a thread from a snapshot while the run goes on.
//!
//! A run pays for the snapshot alone. One write is under way at most, and [`Saver::settle`] waits for it before the
//! next snapshot is taken, so that there is never more than one of them in memory.

use crate::TrainError;
use crate::background::{Background, Died};
use crate::checkpoint::{self, RunState, RunTensors};
use model::{Model, NamedTensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is written after an epoch or an interruption.
pub(crate) struct Snapshot {
    pub state: RunState,
    pub tensors: RunTensors,
    /// Weights that are the best so far and not yet on the disk.
    pub best: Option<NamedTensors>,
    /// The number of the epoch, where its weights are kept in a file of their own.
    pub keep: Option<usize>,
}

/// Writes the files of a run's `weights` folder.
pub(crate) struct Saver {
    writer: Background<Snapshot, Result<(), TrainError>>,
    weights: PathBuf,
    /// Whether `last.safetensors` is this run's: with `--exist-ok` there may be one of an earlier run.
    wrote_last: bool,
}

impl Saver {
    /// A saver into an existing folder. `wrote_last` says whether the run's checkpoint is there already.
    ///
    /// # Errors
    /// A system that has no thread left.
    pub fn start(weights: &Path, model: Arc<Model>, names: Vec<String>, wrote_last: bool) -> Result<Self, TrainError> {
        let folder = weights.to_path_buf();
        let work = move |snapshot| write(&folder, &model, &names, snapshot);
        let writer =
            Background::start("checkpoints", work).map_err(TrainError::io("start a thread that writes", weights))?;
        Ok(Self { writer, weights: weights.to_path_buf(), wrote_last })
    }

    pub fn last(&self) -> PathBuf {
        self.weights.join("last.safetensors")
    }

    pub fn best(&self) -> PathBuf {
        self.weights.join("best.safetensors")
    }

    /// Starts to write a snapshot, after the one before it is written.
    ///
    /// # Errors
    /// As [`Self::settle`], of the write before.
    pub fn save(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        let before = self.writer.hand_over(snapshot);
        self.heard(before)
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// [`TrainError::Save`]: what the disk refused, with what is left of the run.
    pub fn settle(&mut self) -> Result<(), TrainError> {
        let result = self.writer.wait();
        self.heard(result)
    }

    /// Takes note of a write that has ended by now, without waiting for it.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub fn check(&mut self) -> Result<(), TrainError> {
        let result = self.writer.poll();
        self.heard(result)
    }

    fn heard(&mut self, result: Result<Option<Result<(), TrainError>>, Died>) -> Result<(), TrainError> {
        match result {
            Ok(None) => Ok(()),
            Ok(Some(Ok(()))) => {
                self.wrote_last = true;
                Ok(())
            }
            Ok(Some(Err(error))) => Err(self.explained(error)),
            Err(Died) => {
                let source = std::io::Error::other("the thread that writes it has failed");
                Err(TrainError::Save { path: self.last(), source, kept: self.kept() })
            }
        }
    }

    /// The run's checkpoint, where it has one.
    pub fn kept(&self) -> Option<PathBuf> {
        Some(self.last()).filter(|last| self.wrote_last && last.is_file())
    }

    /// What the disk refused, with what is left of the run.
    pub fn explained(&self, error: TrainError) -> TrainError {
        let (path, source) = match error {
            TrainError::Model(model::ModelError::Io { path, source }) => (path, source),
            TrainError::Report(report::Error::Io { path, source, .. }) => (path, source),
            other => return other,
        };
        TrainError::Save { path, source, kept: self.kept() }
    }
}

fn write(folder: &Path, model: &Model, names: &[String], snapshot: Snapshot) -> Result<(), TrainError> {
    let Snapshot { state, tensors, best, keep } = snapshot;
    // The state last: were the run killed in between, the older one would do this epoch again with all its files.
    if let Some(ema) = best {
        let path = folder.join("best.safetensors");
        checkpoint::save_weights(&path, model, names, &state, state.stopping.best_epoch + 1, &ema)?;
    }
    if let Some(epoch) = keep {
        let path = folder.join(format!("epoch{epoch}.safetensors"));
        checkpoint::save_weights(&path, model, names, &state, epoch + 1, &tensors.ema)?;
    }
    checkpoint::save_last(&folder.join("last.safetensors"), model, names, &state, tensors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainOptions;
    use crate::hyp::Hyp;

    /// A run's weights are two numbers here: what is written does not look at the model.
    fn snapshot(epoch: usize, best: bool, keep: bool) -> Snapshot {
        let value = epoch as f32;
        let tensors = |of: f32| {
            let mut tensors = NamedTensors::new();
            tensors.insert("w", vec![2], vec![of, value]).unwrap();
            tensors
        };
        let options = TrainOptions::default();
        let state = RunState::new(options, Hyp::default(), 3, "digest".into(), "made up".into());
        let all = RunTensors { ema: tensors(1.0), raw: tensors(2.0), states: vec![tensors(3.0)], gradients: None };
        Snapshot {
            state: RunState { epoch, ..state },
            tensors: all,
            best: best.then(|| tensors(4.0)),
            keep: keep.then_some(epoch),
        }
    }

    fn saver(folder: &Path) -> Saver {
        let model = Model::load("yolov9-t", Some(1)).unwrap();
        Saver::start(folder, Arc::new(model), vec!["thing".into()], false).unwrap()
    }

    fn epoch_of(last: &Path) -> (usize, RunTensors) {
        let checkpoint = checkpoint::load_last(last).unwrap();
        (checkpoint.state.epoch, checkpoint.tensors)
    }

    #[test]
    fn a_snapshot_is_on_the_disk_once_the_saver_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let mut saver = saver(folder.path());
        saver.settle().unwrap();
        assert_eq!(saver.kept(), None, "nothing was saved yet");
        saver.save(snapshot(1, true, true)).unwrap();
        saver.settle().unwrap();
        assert_eq!(saver.kept(), Some(saver.last()));
        assert_eq!(epoch_of(&saver.last()), (1, snapshot(1, true, true).tensors));
        let values = |path: PathBuf| checkpoint::load_weights(&path).unwrap().tensors.get("w").unwrap().values.clone();
        assert_eq!(values(saver.best()), [4.0, 1.0]);
        assert_eq!(values(folder.path().join("epoch1.safetensors")), [1.0, 1.0]);
        // The second one waits for the first, and what is there when the saver goes is the newest.
        saver.save(snapshot(2, false, false)).unwrap();
        saver.save(snapshot(3, false, false)).unwrap();
        let last = saver.last();
        drop(saver);
        assert_eq!(epoch_of(&last).0, 3);
        assert_eq!(values(folder.path().join("best.safetensors")), [4.0, 1.0]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "temporary files stay");
    }

    #[test]
    fn a_write_that_fails_is_the_runs_error_and_the_checkpoint_before_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut saver = saver(folder.path());
        saver.save(snapshot(1, false, false)).unwrap();
        saver.settle().unwrap();
        // A folder of that name cannot be written over, whoever tries it.
        std::fs::create_dir(saver.best()).unwrap();
        saver.save(snapshot(2, true, false)).unwrap();
        let error = loop {
            match saver.check() {
                Ok(()) => std::thread::sleep(std::time::Duration::from_millis(1)),
                Err(error) => break error,
            }
        };
        let TrainError::Save { path, kept, .. } = &error else { panic!("{error}") };
        assert_eq!((path, kept), (&saver.best(), &Some(saver.last())));
        assert!(error.hint().unwrap().contains("--resume"), "{:?}", error.hint());
        assert_eq!(epoch_of(&saver.last()).0, 1);
        // The next snapshot's caller hears of the one before.
        saver.save(snapshot(3, true, false)).unwrap();
        assert!(matches!(saver.save(snapshot(4, false, false)), Err(TrainError::Save { .. })));
    }
}
