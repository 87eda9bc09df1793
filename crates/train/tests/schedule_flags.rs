//! The flags of schedule, loss and output in whole runs of a tiny data set: each does what it says.

mod common;

use common::{Memory, data_set, tiny};
use std::path::{Path, PathBuf};
use train::schedule::Decay;
use train::{LrScale, Observer, Optimizer, Progress, Resume, TrainEnd, TrainError, TrainOptions, TrainSummary, run};

fn tensors(path: &Path) -> model::NamedTensors {
    model::weights::load(path).unwrap().tensors
}

fn finished(options: &TrainOptions) -> TrainSummary {
    run(options, &mut Memory::default()).unwrap()
}

/// Tensors of `last.safetensors`, raw weights and optimiser state too.
fn trained(options: &TrainOptions) -> model::NamedTensors {
    tensors(&finished(options).last.unwrap())
}

/// Rows of `results.csv`.
fn results(folder: &Path) -> Vec<Vec<f64>> {
    report::results_csv::read_results(&folder.join("results.csv")).unwrap().rows
}

/// The hyper-parameters of the options with some lines replaced or added.
fn write_hyp(options: &TrainOptions, lines: &str) -> PathBuf {
    let key = |line: &str| line.split(':').next().unwrap().to_owned();
    let new: Vec<String> = lines.lines().map(key).collect();
    let old = std::fs::read_to_string(&options.hyp).unwrap();
    let kept: Vec<&str> = old.lines().filter(|line| !new.contains(&key(line))).collect();
    let path = options.hyp.with_file_name("other.yaml");
    std::fs::write(&path, kept.join("\n") + "\n" + lines).unwrap();
    path
}

/// Which weight files there are when a training batch is done.
#[derive(Default)]
struct Spy {
    weights: PathBuf,
    epoch: usize,
    /// Names by epoch.
    seen: Vec<Vec<String>>,
    stop_in: Option<usize>,
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names.iter().map(|name| name.trim_end_matches(".safetensors").to_owned()).collect()
}

impl Observer for Spy {
    fn info(&mut self, _line: &str) {}

    fn warn(&mut self, _line: &str) {}

    fn progress(&mut self, progress: &Progress) {
        if let Progress::Train(p) = progress {
            self.epoch = p.epoch;
            self.seen.truncate(p.epoch);
            self.seen.push(files(&self.weights));
        }
    }

    fn should_stop(&self) -> bool {
        self.stop_in.is_some_and(|epoch| epoch == self.epoch)
    }
}

#[test]
fn steps_of_n_batches_equal_a_nominal_batch_of_as_many_images() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    // 8 images in batches of 3, and a nominal batch of 6: two batches a step.
    let options = tiny(folder.path(), &data, "steps");
    let by_rule = trained(&options);
    let with = |n: usize| TrainOptions { gradient_accumulation_steps: Some(n), ..options.clone() };
    assert!(trained(&with(2)) == by_rule);
    let each = finished(&with(1));
    assert!(tensors(each.last.as_ref().unwrap()) != by_rule);

    let mut memory = Memory::default();
    run(&with(50), &mut memory).unwrap();
    assert!(memory.lines.iter().any(|l| l == "a step is 50 batches of 3: 150 images"), "{:?}", memory.lines);
    assert!(memory.warnings[0].starts_with("--gradient-accumulation-steps 50 is more than the 6 batches"));

    let wish = TrainOptions {
        resume: Some(Resume::From(each.folder)),
        gradient_accumulation_steps: Some(2),
        epochs: 3,
        given: vec!["gradient-accumulation-steps".to_owned(), "epochs".to_owned()],
        ..TrainOptions::default()
    };
    let refused = run(&wish, &mut Memory::default()).unwrap_err();
    let expected = "--gradient-accumulation-steps 2 was asked for, but the run has 1";
    assert!(refused.to_string().ends_with(expected), "{refused}");
}

#[test]
fn scaled_rates_train_as_a_file_with_those_rates() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let options = tiny(folder.path(), &data, "rates");
    // 3 images x 2 batches against a base of 3.
    let scaled = TrainOptions { lr_scale: LrScale::Linear, lr_base_batch: Some(3), ..options.clone() };
    let mut memory = Memory::default();
    let run_scaled = run(&scaled, &mut memory).unwrap();
    let rate = memory.lines.iter().find(|l| l.starts_with("learning rate ")).unwrap();
    assert!(rate.starts_with("learning rate 0.02 = lr0 0.01 x 2 (3 images x 2 batches a step / 3)"), "{rate}");
    assert!(memory.lines.iter().any(|l| l.contains("scaling is usually not needed")));
    let by_file = TrainOptions { hyp: write_hyp(&options, "lr0: 0.02\nwarmup_bias_lr: 0.2\n"), ..options.clone() };
    assert!(tensors(run_scaled.last.as_ref().unwrap()) == trained(&by_file));
    // Without a base the nominal batch is it, and a run of that batch stays as it was.
    let as_nominal = TrainOptions { lr_scale: LrScale::Linear, ..options.clone() };
    assert!(trained(&as_nominal) == trained(&options));
}

