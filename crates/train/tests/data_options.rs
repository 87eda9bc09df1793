//! Options of the data side in whole runs: sizes by batch, weighted images, caches, loader threads, augmentation.

mod common;

use common::{Memory, data_set, tiny};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use train::{Cache, Partners, Resume, TrainEnd, TrainError, TrainOptions, TrainSummary, Workers, run};

fn tensors(path: &Path) -> model::NamedTensors {
    model::weights::load(path).unwrap().tensors
}

/// The tensors of a run's last checkpoint, and what it told.
fn trained(options: &TrainOptions) -> (TrainSummary, model::NamedTensors, Memory) {
    let mut memory = Memory::default();
    let summary = run(options, &mut memory).unwrap();
    let last = tensors(summary.last.as_ref().unwrap());
    (summary, last, memory)
}

/// The run that is cut after `stop` batches and resumed.
fn cut_and_resumed(options: &TrainOptions, stop: usize) -> (TrainSummary, model::NamedTensors, Memory) {
    let cut = run(options, &mut Memory { stop_after: Some(stop), ..Memory::default() }).unwrap();
    assert_eq!(cut.end, TrainEnd::Interrupted);
    trained(&TrainOptions { resume: Some(Resume::From(cut.folder)), ..TrainOptions::default() })
}

fn state(summary: &TrainSummary) -> serde_json::Value {
    let meta = model::weights::load(summary.last.as_ref().unwrap()).unwrap().meta.unwrap();
    serde_json::from_str(&meta.extra["run"]).unwrap()
}

#[test]
fn multi_scale_draws_a_size_a_batch_within_the_announced_memory_and_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    for rect in [false, true] {
        let options = |name: &str| TrainOptions {
            multi_scale: true,
            rect,
            epochs: 3,
            ..tiny(folder.path(), &data, &format!("{name}{rect}"))
        };
        let (_, whole, memory) = trained(&options("whole"));
        assert_eq!(memory.sides.len(), 9);
        let sides: BTreeSet<usize> = memory.sides.iter().map(|s| s.0).collect();
        assert!(sides.is_subset(&BTreeSet::from([32, 64, 96])) && sides.len() > 1, "{:?}", memory.sides);
        assert_eq!(memory.sides.iter().map(|s| s.1).collect::<BTreeSet<_>>().len(), 1, "{:?}", memory.sides);
        assert!(memory.lines.iter().any(|l| l.contains("multi-scale: sides from 32 to 96")), "{:?}", memory.lines);
        for stop in [2, 4] {
            let (_, resumed, after) = cut_and_resumed(&options(&format!("cut{stop}")), stop);
            assert!(whole == resumed, "rect {rect}, cut after {stop} batches");
            assert_eq!(after.sides, memory.sides[stop..]);
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let one = TrainOptions { workers: Workers::Count(1), ..options("one") };
        assert!(whole == pool.install(|| trained(&one).1));
    }
}

#[test]
fn the_memory_of_multi_scale_is_that_of_the_largest_size() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let options = TrainOptions { memory_available: Some(1), ..tiny(folder.path(), &data, "memory") };
    let needed = |options: TrainOptions| match run(&options, &mut Memory::default()).unwrap_err() {
        TrainError::Memory { needed, .. } => needed,
        other => panic!("{other}"),
    };
    let base = TrainOptions { noval: true, ..options };
    let [plain, scaled, large] = [(64, false), (64, true), (96, false)]
        .map(|(imgsz, multi_scale)| needed(TrainOptions { imgsz, multi_scale, ..base.clone() }));
    assert!(scaled > plain);
    // The validation, whose size stays, is part of both.
    assert!(scaled <= large && scaled > plain + (large - plain) / 2, "{plain} {scaled} {large}");
}

/// Two thirds of the pictures show class 0.
fn unbalanced(folder: &Path) -> PathBuf {
    let data = data_set(folder, 9, 3);
    for i in [1, 3, 7] {
        let path = folder.join(format!("labels/train/train{i:02}.txt"));
        let row = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, row.replacen('1', "0", 1)).unwrap();
    }
    data
}

