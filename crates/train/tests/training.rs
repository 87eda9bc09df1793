//! Whole runs of a tiny data set: what a run leaves behind, and that neither threads nor interruptions change it.

mod common;

use common::{Memory, data_set, tiny};
use std::path::{Path, PathBuf};
use train::{LrScale, Optimizer, Partners, Resume, TrainEnd, TrainError, TrainOptions, Workers, run};

/// Every tensor of a checkpoint: averages, raw weights, optimiser state, waiting gradients.
fn tensors(path: &Path) -> model::NamedTensors {
    model::weights::load(path).unwrap().tensors
}

fn trained(options: &TrainOptions) -> PathBuf {
    run(options, &mut Memory::default()).unwrap().last.unwrap()
}

#[test]
fn interrupted_runs_end_bit_for_bit_as_whole_ones() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    for optimizer in [Optimizer::Sgd, Optimizer::AdamW] {
        let options = |name: &str| TrainOptions { optimizer, ..tiny(folder.path(), &data, name) };
        let whole = trained(&options("whole"));
        // After 1 batch a gradient waits inside of an epoch; after 4 one waits that began in the epoch before.
        for stop in [1, 4] {
            let name = format!("cut{stop}");
            let cut = run(&options(&name), &mut Memory { stop_after: Some(stop), ..Memory::default() }).unwrap();
            assert_eq!(cut.end, TrainEnd::Interrupted);
            let wish = TrainOptions { resume: Some(Resume::From(cut.folder.clone())), ..TrainOptions::default() };
            let resumed = run(&wish, &mut Memory::default()).unwrap();
            assert_eq!((resumed.end, resumed.epochs, &resumed.folder), (TrainEnd::Finished, 2, &cut.folder));
            assert!(tensors(&whole) == tensors(&resumed.last.unwrap()), "{optimizer:?} cut after {stop} batches");
            let csv = |run: &Path| std::fs::read_to_string(run.join("results.csv")).unwrap();
            assert_eq!(csv(whole.parent().unwrap().parent().unwrap()), csv(&resumed.folder));
        }
    }
}

#[test]
fn yolov9_t_trains_the_same_weights_on_one_and_two_threads() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let with_threads = |threads: usize| {
        let cfg = Some(PathBuf::from("models/detect/yolov9-t.yaml"));
        let options = TrainOptions { cfg, epochs: 1, noval: true, ..tiny(folder.path(), &data, "t") };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        tensors(&pool.install(|| trained(&options)))
    };
    assert!(with_threads(1) == with_threads(2));
}

#[test]
fn one_and_two_threads_train_the_same_weights() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let with_threads = |threads: usize| {
        let options = TrainOptions { workers: Workers::Count(threads), ..tiny(folder.path(), &data, "threads") };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        tensors(&pool.install(|| trained(&options)))
    };
    assert!(with_threads(1) == with_threads(2));
}

#[test]
fn a_run_leaves_its_files_and_can_be_extended() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 5, 3);
    let options = TrainOptions { noplots: false, save_period: 1, ..tiny(folder.path(), &data, "files") };
    let mut memory = Memory::default();
    let summary = run(&options, &mut memory).unwrap();
    for name in ["results.csv", "hyp.yaml", "opt.yaml", "train_batch0.jpg", "train_batch2.jpg", "val_batch0_labels.jpg"]
    {
        assert!(summary.folder.join(name).is_file(), "{name}");
    }
    for name in ["last", "best", "epoch0", "epoch1"] {
        assert!(summary.folder.join(format!("weights/{name}.safetensors")).is_file(), "{name}");
    }
    assert!(summary.pictures.iter().all(|p| p.is_file()) && summary.pictures.len() == 5);
    let table = report::results_csv::read_results(&summary.folder.join("results.csv")).unwrap();
    assert_eq!(table.rows.len(), 2);
    assert!(table.rows.iter().flatten().all(|v| v.is_finite()));
    assert!(table.rows.iter().all(|r| r[1] > 0.0 && r[8] > 0.0), "losses of training and validation");
    assert!(memory.lines.iter().any(|l| l.contains("closing mosaic")));
    let saved = std::fs::read_to_string(summary.folder.join("opt.yaml")).unwrap();
    assert!(saved.contains("partners: window:1024") || saved.contains("partners: \"window:1024\""), "{saved}");

    let again = |epochs: usize, given: &[&str]| TrainOptions {
        resume: Some(Resume::From(summary.folder.join("weights/last.safetensors"))),
        epochs,
        batch_size: 4,
        given: given.iter().map(|s| s.to_string()).collect(),
        ..TrainOptions::default()
    };
    let finished = run(&again(2, &["epochs"]), &mut Memory::default()).unwrap_err();
    assert!(matches!(finished, TrainError::Resume { .. }) && finished.hint().unwrap().contains("--epochs"));
    let refused = run(&again(3, &["epochs", "batch-size"]), &mut Memory::default()).unwrap_err();
    assert!(refused.to_string().contains("--batch 4 was asked for, but the run has 3"), "{refused}");
    let longer = run(&again(3, &["epochs"]), &mut Memory::default()).unwrap();
    assert_eq!(longer.epochs, 3);

    std::fs::write(summary.folder.join("../changed"), "").unwrap();
    std::fs::write(folder.path().join("labels/train/train00.txt"), "1 0.5 0.5 0.2 0.2\n").unwrap();
    let changed = run(&again(4, &["epochs"]), &mut Memory::default()).unwrap_err();
    assert!(changed.to_string().contains("has changed since it began"), "{changed}");
}

