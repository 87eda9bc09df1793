//! Validation of a weight file.

use crate::checkpoint::{HYP_KEY, load_fitted};
use crate::device::Device;
use crate::evaluate::{EvalSettings, Evaluation, Evaluator, evaluate};
use crate::footprint::Room;
use crate::hyp::Hyp;
use crate::image_set::{self, ScanWish};
use crate::plans::loss_config;
use crate::summary::ValSummary;
use crate::table::{class_rows, table};
use crate::{Observer, Task, TrainError, ValOptions, pictures, setup};
use data::{Sample, Split};
use model::Branches;
use model::weights::WeightsMeta;
use report::predictions::{CocoDetection, ImageIds, write_coco_json, write_yolo_rows, yolo_row};
use std::path::Path;
use std::sync::Arc;

/// Below this confidence metrics are complete.
const COMPLETE_CONF: f64 = 0.001;

/// Validates a weight file on a part of a data set.
///
/// The losses have the gains that the weights were trained with, or those of `hyp.scratch-high.yaml` where the file
/// does not say. They need the training state of dual models, which a folded file
/// of the main branch alone does not hold; such files are validated without.
///
/// # Errors
/// Missing or damaged files, other classes than those of the data, options out of range.
pub fn validate(options: &ValOptions, observer: &mut dyn Observer) -> Result<ValSummary, TrainError> {
    let device = Device::choose(&options.device, options.precision, observer)?;
    check(options)?;
    setup::check_name(&options.name)?;
    let loaded = load_fitted(&options.weights, options.cfg.as_deref(), observer)?;
    let folded = loaded.fitted.fold()?;
    let model = Arc::new(loaded.fitted.model);
    let dataset = image_set::load_dataset(&options.data, observer)?;
    let names = if options.single_cls { setup::class_names(&dataset, true) } else { dataset.names.clone() };
    if model.nc != dataset.nc() && !options.single_cls {
        return Err(TrainError::ClassCount {
            weights: options.weights.clone(),
            model: model.nc,
            yaml: options.data.clone(),
            data: dataset.nc(),
        });
    }
    let trained = loaded.meta.as_ref().map(|m| m.names.as_slice()).unwrap_or_default();
    if let Some((i, (own, there))) = trained.iter().zip(&dataset.names).enumerate().find(|(_, (a, b))| a != b) {
        observer.warn(&format!("the weights call class {i} {own}, {} calls it {there}", options.data.display()));
    }
    let size = setup::round_size(options.imgsz, model.size_multiple(), observer);
    let split = match options.task {
        Task::Train => Split::Train,
        Task::Val => Split::Val,
        Task::Test => Split::Test,
    };
    let wish = ScanWish { split, for_training: false, single_cls: options.single_cls, min_items: options.min_items };
    let (samples, report) = image_set::scan(&dataset, wish, observer)?;

    // With several classes folded into one, the model's classes are not those of the labels; and the loss of a dual
    // model needs both branches.
    let whole = loaded.fitted.branches == Branches::All || !model.has_aux();
    let with_loss = (!options.single_cls || model.nc == 1) && whole;
    let trained_with = || trained_with(&options.weights, loaded.meta.as_ref(), observer);
    let loss = with_loss.then(trained_with).map(|hyp| loss_config(&model, &hyp));
    let mut evaluator = Evaluator::new(device.clone(), Arc::clone(&model), loss);
    let settings = EvalSettings {
        batch: options.batch_size,
        size,
        rect: options.rect,
        workers: options.workers,
        single_cls: options.single_cls,
        nms: EvalSettings::nms(options.conf_thres, options.iou_thres, options.max_det, options.single_cls),
        keep_pictures: !options.noplots,
    };
    let mut room = Room::new(options.memory_available, &device)?;
    if let Some(plan) = evaluator.largest_plan(&samples, &settings)? {
        room.take_evaluation("validation", &evaluator, &plan, observer)?;
        evaluator.reserve(plan)?;
    }
    let folder = report::run_folder::create_run_folder(&options.project, &options.name, options.exist_ok)?;
    evaluator.set_folded_weights(folded)?;
    if options.conf_thres > COMPLETE_CONF {
        observer.warn(&format!(
            "--conf {} leaves weak predictions out: average precision comes out lower than at {COMPLETE_CONF}",
            options.conf_thres
        ));
    }
    let pool = image_set::passing_pool(Arc::clone(&samples), size);
    let evaluation = evaluate(&mut evaluator, &pool, &names, &settings, observer)?
        .ok_or(TrainError::Stopped { what: "the validation" })?;

    let mut lines = table(&evaluation, true);
    if options.verbose && lines.len() == 2 && evaluation.classes.len() > 1 {
        lines.extend(class_rows(&evaluation));
    }
    lines.iter().for_each(|line| observer.info(line));
    if with_loss {
        let [box_loss, cls_loss, dfl_loss] = evaluation.metrics.losses;
        observer.info(&format!("loss: box {box_loss:.4}, class {cls_loss:.4}, DFL {dfl_loss:.4}"));
    }
    let seconds = evaluation.elapsed.as_secs_f64();
    observer.info(&format!(
        "{} images in {seconds:.1} s, {:.1} ms an image",
        evaluation.images,
        1e3 * seconds / evaluation.images.max(1) as f64
    ));
    save(options, &folder, &samples, &evaluation)?;
    if !options.noplots {
        pictures::draw_validation(&folder, &evaluation.drawn, &names)?;
    }
    Ok(ValSummary {
        folder,
        metrics: evaluation.metrics,
        images: evaluation.images,
        instances: evaluation.instances,
        skipped: evaluation.skipped + report.dropped,
        classes: evaluation.classes,
        table: lines,
    })
}