#[test]
fn image_weights_follow_the_last_validation_and_resume_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let data = unbalanced(folder.path());
    let options = |name: &str| TrainOptions {
        image_weights: true,
        epochs: 3,
        partners: Partners::Fresh,
        ..tiny(folder.path(), &data, name)
    };
    let (summary, whole, memory) = trained(&options("whole"));
    assert_eq!(memory.batches, 9);
    assert_eq!(state(&summary)["class_maps"].as_array().unwrap().len(), 2);
    let (plain, unweighted, _) = trained(&TrainOptions { image_weights: false, ..options("plain") });
    assert!(whole != unweighted);
    assert!(state(&plain).get("class_maps").is_none());
    // Inside of the first epoch, at the end of one, and inside of the second, whose weights come from a validation.
    for stop in [1, 3, 4] {
        let (_, resumed, _) = cut_and_resumed(&options(&format!("cut{stop}")), stop);
        assert!(whole == resumed, "cut after {stop} batches");
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let one = TrainOptions { workers: Workers::Count(1), ..options("one") };
    assert!(whole == pool.install(|| trained(&one).1));

    // So small a model finds nothing; had it found one class, the run would have gone on with other images.
    let cut = run(&options("other"), &mut Memory { stop_after: Some(4), ..Memory::default() }).unwrap();
    let last = cut.last.unwrap();
    let saved = model::weights::load(&last).unwrap();
    let mut meta = saved.meta.unwrap();
    let mut state: serde_json::Value = serde_json::from_str(&meta.extra["run"]).unwrap();
    assert_eq!(state["class_maps"].as_array().unwrap().len(), 2);
    state["class_maps"] = serde_json::json!([0.95, 0.05]);
    meta.extra.insert("run".to_owned(), state.to_string());
    model::weights::save(&last, &saved.tensors, &meta).unwrap();
    let (_, other, _) = trained(&TrainOptions { resume: Some(Resume::From(last)), ..TrainOptions::default() });
    assert!(whole != other);

    let cut = run(&options("noval"), &mut Memory { stop_after: Some(1), ..Memory::default() }).unwrap();
    let resume = |given: &str, options: TrainOptions| TrainOptions {
        resume: Some(Resume::From(cut.folder.clone())),
        given: vec![given.to_owned()],
        ..options
    };
    let wish = resume("noval", TrainOptions { noval: true, ..TrainOptions::default() });
    let error = run(&wish, &mut Memory::default()).unwrap_err().to_string();
    assert!(error.contains("--noval was asked for, but the run draws its images"), "{error}");
    let wish = resume("multi-scale", TrainOptions { multi_scale: true, ..TrainOptions::default() });
    let error = run(&wish, &mut Memory::default()).unwrap_err().to_string();
    assert!(error.contains("--multi-scale true was asked for, but the run has false"), "{error}");
}

#[test]
fn image_weights_without_validation_say_what_they_draw_by() {
    let folder = tempfile::tempdir().unwrap();
    let data = unbalanced(folder.path());
    let options = TrainOptions { image_weights: true, noval: true, ..tiny(folder.path(), &data, "noval") };
    let (_, _, memory) = trained(&options);
    assert!(memory.lines.iter().any(|l| l.contains("by the frequency of their classes alone")), "{:?}", memory.lines);
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    found
}

#[test]
fn no_cache_changes_a_weight_and_pictures_on_disk_lie_apart_from_the_images() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    let images = folder.path().join("images");
    for path in files(&images) {
        let time = SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }
    let before = files(&images);
    let pictures = folder.path().join("pictures");
    let with = |cache: Cache, name: &str| {
        let picture_folder = Some(pictures.clone());
        trained(&TrainOptions { cache, picture_folder, ..tiny(folder.path(), &data, name) })
    };
    let (_, none, _) = with(Cache::None, "none");
    assert!(!pictures.exists());
    for (cache, name) in [(Cache::Ram, "ram"), (Cache::Val, "val"), (Cache::Auto, "auto")] {
        let (_, weights, told) = with(cache, name);
        assert!(none == weights, "{name}");
        let choices: Vec<&String> = told.lines.iter().filter(|l| l.starts_with("--cache auto: ")).collect();
        assert_eq!(choices.len(), usize::from(cache == Cache::Auto), "{choices:?}");
        assert!(choices.iter().all(|l| l.ends_with("as --cache ram")), "{choices:?}");
    }
    let asked = TrainOptions { cache: Cache::Gpu, ..tiny(folder.path(), &data, "gpu") };
    let refused = run(&asked, &mut Memory::default()).unwrap_err();
    assert!(refused.to_string().starts_with("--cache: gpu needs a card"), "{refused}");
    assert!(!asked.project.join("gpu").exists());
    assert!(!pictures.exists());
    let (_, first, told) = with(Cache::Disk, "disk");
    assert!(none == first);
    assert_eq!(files(&pictures).len(), 8);
    assert_eq!(files(&images), before);
    let line = |memory: &Memory| memory.lines.iter().find(|l| l.starts_with("pictures on disk")).unwrap().clone();
    assert!(line(&told).contains("0.1 MiB to be written of"), "{}", line(&told));
    // A damaged entry is made anew, silently.
    let entry = files(&pictures).remove(0);
    let whole = std::fs::read(&entry).unwrap();
    std::fs::write(&entry, &whole[..whole.len() - 5]).unwrap();
    let (_, again, told) = with(Cache::Disk, "again");
    assert!(none == again && std::fs::read(&entry).unwrap() == whole);
    assert!(told.warnings.iter().all(|w| !w.contains("cache")), "{:?}", told.warnings);
    assert!(line(&with(Cache::Disk, "third").2).contains("0.0 MiB to be written of"));
}

