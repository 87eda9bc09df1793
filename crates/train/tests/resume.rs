//! Runs that go on: longer than they were asked to, with other flags, from another place, or not at all.

mod common;

use common::{Memory, data_set, tiny};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use train::{Resume, TrainEnd, TrainError, TrainOptions, TrainSummary, run};

/// A wish to go on, with the flags that were typed.
fn again(from: &Path, given: &[&str], change: impl FnOnce(&mut TrainOptions)) -> TrainOptions {
    let mut options = TrainOptions { resume: Some(Resume::From(from.to_path_buf())), ..TrainOptions::default() };
    options.given = given.iter().map(|name| (*name).to_owned()).chain(["resume".to_owned()]).collect();
    change(&mut options);
    options
}

fn refused(options: &TrainOptions) -> (String, String) {
    let error = run(options, &mut Memory::default()).unwrap_err();
    (error.to_string(), error.hint().unwrap_or_default())
}

fn load(path: &Path) -> model::weights::Weights {
    model::weights::load(path).unwrap()
}

fn state_of(last: &Path) -> Value {
    serde_json::from_str(&load(last).meta.unwrap().extra["run"]).unwrap()
}

/// Writes a checkpoint anew with another state.
fn edit_state(last: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let loaded = load(last);
    let mut meta = loaded.meta.unwrap();
    let mut state: Value = serde_json::from_str(&meta.extra["run"]).unwrap();
    edit(state.as_object_mut().unwrap());
    meta.extra.insert("run".to_owned(), state.to_string());
    model::weights::save(last, &loaded.tensors, &meta).unwrap();
}

fn rows(folder: &Path) -> Vec<Vec<f64>> {
    report::results_csv::read_results(&folder.join("results.csv")).unwrap().rows
}

/// One epoch of the tiny run; what is looked at afterwards is how it goes on.
fn short(folder: &Path, data: &Path, epochs: usize) -> TrainSummary {
    run(&TrainOptions { epochs, ..tiny(folder, data, "short") }, &mut Memory::default()).unwrap()
}

#[test]
fn a_checkpoint_holds_all_that_a_run_is_made_of() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    // The second batch of the second epoch: the warm-up is over and a step takes two batches, so one gradient waits.
    let mut memory = Memory { stop_after: Some(5), ..Memory::default() };
    let cut = run(&tiny(folder.path(), &data, "cut"), &mut memory).unwrap();
    let last = cut.last.unwrap();
    let state = state_of(&last);
    assert_eq!((&state["epoch"], &state["batch"]), (&json!(1), &json!(2)));
    assert!(state["updates"].as_u64().unwrap() > 0 && state["accumulator"]["pending"].as_u64().unwrap() > 0);
    assert!(state["loss_sums"].as_array().unwrap().iter().all(|sum| sum.as_f64().unwrap() > 0.0));
    assert_eq!(state["stopping"]["seen"], json!(true));
    assert_eq!(state["stopping"]["best_epoch"], json!(0));
    assert_eq!(state["stopped_early"], json!(false));
    assert!(state["best"]["losses"].is_array() && state["digest"].is_string());
    // Schedules and random numbers follow from these: rates from the iteration, pictures from (seed, epoch, index).
    for key in ["seed", "epochs", "batch_size", "cos_lr", "close_mosaic", "partners", "optimizer"] {
        assert!(!state["options"][key].is_null(), "{key}");
    }
    assert_eq!(state["hyp"]["nominal_batch"], json!(6.0));
    let tensors = load(&last).tensors;
    let (model, trained) = (model::fit(&load(&last), None, "last").unwrap().model, "model.1.conv.weight");
    for entry in model.training_state().unwrap() {
        assert!(tensors.get(&entry.name).is_some(), "{}", entry.name);
        assert!(tensors.get(&format!("resume/weights/{}", entry.name)).is_some(), "{}", entry.name);
    }
    let part = |part: &str| &tensors.get(&format!("resume/{part}/{trained}")).unwrap().values;
    for name in ["state0", "gradients"] {
        assert!(part(name).iter().any(|&v| v != 0.0), "{name}");
    }
    assert_ne!(part("weights"), &tensors.get(trained).unwrap().values, "the average is not the raw weights");
}