#[test]
fn label_smoothing_is_obeyed_from_the_flag_and_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let options = tiny(folder.path(), &data, "smooth");
    let plain = trained(&options);
    let flag = finished(&TrainOptions { label_smoothing: 0.1, ..options.clone() });
    let by_flag = tensors(flag.last.as_ref().unwrap());
    assert!(by_flag != plain);
    for name in ["hyp.yaml", "opt.yaml"] {
        let text = std::fs::read_to_string(flag.folder.join(name)).unwrap();
        assert!(text.lines().any(|l| l == "label_smoothing: 0.1"), "{name}: {text}");
    }
    let hyp = write_hyp(&options, "label_smoothing: 0.1\n");
    assert!(trained(&TrainOptions { hyp: hyp.clone(), ..options.clone() }) == by_flag);
    // A flag that was typed goes before the file, also where it says 0.
    let given = vec!["label-smoothing".to_owned()];
    assert!(trained(&TrainOptions { hyp, given, ..options.clone() }) == plain);
}

#[test]
fn weights_alone_decide_the_validation_loss_not_the_smoothing_they_learnt_with() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 2);
    // Nothing is learnt: both runs end with their initial weights.
    let options = tiny(folder.path(), &data, "still");
    let hyp = write_hyp(&options, "lr0: 0\nwarmup_bias_lr: 0\n");
    let options = TrainOptions { hyp, epochs: 1, ..options };
    let row = |label_smoothing: f64| {
        let summary = finished(&TrainOptions { label_smoothing, ..options.clone() });
        results(&summary.folder).remove(0)
    };
    let (plain, smooth) = (row(0.0), row(0.4));
    assert_ne!(plain[2], smooth[2], "class loss of training");
    assert_eq!((plain[1], plain[3]), (smooth[1], smooth[3]), "box and DFL loss of training");
    assert_eq!(plain[8..11], smooth[8..11], "validation losses");
}

#[test]
fn gains_positive_weight_and_focal_exponent_reach_the_loss_and_what_anchors_need_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    // One batch of initial weights: losses of the first epoch differ by the hyper-parameters alone.
    let options = TrainOptions { epochs: 1, noval: true, ..tiny(folder.path(), &data, "gains") };
    let losses = |lines: &str| {
        let hyp = write_hyp(&options, lines);
        let row = results(&finished(&TrainOptions { hyp, ..options.clone() }).folder).remove(0);
        (row[1], row[2], row[3])
    };
    let plain = losses("");
    let (weighted, focal) = (losses("cls_pw: 3\n"), losses("fl_gamma: 1.5\n"));
    assert!(weighted.1 > plain.1 && focal.1 < 0.8 * plain.1, "{plain:?} {weighted:?} {focal:?}");
    assert_eq!([(weighted.0, weighted.2), (focal.0, focal.2)], [(plain.0, plain.2); 2]);
    let doubled = losses("box: 10\ncls: 1\ndfl: 3\n");
    testkit::assert_close(
        "gains",
        &[doubled.0, doubled.1, doubled.2],
        &[2.0 * plain.0, 2.0 * plain.1, 2.0 * plain.2],
        0.0,
        1e-4,
    );
    assert_eq!(losses("obj: 9\nobj_pw: 9\niou_t: 0.9\nanchor_t: 9\n"), plain);
}

#[test]
fn each_shape_of_the_decay_reaches_the_table() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let base = TrainOptions { epochs: 6, noval: true, ..tiny(folder.path(), &data, "decay") };
    let hyp = write_hyp(&base, "lrf: 0.1\nwarmup_min_iterations: 0\n");
    let base = TrainOptions { hyp, ..base };
    for (decay, options) in [
        (Decay::Linear, base.clone()),
        (Decay::Cosine, TrainOptions { cos_lr: true, ..base.clone() }),
        (Decay::FlatCosine, TrainOptions { flat_cos_lr: true, ..base.clone() }),
        (Decay::Fixed, TrainOptions { fixed_lr: true, ..base.clone() }),
    ] {
        let rates: Vec<f64> = results(&finished(&options).folder).iter().map(|row| row[12]).collect();
        // Without a warm-up an epoch has the factor of the one before, as in the reference.
        let want: Vec<f64> = (0..6usize).map(|e| 0.01 * decay.factor(e.saturating_sub(1), 6, 0.1)).collect();
        testkit::assert_close(&format!("{decay:?}"), &rates, &want, 1e-12, 1e-4);
    }
}