fn check(options: &ValOptions) -> Result<(), TrainError> {
    check_thresholds(options.conf_thres, options.iou_thres, options.max_det)?;
    if !(1..=65_536).contains(&options.batch_size) {
        return Err(TrainError::option("batch", format!("{} must be between 1 and 65536", options.batch_size), None));
    }
    if !(1..=16_384).contains(&options.imgsz) {
        return Err(TrainError::option("img", format!("{} must be between 1 and 16384", options.imgsz), None));
    }
    Ok(())
}

/// The hyper-parameters of the run that wrote the weights.
fn trained_with(path: &Path, meta: Option<&WeightsMeta>, observer: &mut dyn Observer) -> Hyp {
    let Some(text) = meta.and_then(|meta| meta.extra.get(HYP_KEY)) else { return Hyp::default() };
    match Hyp::parse(&path.display().to_string(), text) {
        Ok((hyp, _)) => hyp,
        Err(problem) => {
            observer.warn(&format!("{problem}; losses are computed with the gains of hyp.scratch-high.yaml"));
            Hyp::default()
        }
    }
}

/// Refuses thresholds that are no fractions.
pub(crate) fn check_thresholds(conf: f64, iou: f64, max_det: usize) -> Result<(), TrainError> {
    for (flag, value) in [("conf", conf), ("iou", iou)] {
        if !(0.0..=1.0).contains(&value) {
            return Err(TrainError::option(flag, format!("{value} must be between 0 and 1"), None));
        }
    }
    if max_det == 0 {
        return Err(TrainError::option("max-det", "must be at least 1", None));
    }
    Ok(())
}

fn save(options: &ValOptions, folder: &Path, samples: &[Sample], evaluation: &Evaluation) -> Result<(), TrainError> {
    let mut names = report::output_names::OutputNames::default();
    let mut coco = Vec::new();
    let mut ids = ImageIds::default();
    let labels = folder.join("labels");
    if options.save_txt {
        std::fs::create_dir_all(&labels).map_err(TrainError::io("create", &labels))?;
    }
    for result in &evaluation.results {
        let Some(sample) = samples.get(result.sample) else { continue };
        let stem = names.assign(&sample.path).stem;
        if options.save_json {
            let id = ids.assign(&stem);
            for d in &result.detections {
                coco.push(CocoDetection::new(id.clone(), d.class, d.corners, d.score)?);
            }
        }
        if options.save_txt && !result.detections.is_empty() {
            let row = |d: &detect::nms::Detection| {
                let xywh = fractions(d.corners, sample.width, sample.height);
                yolo_row(d.class as usize, xywh, options.save_conf.then_some(d.score))
            };
            let rows: Vec<String> = result.detections.iter().map(row).collect();
            write_yolo_rows(&labels.join(format!("{stem}.txt")), &rows)?;
        }
    }
    if options.save_json {
        write_coco_json(&folder.join("predictions.json"), &coco)?;
    }
    Ok(())
}

/// Centre, width and height as fractions of a picture, from corners in its pixels.
pub(crate) fn fractions(corners: [f32; 4], width: u32, height: u32) -> [f32; 4] {
    let (w, h) = (width.max(1) as f32, height.max(1) as f32);
    let [x0, y0, x1, y1] = corners;
    [(x0 + x1) / 2.0 / w, (y0 + y1) / 2.0 / h, (x1 - x0) / w, (y1 - y0) / h]
}