#[test]
fn a_finished_run_goes_on_with_more_epochs_and_says_what_changes() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    let options = TrainOptions { epochs: 4, ..tiny(folder.path(), &data, "longer") };
    let done = run(&options, &mut Memory::default()).unwrap();
    let last = done.last.clone().unwrap();
    let (before, old_rows) = (load(&last).tensors, rows(&done.folder));
    let updates = state_of(&last)["updates"].as_u64().unwrap();

    // After its first batch no step was taken yet: weights, averages and optimiser state are those of the end.
    let mut memory = Memory { stop_after: Some(1), ..Memory::default() };
    let wish = again(&done.folder, &["epochs"], |o| o.epochs = 8);
    assert_eq!(run(&wish, &mut memory).unwrap().end, TrainEnd::Interrupted);
    let state = state_of(&last);
    assert_eq!((&state["epoch"], &state["batch"], &state["updates"]), (&json!(4), &json!(1), &json!(updates)));
    let now = load(&last).tensors;
    let kept = |name: &str| !name.contains("running_") && !name.contains("num_batches");
    for (name, tensor) in before.iter().filter(|(name, _)| kept(name)) {
        assert!(now.get(name) == Some(tensor), "{name} is not what the finished run left");
    }
    let told = |part: &str| memory.lines.iter().any(|line| line.contains(part));
    assert!(
        told("8 epochs in all instead of 4: the learning rate now falls until the end of epoch 7"),
        "{:?}",
        memory.lines
    );
    assert!(told("mosaic is on again until it closes for the last 1 epochs, from epoch 7"), "{:?}", memory.lines);

    let mut memory = Memory::default();
    let longer = run(&again(&done.folder, &[], |_| ()), &mut memory).unwrap();
    assert_eq!((longer.end, longer.epochs), (TrainEnd::Finished, 8));
    assert!(!memory.lines.iter().any(|line| line.contains("instead of")), "told when it changed, not again");
    let new_rows = rows(&done.folder);
    assert_eq!((new_rows.len(), &new_rows[..4]), (8, &old_rows[..]));
    let rates: Vec<f64> = new_rows[4..].iter().map(|row| row[12]).collect();
    assert!(rates.windows(2).all(|pair| pair[0] > pair[1]), "{rates:?}");
    assert!(rates[0] <= 0.01 && rates[3] > 0.0 && rates[0] > old_rows[3][12], "{rates:?} after {}", old_rows[3][12]);
    let state = state_of(&last);
    assert!(state["updates"].as_u64().unwrap() > updates);
    assert_eq!(state["options"]["epochs"], json!(8));
}

#[test]
fn a_run_that_stopped_early_goes_on_with_more_patience_only() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 2);
    let options = TrainOptions { epochs: 9, patience: 3, ..tiny(folder.path(), &data, "early") };
    let cut = run(&options, &mut Memory { stop_after: Some(3), ..Memory::default() }).unwrap();
    let last = cut.last.unwrap();
    // So tiny a model finds nothing, and ties count as better: its first epoch is made one that cannot be reached.
    edit_state(&last, |state| state["stopping"] = json!({"best": 0.9, "best_epoch": 0, "seen": true}));
    let mut memory = Memory::default();
    let stopped = run(&again(&cut.folder, &[], |_| ()), &mut memory).unwrap();
    assert_eq!((stopped.end, stopped.epochs), (TrainEnd::EarlyStop, 4));
    assert!(memory.lines.iter().any(|l| l.contains("no improvement in the last 3 epochs, best was epoch 0")));
    let state = state_of(&last);
    assert_eq!((&state["stopped_early"], &state["stopping"]["best"]), (&json!(true), &json!(0.9)));

    for wish in [again(&cut.folder, &[], |_| ()), again(&cut.folder, &["epochs"], |o| o.epochs = 20)] {
        let (message, hint) = refused(&wish);
        assert!(message.ends_with("it stopped early: no improvement in the 3 epochs since epoch 0"), "{message}");
        assert!(hint.contains("--patience"), "{hint}");
    }
    let more = run(&again(&cut.folder, &["patience"], |o| o.patience = 5), &mut Memory::default()).unwrap();
    assert_eq!((more.end, more.epochs), (TrainEnd::EarlyStop, 6));
    let all = run(&again(&cut.folder, &["patience"], |o| o.patience = 0), &mut Memory::default()).unwrap();
    assert_eq!((all.end, all.epochs), (TrainEnd::Finished, 9));
    assert_eq!(rows(&cut.folder).len(), 9);
    assert_eq!(state_of(&last)["stopping"]["best_epoch"], json!(0));
    assert_eq!(state_of(&last)["stopped_early"], json!(false));
}

