//! Validation: folded weights over a set of images, from loader to average precision.

use crate::device::{Device, Purpose};
use crate::image_set::loader_options;
use crate::plans::{self, Compiled, Decoding, GraphSettings, InputShape, LossValues, PackedTargets, PlanCache};
use crate::summary::{ClassMetrics, Metrics};
use crate::{Observer, Progress, TrainError};
use data::rect::rect_plan;
use data::validation::ValGeometry;
use data::{Batch, ImagePool, Loader, Task};
use detect::LossConfig;
use detect::average_precision::{Scored, ap_per_class};
use detect::boxes::Letterbox;
use detect::matching::{Label, match_detections};
use detect::nms::{Detection, NmsConfig};
use graph::{Executor, ParamLayout, Region, StateSpec};
use model::{Model, NamedTensors};
use rayon::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Batches whose pictures are kept for drawing, and pictures of each.
const DRAWN_BATCHES: usize = 3;
const DRAWN_IMAGES: usize = 16;

/// A model with folded weights on a device of its own.
pub(crate) struct Evaluator {
    device: Device,
    pub model: Arc<Model>,
    settings: GraphSettings,
    weights: NamedTensors,
    running: Option<(Box<dyn Executor>, ParamLayout)>,
    plans: PlanCache,
    /// The largest plan, which the first step allocates so that the arena never has to grow.
    reserved: Option<EvalPlan>,
}

/// A plan that is compiled and not yet allocated.
pub(crate) struct EvalPlan {
    shape: InputShape,
    compiled: Compiled,
    spec: StateSpec,
    decode: Decoding,
    max_boxes: usize,
    flat_bytes: u64,
}

/// What a batch came to.
pub(crate) struct Found {
    /// Of each image, in network pixels, best first.
    pub detections: Vec<Vec<Detection>>,
    /// Predictions (images, anchors, 4 + nc) where they were asked for.
    pub raw: Vec<f32>,
    /// Where the evaluator was made with a loss.
    pub losses: Option<LossValues>,
}

impl EvalPlan {
    pub fn shape(&self) -> InputShape {
        self.shape
    }

    pub fn decode(&self) -> &Decoding {
        &self.decode
    }

    /// Boxes that a batch may have.
    pub fn max_boxes(&self) -> usize {
        self.max_boxes
    }

    /// Bytes of the arena.
    pub fn arena(&self) -> u64 {
        self.compiled.plan.memory().arena
    }

    /// Bytes of weights and running statistics.
    pub fn flat_bytes(&self) -> u64 {
        self.flat_bytes
    }
}