#[test]
fn workers_are_a_number_or_auto_and_old_checkpoints_hold_a_number() {
    for (text, workers) in [("auto", Workers::Auto), ("0", Workers::Count(0)), ("8", Workers::Count(8))] {
        assert_eq!(text.parse::<Workers>().unwrap(), workers);
        assert_eq!(workers.to_string(), text);
        let json = serde_json::to_string(&workers).unwrap();
        assert_eq!(serde_json::from_str::<Workers>(&json).unwrap(), workers);
        assert_eq!(json.trim_matches('"'), text);
    }
    for text in ["", "Auto", "-1", "1.5"] {
        assert!(text.parse::<Workers>().is_err(), "{text}");
    }
    let old: TrainOptions = serde_json::from_str(r#"{"workers": 3, "epochs": 7}"#).unwrap();
    assert_eq!((old.workers, old.epochs, old.image_weights), (Workers::Count(3), 7, false));

    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 4, 1);
    let options = TrainOptions { workers: Workers::Auto, epochs: 1, ..tiny(folder.path(), &data, "auto") };
    let (summary, _, memory) = trained(&options);
    assert!(memory.lines.iter().any(|l| l.starts_with("--workers auto: ")), "{:?}", memory.lines);
    let saved = std::fs::read_to_string(summary.folder.join("opt.yaml")).unwrap();
    assert!(saved.contains("workers: auto"), "{saved}");
    let wish = TrainOptions {
        resume: Some(Resume::From(summary.folder)),
        epochs: 2,
        workers: Workers::Count(1),
        given: vec!["epochs".to_owned(), "workers".to_owned()],
        ..TrainOptions::default()
    };
    let (_, _, memory) = trained(&wish);
    assert!(memory.lines.iter().any(|l| l.contains("--workers \"auto\" -> 1")), "{:?}", memory.lines);
}

#[test]
fn images_below_min_items_are_counted_and_left_out_of_both_parts() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 5, 2);
    for name in ["train/train00", "train/train02", "train/train03", "val/val01"] {
        let path = folder.path().join(format!("labels/{name}.txt"));
        let row = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{row}0 .1 .1 .1 .1\n")).unwrap();
    }
    let options = TrainOptions { min_items: 2, epochs: 1, ..tiny(folder.path(), &data, "few") };
    let (summary, _, memory) = trained(&options);
    let told = |part: &str, text: &str| {
        assert!(memory.lines.iter().any(|l| l.starts_with(part) && l.contains(text)), "{:?}", memory.lines);
    };
    told("train: 5 images, 3 with 6 boxes", "2 images below --min-items");
    told("val: 2 images, 1 with 2 boxes", "1 images below --min-items");
    told("3 images in 1 batches of 3", "");
    assert_eq!(state(&summary)["images"], 3);
}

#[test]
fn every_warp_flip_and_paste_of_outlines_trains_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 6, 2);
    for path in files(&folder.path().join("labels/train")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let v: Vec<f64> = text.split_whitespace().map(|f| f.parse().unwrap()).collect();
        let ([l, r], [t, b]) = ([v[1] - v[3] / 2.0, v[1] + v[3] / 2.0], [v[2] - v[4] / 2.0, v[2] + v[4] / 2.0]);
        std::fs::write(&path, format!("{} {l} {t} {r} {t} {r} {b} {l} {b}\n", v[0])).unwrap();
    }
    let with_threads = |threads: usize| {
        let options =
            TrainOptions { workers: Workers::Count(threads), noplots: false, ..tiny(folder.path(), &data, "warped") };
        let text = "warmup_epochs: 0\nwarmup_min_iterations: 3\nnominal_batch: 6\nmosaic: 0.7\nmixup: 0.3\ndegrees: 20\n\
                    shear: 5\nperspective: 0.0005\nflipud: 0.5\ncopy_paste: 0.9\n";
        std::fs::write(&options.hyp, text).unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| trained(&options))
    };
    let (summary, one, _) = with_threads(1);
    assert!(one == with_threads(2).1);
    let saved = std::fs::read_to_string(summary.folder.join("hyp.yaml")).unwrap();
    assert!(saved.contains("copy_paste: 0.9") && saved.contains("perspective: 0.0005"), "{saved}");
    let table = report::results_csv::read_results(&summary.folder.join("results.csv")).unwrap();
    assert!(table.rows.len() == 2 && table.rows.iter().flatten().all(|v| v.is_finite()));
}