#[test]
fn every_optimizer_moves_the_weights_its_own_way() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 3, noval: true, ..tiny(folder.path(), &data, "optimizer") };
    let hyp = write_hyp(&options, "lr0: 0.001\nwarmup_bias_lr: 0.001\n");
    let ends = [Optimizer::Sgd, Optimizer::Adam, Optimizer::AdamW, Optimizer::Lion].map(|optimizer| {
        let last = trained(&TrainOptions { optimizer, hyp: hyp.clone(), ..options.clone() });
        let weight = last.get("resume/weights/model.0.conv.weight").unwrap().values.clone();
        assert!(weight.iter().all(|v| v.is_finite()), "{optimizer:?}");
        let states = (0..3).filter(|i| last.get(&format!("resume/state{i}/model.0.conv.weight")).is_some()).count();
        assert_eq!(states, optimizer.kind().states(), "{optimizer:?}");
        weight
    });
    for (i, a) in ends.iter().enumerate() {
        assert!(ends[i + 1..].iter().all(|b| a != b), "optimizer {i}");
    }
}

#[test]
fn a_seed_decides_everything_random() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let with = |seed: u64| trained(&TrainOptions { seed, epochs: 1, ..tiny(folder.path(), &data, "seed") });
    let first = with(7);
    assert!(with(7) == first);
    assert!(with(8) != first);
}

#[test]
fn one_number_freezes_the_first_layers_whose_running_statistics_still_move() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { freeze: vec![2], epochs: 3, noval: true, ..tiny(folder.path(), &data, "freeze") };
    let last = finished(&options).last.unwrap();
    let meta = model::weights::load(&last).unwrap().meta.unwrap();
    let model =
        model::Model::from_yaml(&meta.model, model::Source::Text("last".into()), meta.yaml, Some(meta.nc)).unwrap();
    let (start, end) = (model::init(&model, 0).unwrap(), tensors(&last));
    let moved = |name: &str| start.get(name).unwrap() != end.get(&format!("resume/weights/{name}")).unwrap();
    for name in ["model.0.conv.weight", "model.1.conv.weight", "model.1.bn.bias"] {
        assert!(!moved(name), "{name}");
    }
    assert!(moved("model.2.cv1.conv.weight") && moved("model.0.bn.running_mean"));
}

#[test]
fn a_period_keeps_the_weights_of_its_epochs_under_the_references_names() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 5, save_period: 2, noval: true, ..tiny(folder.path(), &data, "period") };
    let summary = finished(&options);
    let weights = summary.folder.join("weights");
    assert_eq!(files(&weights), ["best", "epoch0", "epoch2", "epoch4", "last"]);
    // Weights alone, for use and not for going on.
    let kept = tensors(&weights.join("epoch2.safetensors"));
    assert!(kept.iter().all(|(name, _)| !name.starts_with("resume/")));
    let last = tensors(&weights.join("last.safetensors"));
    let end = tensors(&weights.join("epoch4.safetensors"));
    assert!(end.iter().all(|(name, tensor)| last.get(name) == Some(tensor)));
    assert!(kept.iter().any(|(name, tensor)| last.get(name) != Some(tensor)));
}

#[test]
fn nosave_writes_at_the_end_only_and_an_interrupt_still_saves() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 3, nosave: true, ..tiny(folder.path(), &data, "nosave") };
    let mut spy = Spy { weights: folder.path().join("runs/nosave/weights"), ..Spy::default() };
    let summary = run(&options, &mut spy).unwrap();
    assert_eq!(spy.seen, [Vec::<String>::new(), Vec::new(), Vec::new()]);
    assert_eq!(files(&summary.folder.join("weights")), ["best", "last"]);

    let mut spy = Spy { weights: folder.path().join("runs/nosave2/weights"), stop_in: Some(1), ..Spy::default() };
    let cut = run(&options, &mut spy).unwrap();
    assert_eq!(cut.end, TrainEnd::Interrupted);
    assert_eq!(files(&cut.folder.join("weights")), ["best", "last"]);
    let wish = TrainOptions { resume: Some(Resume::From(cut.folder)), ..TrainOptions::default() };
    assert!(trained(&wish) == tensors(&summary.last.unwrap()));

    let both = TrainOptions { epochs: 1, save_period: 1, ..options };
    let mut memory = Memory::default();
    run(&both, &mut memory).unwrap();
    assert!(memory.warnings.iter().any(|w| w.starts_with("--save-period keeps nothing")), "{:?}", memory.warnings);
}