impl Evaluator {
    /// Without a loss only the main branch is computed.
    pub fn new(device: Device, model: Arc<Model>, loss: Option<LossConfig>) -> Self {
        let precision = device.precision(Purpose::Inference);
        let settings = GraphSettings { precision, loss, decode: None, training: None };
        let (weights, plans) = (NamedTensors::new(), PlanCache::default());
        Self { device, model, settings, weights, running: None, plans, reserved: None }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Compiles the plan of a shape.
    pub fn plan(&self, shape: InputShape, max_boxes: usize, decode: &Decoding) -> Result<EvalPlan, TrainError> {
        let backend = self.device.backend(Purpose::Inference);
        let compiled = plans::compile(&self.model, backend.as_ref(), &self.settings(decode), shape, max_boxes)?;
        let spec = StateSpec { layout: compiled.plan.params().clone(), optimizer: None, ema: false };
        let flat_bytes = self.device.flat_bytes(&spec, Purpose::Inference);
        Ok(EvalPlan { shape, compiled, spec, decode: decode.clone(), max_boxes, flat_bytes })
    }

    fn settings(&self, decode: &Decoding) -> GraphSettings {
        GraphSettings { decode: Some(decode.clone()), ..self.settings.clone() }
    }

    /// Compiles the plan of the largest batch of a set; `None` for a set without images.
    pub fn largest_plan(
        &self,
        samples: &[data::Sample],
        settings: &EvalSettings,
    ) -> Result<Option<EvalPlan>, TrainError> {
        let shapes = batches(samples, settings, self.model.size_multiple()).into_iter().filter_map(|tasks| {
            let Some(Task::Validate { frame_hw, .. }) = tasks.first() else { return None };
            let [height, width] = frame_hw.map(|side| side as usize);
            Some(InputShape { images: tasks.len(), height, width })
        });
        let largest = shapes.max_by_key(|s| (s.images * s.height * s.width, *s));
        largest.map(|shape| self.plan(shape, most_boxes(samples, settings), &settings.decode())).transpose()
    }

    /// Keeps a plan for the first step. A card's memory is taken at once: it may not be there later.
    pub fn reserve(&mut self, plan: EvalPlan) -> Result<(), TrainError> {
        match self.device {
            Device::Cpu => self.reserved = Some(plan),
            Device::Card(_) => self.allocate(plan)?,
        }
        Ok(())
    }

    fn allocate(&mut self, plan: EvalPlan) -> Result<(), TrainError> {
        let mut executor = self.device.executor(&plan.spec, Purpose::Inference)?;
        if !self.weights.is_empty() {
            write_weights(executor.as_mut(), &plan.spec.layout, &self.weights)?;
        }
        self.plans.add(executor.as_mut(), plan.shape, plan.compiled)?;
        self.running = Some((executor, plan.spec.layout));
        Ok(())
    }

    /// Takes the weights of a training state dict and folds them.
    pub fn set_training_weights(&mut self, tensors: &NamedTensors) -> Result<(), TrainError> {
        self.set_folded_weights(model::fold(tensors)?)
    }

    /// Takes folded weights.
    pub fn set_folded_weights(&mut self, tensors: NamedTensors) -> Result<(), TrainError> {
        self.weights = tensors;
        if let Some((executor, layout)) = &mut self.running {
            write_weights(executor.as_mut(), layout, &self.weights)?;
        }
        Ok(())
    }

    /// Finds objects in a batch of pixels.
    pub fn run(
        &mut self,
        shape: InputShape,
        pixels: &[u8],
        targets: &PackedTargets,
        max_boxes: usize,
        decode: &Decoding,
    ) -> Result<Found, TrainError> {
        let settings = self.settings(decode);
        let boxes = targets.len().max(max_boxes);
        if self.running.is_none() {
            let plan = match self.reserved.take() {
                Some(plan) => plan,
                None => self.plan(shape, boxes, decode)?,
            };
            self.allocate(plan)?;
        }
        let Some((executor, _)) = &mut self.running else {
            return Ok(Found { detections: Vec::new(), raw: Vec::new(), losses: None });
        };
        let executor = executor.as_mut();
        let plan = self.plans.get(executor, &self.model, &settings, shape, boxes)?;
        plan.upload(executor, pixels, Some(targets))?;
        executor.run(plan.id)?;
        let (detections, raw) = (plan.detections(executor)?, plan.predictions(executor)?);
        Ok(Found { detections, raw, losses: plan.losses(executor)? })
    }
}

fn write_weights(executor: &mut dyn Executor, layout: &ParamLayout, tensors: &NamedTensors) -> Result<(), TrainError> {
    let (mut weights, mut buffers) = (vec![0.0f32; layout.weight_elements()], vec![0.0f32; layout.buffer_elements()]);
    tensors.scatter(layout, &mut weights, &mut buffers)?;
    executor.write_region(Region::Weights, &weights)?;
    if !buffers.is_empty() {
        executor.write_region(Region::Buffers, &buffers)?;
    }
    Ok(())
}

/// How a set is evaluated.
#[derive(Clone, Debug)]
pub(crate) struct EvalSettings {
    pub batch: usize,
    pub size: usize,
    pub rect: bool,
    pub workers: usize,
    pub single_cls: bool,
    pub nms: NmsConfig,
    /// Keep pictures of the first batches for drawing.
    pub keep_pictures: bool,
}

impl EvalSettings {
    fn decode(&self) -> Decoding {
        Decoding { nms: self.nms.clone(), raw: false }
    }