#[test]
fn single_branch_with_rectangles_one_class_and_frozen_layers_trains() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 5, 2);
    let options = tiny(folder.path(), &data, "gelan");
    let cfg = options.cfg.clone().unwrap();
    let text = std::fs::read_to_string(&cfg).unwrap();
    let single = text.replace("[[3, 4, 5, 3, 9, 6], 1, DualDDetect, [nc]]", "[[3, 9, 6], 1, DDetect, [nc]]");
    assert_ne!(text, single);
    std::fs::write(&cfg, single).unwrap();
    let options = TrainOptions { rect: true, single_cls: true, freeze: vec![1, 2], min_items: 1, ..options };
    let last = trained(&options);
    let meta = model::weights::load(&last).unwrap().meta.unwrap();
    let model =
        model::Model::from_yaml(&meta.model, model::Source::Text("last".into()), meta.yaml, Some(meta.nc)).unwrap();
    assert_eq!((model.nc, model.has_aux()), (1, false));
    let (start, end) = (model::init(&model, 0).unwrap(), tensors(&last));
    let moved = |name: &str| start.get(name).unwrap() != end.get(&format!("resume/weights/{name}")).unwrap();
    assert!(!moved("model.1.conv.weight") && !moved("model.2.cv1.bn.bias"));
    assert!(moved("model.0.conv.weight") && moved("model.10.cv3.0.2.bias"));
}

#[test]
fn weights_of_another_run_start_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let first = trained(&TrainOptions { epochs: 1, ..tiny(folder.path(), &data, "first") });
    let mut memory = Memory::default();
    let options = TrainOptions { weights: Some(first), cfg: None, epochs: 1, ..tiny(folder.path(), &data, "second") };
    run(&options, &mut memory).unwrap();
    let line = memory.lines.iter().find(|l| l.contains("Transferred")).unwrap();
    let counts = line.split("Transferred ").nth(1).unwrap().split(' ').next().unwrap();
    let (have, all) = counts.split_once('/').unwrap();
    assert_eq!(have, all, "{line}");
}

#[test]
fn a_memory_budget_changes_no_weight_and_one_too_small_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let options = TrainOptions { epochs: 1, noval: true, ..tiny(folder.path(), &data, "budget") };
    let mut memory = Memory::default();
    let free = run(&options, &mut memory).unwrap();
    let arena = |memory: &Memory| -> f64 {
        let line = memory.lines.iter().find_map(|l| l.strip_prefix("memory of a step: ")).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let line = memory.lines.iter().find_map(|l| l.strip_prefix("allocated: ")).unwrap();
    let allocated: f64 = line.split(' ').next().unwrap().parse().unwrap();
    assert!((arena(&memory) - allocated / f64::from(1 << 20)).abs() < 0.051, "what was planned is taken: {line}");
    let budget = (arena(&memory) * 0.9 * f64::from(1 << 20)) as u64;
    let mut squeezed = Memory::default();
    let tight = run(&TrainOptions { memory_budget: Some(budget), ..options.clone() }, &mut squeezed).unwrap();
    assert!(arena(&squeezed) <= 0.91 * arena(&memory));
    assert!(tensors(&free.last.unwrap()) == tensors(&tight.last.unwrap()));
    let error = run(&TrainOptions { memory_budget: Some(1), ..options }, &mut Memory::default()).unwrap_err();
    assert!(error.hint().unwrap().contains("--memory-budget"), "{error}");
}

#[test]
fn nan_stops_the_run_and_names_epoch_batch_and_term() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 1);
    let model = model::Model::load("yolov9-t", Some(2)).unwrap();
    let mut weights = model::init(&model, 0).unwrap();
    weights.values_mut("model.0.conv.weight").unwrap()[0] = f32::NAN;
    let path = folder.path().join("nan.safetensors");
    let meta = model::weights::WeightsMeta::of(&model, vec!["red".to_owned(), "blue".to_owned()], false);
    model::weights::save(&path, &weights, &meta).unwrap();
    let options = TrainOptions { weights: Some(path), cfg: None, ..tiny(folder.path(), &data, "nan") };
    let error = run(&options, &mut Memory::default()).unwrap_err();
    assert!(error.to_string().ends_with("is not finite in epoch 0, batch 0"), "{error}");
    assert!(matches!(&error, TrainError::NotFinite { term, kept: None, .. } if term.contains("loss")), "{error}");
    assert!(!folder.path().join("runs/nan/weights/last.safetensors").exists());
}

