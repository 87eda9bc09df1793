//! From options to a run that is ready for its first batch: everything that can be refused is refused here.

use super::data_watch::{DataWatch, Means};
use super::{Run, Validation};
use crate::checkpoint::{RunState, RunTensors, SavedLossScale};
use crate::device::{Device, Purpose};
use crate::evaluate::{EvalSettings, Evaluator};
use crate::fingerprint::Fingerprint;
use crate::footprint::{self, Footprint, Room};
use crate::image_set::{self, CacheWish, ScanWish, cores};
use crate::plans::{GraphSettings, InputShape, TrainingSettings, loss_config};
use crate::saving::Saver;
use crate::setup::{self, Settled};
use crate::step::{StepPlan, Stepper};
use crate::telemetry::RunTelemetry;
use crate::work::{self, WorkSettings};
use crate::{Cache, Observer, Partners, TrainError, TrainOptions, cache_choice, card_pictures, leftovers, new_length};
use data::{LoaderOptions, Split};
use detect::LossConfig;
use graph::{Level, Recompute};
use model::NamedTensors;
use report::results_csv::ResultsCsv;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Run {
    pub(super) fn prepare(device: Device, settled: Settled, observer: &mut dyn Observer) -> Result<Self, TrainError> {
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
        observer.info(&format!("allocated: {} bytes of arena", stepper.arena_bytes()));

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
        let telemetry = RunTelemetry::start(&device, &folder, wrote_last, observer);
        let csv = match state.epoch {
            0 => ResultsCsv::create(&csv_path, &telemetry.columns())?,
            next => ResultsCsv::resume(&csv_path, &telemetry.columns(), next)?,
        };

        let saver = Saver::start(&weights, model, names.clone(), wrote_last)?;
        let all_stay = pool.keeps_all() || card_bytes.is_some_and(|bytes| bytes >= card_pictures::bytes_of_all(&work));
        let means = Means { threads, cores: cores(), cache, all_stay };
        let data_watch = DataWatch::new(means, pool.times());
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
            telemetry,
            data_watch,
            pictures: Vec::new(),
            unsaved_best: None,
            saver,
            _lock: lock,
        })
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