    /// What validation during training uses.
    pub fn nms(conf: f64, iou: f64, max_det: usize, single_cls: bool) -> NmsConfig {
        NmsConfig {
            conf_threshold: conf as f32,
            iou_threshold: iou,
            multi_label: true,
            agnostic: single_cls,
            classes: None,
            max_det,
        }
    }
}

/// Detections of one image.
#[derive(Clone, Debug)]
pub(crate) struct ImageResult {
    pub sample: usize,
    /// In pixels of the original, best first.
    pub detections: Vec<Detection>,
}

/// A batch kept for drawing: pictures in network pixels with their detections.
#[derive(Clone, Debug)]
pub(crate) struct DrawnBatch {
    pub batch: Batch,
    pub detections: Vec<Vec<Detection>>,
}

/// The result over a set.
#[derive(Clone, Debug)]
pub(crate) struct Evaluation {
    pub metrics: Metrics,
    pub fitness: f64,
    pub classes: Vec<ClassMetrics>,
    pub images: usize,
    pub instances: usize,
    pub skipped: usize,
    pub results: Vec<ImageResult>,
    pub drawn: Vec<DrawnBatch>,
    /// Images and time of the computation, loading included.
    pub elapsed: Duration,
}

impl Evaluation {
    /// mAP50-95 of each of `classes` classes; of one that the set does not hold, the mean of the others.
    pub fn class_maps(&self, classes: usize) -> Vec<f64> {
        let mut maps = vec![self.metrics.map50_95; classes];
        for found in &self.classes {
            if let Some(map) = maps.get_mut(found.class) {
                *map = found.map50_95;
            }
        }
        maps
    }
}

/// Evaluates a set. `None` where the observer asked to stop.
pub(crate) fn evaluate(
    evaluator: &mut Evaluator,
    pool: &Arc<ImagePool>,
    names: &[String],
    settings: &EvalSettings,
    observer: &mut dyn Observer,
) -> Result<Option<Evaluation>, TrainError> {
    let samples = Arc::clone(pool.samples());
    let work = batches(&samples, settings, evaluator.model.size_multiple());
    let max_boxes = most_boxes(&samples, settings);
    let total = work.len();
    let loader = Loader::new(Arc::clone(pool), work.into_iter(), loader_options(settings.workers))?;
    let decode = settings.decode();
    let mut sums = Sums::default();
    let start = Instant::now();
    for (done, batch) in loader.enumerate() {
        let batch = batch?;
        for problem in &batch.failures {
            observer.warn(&format!("{problem}; the image is skipped"));
        }
        sums.skipped += batch.failures.len();
        let [images, height, width, _] = batch.shape;
        if images > 0 {
            let targets = PackedTargets::of(&batch);
            let shape = InputShape { images, height, width };
            let found = evaluator.run(shape, &batch.pixels, &targets, max_boxes, &decode)?;
            sums.add(batch, found, settings);
        }
        let elapsed = start.elapsed();
        let per_second = sums.results.len() as f64 / elapsed.as_secs_f64().max(1e-9);
        let eta = elapsed.mul_f64((total - done - 1) as f64 / (done + 1) as f64);
        observer.progress(&Progress::Validate { done: done + 1, total, images_per_second: per_second, eta });
        if observer.should_stop() {
            return Ok(None);
        }
    }
    Ok(Some(sums.finish(names, start.elapsed())))
}

/// Most boxes that a batch can have.
fn most_boxes(samples: &[data::Sample], settings: &EvalSettings) -> usize {
    settings.batch * samples.iter().map(|s| s.labels.len()).max().unwrap_or(0)
}

/// The batches of a pass.
fn batches(samples: &[data::Sample], settings: &EvalSettings, stride: usize) -> Vec<Vec<Task>> {
    let (size, stride) = (settings.size as u32, stride as u32);
    if !settings.rect {
        let order: Vec<usize> = (0..samples.len()).collect();
        let tasks =
            |ids: &[usize]| ids.iter().map(|&sample| Task::Validate { sample, frame_hw: [size, size] }).collect();
        return order.chunks(settings.batch.max(1)).map(tasks).collect();
    }
    let wh: Vec<[u32; 2]> = samples.iter().map(|s| [s.width, s.height]).collect();
    let plan = rect_plan(&wh, size, settings.batch, stride, 0.5);
    plan.batches(settings.batch)
        .map(|(ids, frame_hw)| ids.iter().map(|&sample| Task::Validate { sample, frame_hw }).collect())
        .collect()
}

#[derive(Default)]
struct Sums {
    scored: Vec<Scored>,
    label_classes: Vec<u32>,
    /// Images that hold each class.
    class_images: std::collections::BTreeMap<u32, usize>,
    losses: [f64; 3],
    batches: usize,
    skipped: usize,
    results: Vec<ImageResult>,
    drawn: Vec<DrawnBatch>,
}

impl Sums {
    fn add(&mut self, batch: Batch, found: Found, settings: &EvalSettings) {
        let [_, height, width, _] = batch.shape;
        let Found { detections, losses, .. } = found;
        let judged: Vec<Judged> = detections
            .into_par_iter()
            .enumerate()
            .map(|(i, mut detections)| {
                if settings.single_cls {
                    detections.iter_mut().for_each(|d| d.class = 0);
                }
                let geometry = batch.images[i].geometry;
                let native = |corners: [f32; 4]| match &geometry {
                    Some(g) => to_original(&placement(g), batch.images[i].original_hw, corners),
                    None => corners,
                };
                let labels: Vec<Label> = batch.targets[batch.offsets[i]..batch.offsets[i + 1]]
                    .iter()
                    .map(|t| Label { class: t.class, corners: native(corners_of(t.xywh, width, height)) })
                    .collect();
                let original: Vec<Detection> =
                    detections.iter().map(|d| Detection { corners: native(d.corners), ..*d }).collect();
                let correct = match_detections(&original, &labels);
                Judged { network: detections, original, labels, correct }
            })
            .collect();
        if let Some(losses) = losses {
            self.losses.iter_mut().zip(losses.items).for_each(|(sum, item)| *sum += item);
        }
        self.batches += 1;
        let mut network = Vec::new();
        for (image, judged) in batch.images.iter().zip(judged) {
            let scored = judged.original.iter().zip(&judged.correct);
            self.scored.extend(scored.map(|(d, &correct)| Scored { correct, score: d.score, class: d.class }));
            let mut classes: Vec<u32> = judged.labels.iter().map(|l| l.class).collect();
            self.label_classes.extend(&classes);
            classes.sort_unstable();
            classes.dedup();
            classes.iter().for_each(|&c| *self.class_images.entry(c).or_default() += 1);
            self.results.push(ImageResult { sample: image.sample, detections: judged.original });
            network.push(judged.network);
        }
        if settings.keep_pictures && self.drawn.len() < DRAWN_BATCHES {
            self.drawn.push(DrawnBatch { batch: shortened(batch), detections: network });
        }
    }