#[test]
fn truncated_checkpoint_says_how_many_bytes_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 1, ..tiny(folder.path(), &data, "cut") };
    let last = trained(&options);
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..bytes.len() / 2]).unwrap();
    let wish = TrainOptions { resume: Some(Resume::From(last)), ..TrainOptions::default() };
    let message = run(&wish, &mut Memory::default()).unwrap_err().to_string();
    assert!(message.contains("truncated") && message.contains(&bytes.len().to_string()), "{message}");
}

#[test]
fn options_that_cannot_be_obeyed_are_refused_by_name() {
    let base = TrainOptions { cfg: Some(PathBuf::from("yolov9-t")), ..TrainOptions::default() };
    let refuse = |options: TrainOptions, flag: &str| {
        let error = run(&options, &mut Memory::default()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("--{flag}: ")), "{error}");
    };
    refuse(TrainOptions { epochs: 0, ..base.clone() }, "epochs");
    refuse(TrainOptions { batch_size: -2, ..base.clone() }, "batch");
    refuse(TrainOptions { batch_size: 0, ..base.clone() }, "batch");
    refuse(TrainOptions { image_weights: true, rect: true, ..base.clone() }, "image-weights");
    refuse(TrainOptions { cos_lr: true, fixed_lr: true, ..base.clone() }, "cos-lr");
    refuse(TrainOptions { gradient_accumulation_steps: Some(0), ..base.clone() }, "gradient-accumulation-steps");
    refuse(TrainOptions { lr_base_batch: Some(32), ..base.clone() }, "lr-base-batch");
    refuse(TrainOptions { lr_base_batch: Some(0), lr_scale: LrScale::Linear, ..base.clone() }, "lr-base-batch");
    for label_smoothing in [1.0, -0.1, f64::NAN] {
        refuse(TrainOptions { label_smoothing, ..base.clone() }, "label-smoothing");
    }
    for name in ["", "..", "/tmp/exp", "a\nb", &"long".repeat(60)] {
        refuse(TrainOptions { name: name.to_owned(), ..base.clone() }, "name");
    }
    refuse(TrainOptions { device: "gpu?".to_owned(), ..base }, "device");
}

#[test]
fn a_card_that_is_not_there_is_warned_about_not_refused() {
    let mut memory = Memory::default();
    let options =
        TrainOptions { device: "0".to_owned(), data: PathBuf::from("nowhere.yaml"), ..TrainOptions::default() };
    let error = run(&options, &mut memory).unwrap_err();
    assert!(matches!(error, TrainError::Missing { .. }), "{error}");
    assert!(memory.warnings[0].contains("--device 0"));
}

#[test]
fn a_run_without_the_memory_for_it_recomputes_or_is_refused_with_what_would_fit() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let options = TrainOptions { batch_size: 6, epochs: 1, ..tiny(folder.path(), &data, "memory") };
    let refused = |options: &TrainOptions| {
        let error = run(options, &mut Memory::default()).unwrap_err();
        let hint = error.hint().unwrap();
        let TrainError::Memory { needed, available, .. } = error else { panic!("{error}") };
        assert_eq!(Some(available), options.memory_available);
        (needed, hint)
    };
    let (needed, hint) = refused(&TrainOptions { memory_available: Some(1), ..options.clone() });
    assert!(hint.contains("lower --img"), "{hint}");
    // A budget of the user's own is never replaced.
    let tight = TrainOptions { memory_available: Some(needed - 1), ..options.clone() };
    let (_, hint) = refused(&TrainOptions { memory_budget: Some(u64::MAX), ..tight.clone() });
    assert!(hint.contains("--batch 3 fits"), "{hint}");
    assert!(!folder.path().join("runs").exists(), "nothing is written before it is known to fit");
    let budget = hint.split("--memory-budget ").nth(1).unwrap().split(' ').next().unwrap();
    let factor = if budget.ends_with("MiB") { 1 << 20 } else { 1 };
    let budget = budget.trim_end_matches("MiB").parse::<u64>().unwrap() * factor;
    let mut memory = Memory::default();
    let squeezed = run(&tight, &mut memory).unwrap();
    assert!(memory.warnings.iter().any(|w| w.contains("computed twice")), "{:?}", memory.warnings);
    let free =
        run(&TrainOptions { memory_available: Some(needed), ..options.clone() }, &mut Memory::default()).unwrap();
    assert!(tensors(&free.last.unwrap()) == tensors(&squeezed.last.unwrap()));
    for fits in [TrainOptions { batch_size: 3, ..tight.clone() }, TrainOptions { memory_budget: Some(budget), ..tight }]
    {
        run(&fits, &mut Memory::default()).unwrap();
    }
}

#[test]
fn partners_are_a_window_or_fresh() {
    for text in ["fresh", "window:1", "window:300"] {
        assert_eq!(text.parse::<Partners>().unwrap().to_string(), text);
    }
    for text in ["", "window", "window:0", "window:-1", "window:x", "Fresh"] {
        assert!(text.parse::<Partners>().is_err(), "{text}");
    }
    assert_eq!(Partners::default().to_string(), "window:1024");
}