#[test]
fn noval_validates_the_last_epoch_which_is_then_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 2);
    let options = TrainOptions { epochs: 3, noval: true, ..tiny(folder.path(), &data, "noval") };
    let mut spy = Spy { weights: folder.path().join("runs/noval/weights"), ..Spy::default() };
    let summary = run(&options, &mut spy).unwrap();
    // The first epoch's may still be under way in the second one, never in the third: each waits for the one before.
    let whole: Vec<Vec<&String>> =
        spy.seen.iter().map(|names| names.iter().filter(|n| !n.starts_with('.')).collect()).collect();
    assert!(spy.seen[0].is_empty() && whole[1].iter().all(|name| *name == "last"), "{:?}", spy.seen);
    assert_eq!(whole[2], ["last"]);
    let rows = results(&summary.folder);
    assert!(rows[..2].iter().all(|row| row[8..11] == [0.0; 3]), "{rows:?}");
    assert!(rows[2][8] > 0.0 && summary.metrics.is_some(), "{rows:?}");
    let (best, last) = (tensors(&summary.best.unwrap()), tensors(&summary.last.unwrap()));
    assert!(!best.is_empty() && best.iter().all(|(name, tensor)| last.get(name) == Some(tensor)));
}

#[test]
fn patience_goes_on_counting_after_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 2);
    let options = TrainOptions { epochs: 2, patience: 3, ..tiny(folder.path(), &data, "patience") };
    let last = finished(&options).last.unwrap();
    // As if epoch 0 had been perfect: epoch 3 is the third without improvement.
    let mut saved = model::weights::load(&last).unwrap();
    let meta = saved.meta.as_mut().unwrap();
    let (key, mut state) = meta
        .extra
        .iter()
        .find_map(|(key, text)| {
            let state: serde_json::Value = serde_json::from_str(text).ok()?;
            state.get("stopping").is_some().then(|| (key.clone(), state))
        })
        .expect("early stopping is in the checkpoint");
    state["stopping"] = serde_json::json!({"best": 1.0, "best_epoch": 0, "seen": true});
    meta.extra.insert(key, state.to_string());
    model::weights::save(&last, &saved.tensors, saved.meta.as_ref().unwrap()).unwrap();

    let given = vec!["epochs".to_owned()];
    let wish = TrainOptions { resume: Some(Resume::From(last)), epochs: 9, given, ..TrainOptions::default() };
    let mut memory = Memory::default();
    let summary = run(&wish, &mut memory).unwrap();
    assert_eq!((summary.end, summary.epochs), (TrainEnd::EarlyStop, 4));
    let line = memory.lines.iter().find(|l| l.starts_with("stopped: ")).unwrap();
    assert!(line.contains("in the last 3 epochs, best was epoch 0"), "{line}");
    assert_eq!(results(&summary.folder).len(), 4);
}

#[test]
fn exist_ok_writes_over_a_run_and_never_takes_its_weights_for_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { epochs: 2, exist_ok: true, ..tiny(folder.path(), &data, "again") };
    let first = finished(&options);
    let old = tensors(first.last.as_ref().unwrap());
    let mut memory = Memory::default();
    let second = run(&TrainOptions { epochs: 1, seed: 1, ..options.clone() }, &mut memory).unwrap();
    assert_eq!(second.folder, first.folder);
    assert!(memory.warnings.iter().any(|w| w.contains("holds an earlier run")), "{:?}", memory.warnings);
    assert_eq!(results(&second.folder).len(), 1);
    assert!(tensors(second.last.as_ref().unwrap()) != old);

    // A run that breaks in its first batch has no good weights; those that lie there are another run's.
    let model = model::Model::load(&options.cfg.as_ref().unwrap().to_string_lossy(), Some(2)).unwrap();
    let mut weights = model::init(&model, 0).unwrap();
    weights.values_mut("model.0.conv.weight").unwrap()[0] = f32::NAN;
    let path = folder.path().join("nan.safetensors");
    let meta = model::weights::WeightsMeta::of(&model, vec!["red".to_owned(), "blue".to_owned()], false);
    model::weights::save(&path, &weights, &meta).unwrap();
    let error = run(&TrainOptions { weights: Some(path), ..options }, &mut Memory::default()).unwrap_err();
    assert!(matches!(&error, TrainError::NotFinite { kept: None, .. }), "{error:?}");
    assert!(second.last.unwrap().is_file());
}

#[test]
fn states_that_an_older_program_wrote_lack_newer_keys_and_still_load() {
    assert_eq!(serde_json::from_str::<TrainOptions>("{}").unwrap(), TrainOptions::default());
    assert_eq!(serde_json::from_str::<train::hyp::Hyp>("{}").unwrap(), train::hyp::Hyp::default());
}