    fn finish(self, names: &[String], elapsed: Duration) -> Evaluation {
        let found = ap_per_class(&self.scored, &self.label_classes);
        let losses = self.losses.map(|sum| sum / self.batches.max(1) as f64);
        let classes = found
            .classes
            .iter()
            .map(|c| ClassMetrics {
                class: c.class as usize,
                name: names.get(c.class as usize).cloned().unwrap_or_else(|| c.class.to_string()),
                images: self.class_images.get(&c.class).copied().unwrap_or(0),
                instances: c.labels,
                precision: c.precision,
                recall: c.recall,
                map50: c.ap50(),
                map50_95: c.ap50_95(),
            })
            .collect();
        Evaluation {
            metrics: Metrics {
                precision: found.precision,
                recall: found.recall,
                map50: found.map50,
                map50_95: found.map50_95,
                losses,
            },
            fitness: crate::early_stopping::fitness(found.map50, found.map50_95),
            classes,
            images: self.results.len(),
            instances: self.label_classes.len(),
            skipped: self.skipped,
            results: self.results,
            drawn: self.drawn,
            elapsed,
        }
    }
}

struct Judged {
    network: Vec<Detection>,
    original: Vec<Detection>,
    labels: Vec<Label>,
    correct: Vec<[bool; detect::matching::THRESHOLDS]>,
}

/// Only the pictures that are drawn.
fn shortened(mut batch: Batch) -> Batch {
    let [images, height, width, channels] = batch.shape;
    let kept = images.min(DRAWN_IMAGES);
    batch.pixels.truncate(kept * height * width * channels);
    batch.shape[0] = kept;
    batch.images.truncate(kept);
    batch
}

/// Corners in pixels of a box in fractions of a `width` x `height` picture.
pub(crate) fn corners_of(xywh: [f32; 4], width: usize, height: usize) -> [f32; 4] {
    let (w, h) = (width as f32, height as f32);
    let [cx, cy, bw, bh] = xywh;
    [(cx - bw / 2.0) * w, (cy - bh / 2.0) * h, (cx + bw / 2.0) * w, (cy + bh / 2.0) * h]
}

/// How a validation picture lies in its frame: one gain for both sides, that of the height, as the reference scales
/// boxes back.
fn placement(geometry: &ValGeometry) -> Letterbox {
    let gain = (geometry.ratio_hw[0] * geometry.fit.ratio[1]).max(f64::MIN_POSITIVE);
    let [pad_x, pad_y] = geometry.fit.pad;
    Letterbox { gain, pad_x, pad_y }
}

/// Network pixels to pixels of the original picture, clipped to it.
pub(crate) fn to_original(placement: &Letterbox, original_hw: [u32; 2], corners: [f32; 4]) -> [f32; 4] {
    let [height, width] = original_hw.map(|side| side as usize);
    placement.to_original(&corners.map(f64::from), (height, width)).map(|v| v as f32)
}