/// Options that differ from the defaults in one key, and its value; `None` where no other value is known.
fn another(key: &str, default: &Map<String, Value>) -> Option<(TrainOptions, Value)> {
    let old = &default[key];
    let candidates = match (key, old) {
        ("device", _) => vec![json!("CPU")],
        ("memory_budget", _) => vec![json!(1_u64 << 40)],
        (_, Value::Bool(on)) => vec![json!(!on)],
        (_, Value::Number(n)) => vec![n.as_i64().map_or(json!(0.5), |n| json!(n + 3))],
        (_, Value::Array(_)) => vec![json!([5])],
        // Paths and names, words that some option knows, and numbers where there is none yet.
        _ => {
            let words = ["elsewhere.yaml", "ram", "AdamW", "bf16", "window:7", "linear", "3"];
            words.iter().map(|word| json!(word)).chain([json!(3)]).collect()
        }
    };
    candidates.into_iter().find_map(|candidate| {
        let mut map = default.clone();
        map.insert(key.to_owned(), candidate);
        let options: TrainOptions = serde_json::from_value(Value::Object(map)).ok()?;
        let value = serde_json::to_value(&options).unwrap()[key].clone();
        (value != *old).then_some((options, value))
    })
}

/// Every option there is falls into one of three kinds: obeyed, left aside with a warning, or refused.
#[test]
fn every_flag_is_obeyed_left_aside_aloud_or_refused() {
    let obeyed = [
        "epochs",
        "workers",
        "device",
        "precision",
        "cache",
        "patience",
        "noval",
        "nosave",
        "noplots",
        "save_period",
        "data",
        "memory_budget",
    ];
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = TrainOptions { noplots: false, ..tiny(folder.path(), &data, "flags") };
    let cut = run(&options, &mut Memory { stop_after: Some(1), ..Memory::default() }).unwrap();
    let last = cut.last.unwrap();
    let checkpoint = std::fs::read(&last).unwrap();
    let Value::Object(options) = serde_json::to_value(TrainOptions::default()).unwrap() else { panic!("no map") };
    let mut seen = Vec::new();
    for key in options.keys().filter(|key| *key != "resume") {
        let (wish, value) = another(key, &options).unwrap_or_else(|| panic!("no other value of {key} is known"));
        let given = vec![key.replace('_', "-")];
        let wish = TrainOptions { given, resume: Some(Resume::From(cut.folder.clone())), ..wish };
        let mut memory = Memory { stop_after: Some(1), ..Memory::default() };
        let result = run(&wish, &mut memory);
        if key == "data" {
            // Obeyed: it is what is read, and nothing is there.
            let error = result.unwrap_err();
            assert!(error.to_string().contains("elsewhere.yaml"), "{error}");
            assert!(error.hint().unwrap().contains("--data"), "{error}");
            seen.push(key.as_str());
        } else if obeyed.contains(&key.as_str()) {
            let summary = result.unwrap_or_else(|e| panic!("{key}: {e}"));
            assert_eq!(state_of(&summary.last.unwrap())["options"][key], value, "{key} is not what was asked for");
            assert!(memory.lines.iter().any(|l| l.starts_with("changed for the rest of the run: ")), "{key}");
            std::fs::write(&last, &checkpoint).unwrap();
            seen.push(key.as_str());
        } else if ["project", "name", "exist_ok"].contains(&key.as_str()) {
            assert_eq!(result.unwrap().folder, cut.folder, "{key}");
            assert!(memory.warnings.iter().any(|w| w.contains("is left aside")), "{key}");
            std::fs::write(&last, &checkpoint).unwrap();
        } else {
            let error = result.expect_err(key);
            let TrainError::ResumeOption { flag, asked, .. } = &error else { panic!("{key}: {error}") };
            assert_eq!(*asked, value.to_string(), "{key}");
            assert!(error.to_string().contains(&format!("--{flag} ")), "{error}");
            assert!(std::fs::read(&last).unwrap() == checkpoint, "{key} is refused and the run was touched");
        }
    }
    let mut all = obeyed;
    all.sort_unstable();
    assert_eq!(seen, all);
}

