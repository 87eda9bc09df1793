//! The batches of a run as loader tasks, epoch after epoch.

use crate::hyp::Hyp;
use crate::{Partners, TrainError};
use data::image_weights::{class_weights, image_weights, weighted_order};
use data::multi_scale;
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
    plan::graphs::most_boxes(most, pictures, config.copy_paste, batch)
}

/// Sides of the network input that batches can have, the smallest and the largest.
pub(crate) fn sides(size: usize, stride: usize, multi_scale: bool) -> (usize, usize) {
    if !multi_scale {
        return (size, size);
    }
    let (low, high) = multi_scale::range(size as u32, stride as u32);
    (low as usize, high as usize)
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
    /// A side of its own for each batch.
    pub multi_scale: bool,
    /// Images are drawn by these weights, one an image, and not one after the other.
    pub weights: Option<Arc<Vec<f64>>>,
}

impl WorkSettings {
    /// Batches of an epoch; the last may be short.
    pub fn batches(&self) -> usize {
        self.samples.len().div_ceil(self.batch.max(1))
    }

    /// The same with images drawn by their classes, of which there are `classes`: the rarer a class and the smaller its
    /// mAP50-95 of the last validation (`maps`, none before the first), the more often.
    pub fn weighted_by_classes(&self, classes: usize, maps: &[f64]) -> Self {
        let map = |class: usize| maps.get(class).copied().unwrap_or(0.0);
        let weights: Vec<f64> = class_weights(&self.samples, classes)
            .iter()
            .enumerate()
            .map(|(class, weight)| weight * (1.0 - map(class)).powi(2))
            .collect();
        Self { weights: Some(Arc::new(image_weights(&self.samples, &weights))), ..self.clone() }
    }

    /// True in the epochs at the end that have no mosaic, whatever epoch a run was resumed in.
    pub fn mosaic_is_closed(&self, epoch: usize) -> bool {
        epoch + self.close_mosaic >= self.epochs
    }

    fn maker(&self, epoch: usize, order: Arc<Vec<usize>>) -> Result<RecipeMaker, TrainError> {
        let mosaic = if self.mosaic_is_closed(epoch) { 0.0 } else { self.config.mosaic };
        // The order of a weighted epoch holds images several times, or not at all, and partners follow it.
        let partners = match (&self.weights, self.config.partners) {
            (Some(_), data::Partners::WholeSet) => data::Partners::Window(self.samples.len()),
            (_, partners) => partners,
        };
        let config = AugmentConfig { mosaic, partners, ..self.config };
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
    /// The epoch before which it ends.
    end: usize,
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
        let end = settings.epochs;
        Ok(Self { failure: Failure::default(), settings, rect, epoch, batch, end, maker })
    }

    /// Ends with the epoch that it starts in.
    pub fn this_epoch(self) -> Self {
        Self { end: self.epoch + 1, ..self }
    }

    /// Where an error of a later epoch will be found.
    pub fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

fn order(settings: &WorkSettings, rect: Option<&RectPlan>, epoch: usize) -> Arc<Vec<usize>> {
    Arc::new(match rect {
        Some(plan) => plan.order.clone(),
        None => match &settings.weights {
            Some(weights) => weighted_order(settings.seed, epoch as u64, weights),
            None => epoch_order(settings.seed, epoch as u64, settings.samples.len()),
        },
    })
}

impl Iterator for Work {
    type Item = Vec<Task>;

    fn next(&mut self) -> Option<Vec<Task>> {
        if self.batch >= self.settings.batches() {
            (self.epoch, self.batch) = (self.epoch + 1, 0);
            if self.epoch < self.end {
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
        if self.epoch >= self.end {
            return None;
        }
        let first = self.batch * self.settings.batch;
        let positions = first..(first + self.settings.batch).min(self.settings.samples.len());
        let frame = self.rect.as_ref().and_then(|plan| plan.batch_shapes_hw.get(self.batch).copied());
        let resized = self.settings.multi_scale.then(|| {
            let (size, stride) = (self.settings.size as u32, self.settings.stride as u32);
            let side = multi_scale::side(self.settings.seed, self.epoch as u64, self.batch as u64, size, stride);
            multi_scale::frame(frame.unwrap_or([size; 2]), side, stride)
        });
        self.batch += 1;
        let task = |position| match frame {
            Some(frame_hw) => Task::DrawRect { maker: Arc::clone(&self.maker), position, frame_hw },
            None => Task::Draw { maker: Arc::clone(&self.maker), position },
        };
        let scaled = |task| match resized {
            Some(frame_hw) => Task::Resized { task: Box::new(task), frame_hw },
            None => task,
        };
        Some(positions.map(task).map(scaled).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_rare_and_badly_found_classes_weigh_more() {
        let labelled = |classes: &[u32]| {
            let labels: Vec<_> =
                classes.iter().map(|&class| data::Label { class, cx: 0.5, cy: 0.5, w: 0.1, h: 0.1 }).collect();
            let segments = vec![None; labels.len()];
            Sample { path: "a.png".into(), width: 8, height: 8, labels, segments }
        };
        // Class 0 three times, class 1 once, class 2 never: inverse frequencies 1/3, 1 and 1 of 7/3.
        let samples = [labelled(&[0, 0]), labelled(&[0, 1]), labelled(&[])];
        let settings = WorkSettings { samples: Arc::new(samples.to_vec()), ..settings() };
        let weights = |maps: &[f64]| settings.weighted_by_classes(3, maps).weights.unwrap().to_vec();
        let close = |got: Vec<f64>, want: [f64; 3]| {
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12), "{got:?}, not {want:?}");
        };
        close(weights(&[]), [2.0 / 7.0, 4.0 / 7.0, 0.0]);
        close(weights(&[0.5, 0.2, 0.9]), [0.25 * 2.0 / 7.0, 0.25 / 7.0 + 0.64 * 3.0 / 7.0, 0.0]);
    }

    fn settings() -> WorkSettings {
        let sample = Sample { path: "a.png".into(), width: 8, height: 8, labels: Vec::new(), segments: Vec::new() };
        WorkSettings {
            samples: Arc::new(vec![sample]),
            config: AugmentConfig::NONE,
            size: 64,
            stride: 32,
            batch: 1,
            seed: 0,
            epochs: 2,
            close_mosaic: 0,
            rect: false,
            multi_scale: false,
            weights: None,
        }
    }

    #[test]
    fn an_epoch_that_cannot_be_drawn_is_an_error_and_not_the_end() {
        let mut settings = settings();
        settings.config.mosaic = 1.0;
        let mut work = Work::new(settings, 0, 0).unwrap();
        let failure = work.failure();
        work.settings.config.scale = 2.0;
        assert_eq!(work.next().map(|tasks| tasks.len()), Some(1));
        assert!(work.next().is_none());
        assert!(failure.take().unwrap().to_string().contains("scale"));
    }
}
