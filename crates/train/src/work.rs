//! The batches of a run as loader tasks, epoch after epoch.

use crate::hyp::Hyp;
use crate::{Partners, TrainError};
use data::recipe::epoch_order;
use data::rect::{RectPlan, rect_plan};
use data::{AugmentConfig, RecipeMaker, Sample, Task};
use std::sync::{Arc, Mutex, PoisonError};

/// Augmentation as the hyper-parameters say.
pub(crate) fn augment_config(hyp: &Hyp, partners: Partners) -> AugmentConfig {
    AugmentConfig {
        hsv_h: hyp.hsv_h,
        hsv_s: hyp.hsv_s,
        hsv_v: hyp.hsv_v,
        degrees: hyp.degrees,
        translate: hyp.translate,
        scale: hyp.scale,
        shear: hyp.shear,
        perspective: hyp.perspective,
        flipud: hyp.flipud,
        fliplr: hyp.fliplr,
        mosaic: hyp.mosaic,
        mixup: hyp.mixup,
        copy_paste: hyp.copy_paste,
        partners: partners.of_the_recipes(),
    }
}

/// Most boxes that a batch of `batch` images can have.
pub(crate) fn max_boxes(samples: &[Sample], config: &AugmentConfig, rect: bool, batch: usize) -> usize {
    let most = samples.iter().map(|s| s.labels.len()).max().unwrap_or(0);
    let pictures = match (rect || config.mosaic == 0.0, config.mixup > 0.0) {
        (true, _) => 1,
        (false, false) => 4,
        (false, true) => 8,
    };
    let pasted = if pictures > 1 { 1.0 + config.copy_paste } else { 1.0 };
    // Four boxes more for the rounding of each mosaic's pastes.
    batch * ((most * pictures) as f64 * pasted).ceil() as usize + 4 * batch
}

/// Settings of all epochs.
#[derive(Clone)]
pub(crate) struct WorkSettings {
    pub samples: Arc<Vec<Sample>>,
    pub config: AugmentConfig,
    pub size: usize,
    pub stride: usize,
    pub batch: usize,
    pub seed: u64,
    pub epochs: usize,
    /// Epochs at the end without mosaic.
    pub close_mosaic: usize,
    pub rect: bool,
}

impl WorkSettings {
    /// Batches of an epoch; the last may be short.
    pub fn batches(&self) -> usize {
        self.samples.len().div_ceil(self.batch.max(1))
    }

    /// True in the epochs at the end that have no mosaic, whatever epoch a run was resumed in.
    pub fn mosaic_is_closed(&self, epoch: usize) -> bool {
        epoch + self.close_mosaic >= self.epochs
    }

    fn maker(&self, epoch: usize, order: Arc<Vec<usize>>) -> Result<RecipeMaker, TrainError> {
        let mosaic = if self.mosaic_is_closed(epoch) { 0.0 } else { self.config.mosaic };
        let config = AugmentConfig { mosaic, ..self.config };
        let size = u32::try_from(self.size).unwrap_or(u32::MAX);
        Ok(RecipeMaker::new(Arc::clone(&self.samples), config, size, self.seed, epoch as u64, order)?)
    }
}

/// Why [`Work`] ended before the run did, where it did: an iterator has no other way to tell.
#[derive(Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<TrainError>>>);

impl Failure {
    /// The error, once.
    pub fn take(&self) -> Option<TrainError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn note(&self, error: TrainError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// Tasks of all batches from a place in a run to its end.
pub(crate) struct Work {
    failure: Failure,
    settings: WorkSettings,
    rect: Option<RectPlan>,
    epoch: usize,
    batch: usize,
    maker: Arc<RecipeMaker>,
}

impl Work {
    /// Starts with `batch` of `epoch`.
    pub fn new(settings: WorkSettings, epoch: usize, batch: usize) -> Result<Self, TrainError> {
        let rect = settings.rect.then(|| {
            let wh: Vec<[u32; 2]> = settings.samples.iter().map(|s| [s.width, s.height]).collect();
            rect_plan(&wh, settings.size as u32, settings.batch, settings.stride as u32, 0.0)
        });
        let maker = Arc::new(settings.maker(epoch, order(&settings, rect.as_ref(), epoch))?);
        Ok(Self { failure: Failure::default(), settings, rect, epoch, batch, maker })
    }

    /// Where an error of a later epoch will be found.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

fn order(settings: &WorkSettings, rect: Option<&RectPlan>, epoch: usize) -> Arc<Vec<usize>> {
    Arc::new(match rect {
        Some(plan) => plan.order.clone(),
        None => epoch_order(settings.seed, epoch as u64, settings.samples.len()),
    })
}

impl Iterator for Work {
    type Item = Vec<Task>;

    fn next(&mut self) -> Option<Vec<Task>> {
        if self.batch >= self.settings.batches() {
            (self.epoch, self.batch) = (self.epoch + 1, 0);
            if self.epoch < self.settings.epochs {
                let order = order(&self.settings, self.rect.as_ref(), self.epoch);
                match self.settings.maker(self.epoch, order) {
                    Ok(maker) => self.maker = Arc::new(maker),
                    Err(error) => {
                        self.failure.note(error);
                        return None;
                    }
                }
            }
        }
        if self.epoch >= self.settings.epochs {
            return None;
        }
        let first = self.batch * self.settings.batch;
        let positions = first..(first + self.settings.batch).min(self.settings.samples.len());
        let frame = self.rect.as_ref().and_then(|plan| plan.batch_shapes_hw.get(self.batch).copied());
        self.batch += 1;
        Some(
            positions
                .map(|position| match frame {
                    Some(frame_hw) => Task::DrawRect { maker: Arc::clone(&self.maker), position, frame_hw },
                    None => Task::Draw { maker: Arc::clone(&self.maker), position },
                })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_that_cannot_be_drawn_is_an_error_and_not_the_end() {
        let sample = Sample { path: "a.png".into(), width: 8, height: 8, labels: Vec::new(), segments: Vec::new() };
        let config = AugmentConfig::NONE;
        let mut settings = WorkSettings {
            samples: Arc::new(vec![sample]),
            config,
            size: 64,
            stride: 32,
            batch: 1,
            seed: 0,
            epochs: 2,
            close_mosaic: 0,
            rect: false,
        };
        settings.config.mosaic = 1.0;
        let mut work = Work::new(settings, 0, 0).unwrap();
        let failure = work.failure();
        work.settings.config.scale = 2.0;
        assert_eq!(work.next().map(|tasks| tasks.len()), Some(1));
        assert!(work.next().is_none());
        assert!(failure.take().unwrap().to_string().contains("scale"));
    }
}