#[test]
fn the_same_flags_typed_again_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let options = tiny(folder.path(), &data, "same");
    let cut = run(&options, &mut Memory { stop_after: Some(1), ..Memory::default() }).unwrap();
    let given = ["cfg", "data", "hyp", "epochs", "batch-size", "imgsz", "close-mosaic", "noplots", "workers"];
    let wish = TrainOptions {
        given: given.map(str::to_owned).to_vec(),
        resume: Some(Resume::From(cut.folder.clone())),
        ..options
    };
    let mut memory = Memory::default();
    assert_eq!(run(&wish, &mut memory).unwrap().end, TrainEnd::Finished);
    assert!(!memory.lines.iter().any(|l| l.contains("changed for the rest")), "{:?}", memory.lines);
}

fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap_or_else(|e| panic!("{} to {}: {e}", from.display(), to.display()));
}

#[test]
fn run_folder_and_data_set_may_move() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("set");
    let data = data_set(&set, 6, 2);
    let options = tiny(folder.path(), &data, "moves");
    let whole = run(&TrainOptions { name: "whole".to_owned(), ..options.clone() }, &mut Memory::default()).unwrap();
    let cut = run(&options, &mut Memory { stop_after: Some(3), ..Memory::default() }).unwrap();
    let (moved, moved_set) = (folder.path().join("elsewhere"), folder.path().join("another/set"));
    rename(&cut.folder, &moved);
    std::fs::create_dir(folder.path().join("another")).unwrap();
    rename(&set, &moved_set);

    let error = run(&again(&moved, &[], |_| ()), &mut Memory::default()).unwrap_err();
    assert!(matches!(error, TrainError::Missing { .. }), "{error}");
    assert!(error.hint().unwrap().contains("name its YAML with --data"), "{error}");
    // Neither the files of hyper-parameters and model nor the old folder are needed any more.
    std::fs::remove_file(&options.hyp).unwrap();
    std::fs::remove_file(options.cfg.unwrap()).unwrap();
    let resumed =
        run(&again(&moved, &["data"], |o| o.data = moved_set.join("data.yaml")), &mut Memory::default()).unwrap();
    assert_eq!((&resumed.folder, resumed.end), (&moved, TrainEnd::Finished));
    assert!(!cut.folder.exists(), "nothing is written where the run was");
    let tensors = |summary: &TrainSummary| load(summary.last.as_ref().unwrap()).tensors;
    assert!(tensors(&whole) == tensors(&resumed));
}

#[test]
fn images_that_were_added_removed_or_edited_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let cut =
        run(&tiny(folder.path(), &data, "same"), &mut Memory { stop_after: Some(1), ..Memory::default() }).unwrap();
    let (images, labels) = (folder.path().join("images/train"), folder.path().join("labels/train"));
    let wish = again(&cut.folder, &[], |_| ());
    let said = |part: &str| {
        let (message, hint) = refused(&wish);
        assert!(message.contains("the training part has changed since it began (6 images then, "), "{message}");
        assert!(message.contains(part), "{message}");
        assert!(hint.contains("--weights"), "{hint}");
        message
    };
    std::fs::copy(images.join("train03.png"), images.join("zebra.png")).unwrap();
    std::fs::copy(labels.join("train03.txt"), labels.join("zebra.txt")).unwrap();
    said("7 now; added: zebra.png)");
    std::fs::remove_file(images.join("zebra.png")).unwrap();

    rename(&images.join("train02.png"), &folder.path().join("aside.png"));
    said("5 now; removed: train02.png)");
    // Other pixels of the same size: the file has another length.
    let canvas = report::draw::Canvas::filled(72, 56, [1, 2, 3]).unwrap();
    report::jpeg::save_png(&images.join("train02.png"), &canvas).unwrap();
    said("6 now; edited, the image or its labels: train02.png)");
    rename(&folder.path().join("aside.png"), &images.join("train02.png"));

    let text = std::fs::read_to_string(labels.join("train01.txt")).unwrap();
    std::fs::write(labels.join("train01.txt"), "1 0.5 0.5 0.2 0.2\n").unwrap();
    said("edited, the image or its labels: train01.png)");
    std::fs::remove_file(cut.folder.join("train-images.txt")).unwrap();
    assert!(!said("6 now)").contains("train01"), "without the list only numbers are known");
    std::fs::write(labels.join("train01.txt"), text).unwrap();

    // Another validation part trains the same weights: it is warned of.
    std::fs::write(folder.path().join("labels/val/val00.txt"), "1 0.5 0.5 0.2 0.2\n").unwrap();
    let mut memory = Memory::default();
    assert_eq!(run(&wish, &mut memory).unwrap().end, TrainEnd::Finished);
    assert!(memory.warnings.iter().any(|w| w.starts_with("the validation part has changed")), "{:?}", memory.warnings);
}

#[test]
fn checkpoints_that_hold_no_run_or_another_programs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let done = short(folder.path(), &data, 1);
    let last = done.last.unwrap();
    let (message, hint) = refused(&again(&done.best.unwrap(), &[], |_| ()));
    assert!(message.ends_with("it holds weights only") && hint.contains("last.safetensors"), "{message}: {hint}");
    for folder in [folder.path().join("nowhere"), folder.path().to_path_buf()] {
        let (message, hint) = refused(&again(&folder, &[], |_| ()));
        assert!(message.starts_with("cannot resume ") && hint.contains("runs/train/exp"), "{message}");
    }
    let bytes = std::fs::read(&last).unwrap();
    edit_state(&last, |state| state["version"] = json!(9));
    let (message, _) = refused(&again(&last, &[], |_| ()));
    assert!(message.contains("its state has version 9, this program reads 2"), "{message}");
    edit_state(&last, |state| {
        state.insert("version".into(), json!(2));
        state.remove("updates");
    });
    let (message, _) = refused(&again(&last, &[], |_| ()));
    assert!(message.contains("the run's state: ") && message.contains("updates"), "{message}");
    std::fs::write(&last, &bytes).unwrap();
    let loaded = load(&last);
    let mut fewer = model::NamedTensors::new();
    for (name, tensor) in loaded.tensors.iter().filter(|(name, _)| !name.starts_with("resume/state0/")) {
        fewer.insert(name, tensor.dims.clone(), tensor.values.clone()).unwrap();
    }
    model::weights::save(&last, &fewer, &loaded.meta.unwrap()).unwrap();
    let (message, _) = refused(&again(&last, &["epochs"], |o| o.epochs = 5));
    assert!(message.ends_with("its optimiser state is incomplete"), "{message}");
}

#[test]
fn a_run_whose_validation_loss_is_no_number_can_still_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let done = short(folder.path(), &data, 1);
    // What JSON makes of NaN.
    edit_state(&done.last.clone().unwrap(), |state| state["best"]["losses"] = json!([null, 1.0, null]));
    let more = run(&again(&done.folder, &["epochs"], |o| o.epochs = 2), &mut Memory::default()).unwrap();
    assert_eq!(more.end, TrainEnd::Finished);
}

#[test]
fn a_weights_folder_that_cannot_be_written_is_told_before_the_first_batch() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let mut options = tiny(folder.path(), &data, "read-only");
    options.exist_ok = true;
    let weights = folder.path().join("runs/read-only/weights");
    std::fs::create_dir_all(weights.parent().unwrap()).unwrap();
    std::fs::write(&weights, "a file where a folder should be").unwrap();
    let mut memory = Memory::default();
    let error = run(&options, &mut memory).unwrap_err();
    assert!(error.to_string().contains(&weights.display().to_string()), "{error}");
    assert_eq!(memory.batches, 0);

    std::fs::remove_file(&weights).unwrap();
    std::fs::create_dir(&weights).unwrap();
    let mut permissions = std::fs::metadata(&weights).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&weights, permissions).unwrap();
    if std::fs::write(weights.join("probe"), "").is_ok() {
        eprintln!("skipped: this user may write into read-only folders");
        return;
    }
    let error = run(&options, &mut memory).unwrap_err();
    assert!(error.to_string().starts_with("cannot write into ") && error.to_string().contains("weights"), "{error}");
    assert_eq!(memory.batches, 0);
    let mut permissions = std::fs::metadata(&weights).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "the temporary folder is removed next")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&weights, permissions).unwrap();
}

#[test]
fn half_files_of_a_killed_run_are_swept_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 3, 1);
    let done = short(folder.path(), &data, 1);
    let left: Vec<PathBuf> = [".writing-AbC123.safetensors", ".last.safetensors.AbC123.tmp", ".notes"]
        .map(|name| done.folder.join("weights").join(name))
        .to_vec();
    left.iter().for_each(|path| std::fs::write(path, "half").unwrap());
    let mut memory = Memory::default();
    run(&again(&done.folder, &["epochs"], |o| o.epochs = 2), &mut memory).unwrap();
    assert_eq!(left.iter().map(|path| path.exists()).collect::<Vec<_>>(), [false, false, true]);
    assert!(memory.lines.iter().any(|l| l.starts_with("2 half-written files ")), "{:?}", memory.lines);
}
