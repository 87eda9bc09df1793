//! Runs on a card. Needs a GPU; without one every test says so and is skipped.

mod common;

use common::{Memory, data_set, tiny};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use train::{Cache, Precision, Resume, TrainEnd, TrainError, TrainOptions, ValOptions, run, validate};

const PRECISIONS: [Precision; 4] = [Precision::Bf16, Precision::Fp16, Precision::Tf32, Precision::F32];

/// A folder with a data set, or `None` after saying why the test is skipped.
fn beside_a_card() -> Option<(TempDir, PathBuf)> {
    if cuda::Gpu::count() == 0 {
        eprintln!("skipped: there is no card");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = data_set(folder.path(), 8, 2);
    Some((folder, data))
}

fn on_the_card(folder: &Path, data: &Path, name: &str, precision: Precision) -> TrainOptions {
    TrainOptions { device: "0".to_owned(), precision, epochs: 3, ..tiny(folder, data, name) }
}

/// Name, dimensions and bits of every tensor of a file.
fn bits(path: &Path) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let tensors = model::weights::load(path).unwrap().tensors;
    tensors
        .iter()
        .map(|(n, t)| (n.to_owned(), t.dims.clone(), t.values.iter().map(|v| v.to_bits()).collect()))
        .collect()
}

fn resumed(from: &Path, device: &str) -> TrainOptions {
    TrainOptions {
        resume: Some(Resume::From(from.to_path_buf())),
        device: device.to_owned(),
        given: ["resume", "device"].map(str::to_owned).to_vec(),
        ..TrainOptions::default()
    }
}

#[test]
fn one_seed_gives_the_same_bits_and_another_one_does_not() {
    let Some((folder, data)) = beside_a_card() else { return };
    for precision in PRECISIONS {
        let train = |name: &str, seed: u64| {
            let options = on_the_card(folder.path(), &data, &format!("{name}-{precision}"), precision);
            bits(&run(&TrainOptions { seed, ..options }, &mut Memory::default()).unwrap().last.unwrap())
        };
        let first = train("first", 0);
        assert!(train("again", 0) == first, "{precision}");
        assert!(train("other", 1) != first, "{precision}");
    }
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    let Some((folder, data)) = beside_a_card() else { return };
    for precision in PRECISIONS {
        let whole = run(&on_the_card(folder.path(), &data, "whole", precision), &mut Memory::default()).unwrap();
        let want = bits(&whole.last.unwrap());
        for stop_after in [1, 2, 4, 5, 7] {
            let options = on_the_card(folder.path(), &data, "cut", precision);
            let cut = run(&options, &mut Memory { stop_after: Some(stop_after), ..Memory::default() }).unwrap();
            assert_eq!(cut.end, TrainEnd::Interrupted);
            let done = run(&resumed(&cut.folder, "0"), &mut Memory::default()).unwrap();
            assert_eq!(done.end, TrainEnd::Finished);
            assert!(bits(&done.last.unwrap()) == want, "{precision}, stopped after {stop_after} batches");
        }
    }
}

#[test]
fn a_run_moves_from_a_card_to_the_processor_and_back() {
    let Some((folder, data)) = beside_a_card() else { return };
    for precision in PRECISIONS {
        // After five batches a gradient waits, which fp16 has multiplied by its scale.
        let options = on_the_card(folder.path(), &data, "moving", precision);
        let cut = run(&options, &mut Memory { stop_after: Some(5), ..Memory::default() }).unwrap();
        let mut there = Memory { stop_after: Some(1), ..Memory::default() };
        run(&resumed(&cut.folder, "cpu"), &mut there).unwrap();
        let done = run(&resumed(&cut.folder, "0"), &mut Memory::default()).unwrap();
        assert_eq!((done.end, done.epochs), (TrainEnd::Finished, 3), "{precision}");
        let validated = |device: &str| {
            let options = ValOptions {
                data: data.clone(),
                weights: done.last.clone().unwrap(),
                device: device.to_owned(),
                precision,
                imgsz: 64,
                project: folder.path().join("val"),
                noplots: true,
                ..ValOptions::default()
            };
            validate(&options, &mut Memory::default()).unwrap().metrics.losses
        };
        let (card, processor) = (validated("0"), validated("cpu"));
        for (a, b) in card.iter().zip(processor) {
            assert!((a - b).abs() <= 0.02 * b, "{precision}: {card:?} on the card, {processor:?} on the processor");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_the_card_is_refused_in_numbers_with_one_that_does() {
    let Some((folder, data)) = beside_a_card() else { return };
    let mut memory = Memory::default();
    let options =
        TrainOptions { epochs: 1, batch_size: 8, ..on_the_card(folder.path(), &data, "fits", Precision::Auto) };
    run(&options, &mut memory).unwrap();
    assert!(memory.lines.iter().any(|l| l.starts_with("card memory of the run: ")), "{:?}", memory.lines);
    let refused = |memory_available: u64| {
        let options = TrainOptions { memory_available: Some(memory_available), ..options.clone() };
        match run(&options, &mut Memory::default()).unwrap_err() {
            TrainError::Memory { memory, needed, available, hint, .. } => {
                assert_eq!((memory, available), ("memory of the card", memory_available));
                (needed, hint)
            }
            other => panic!("{other}"),
        }
    };
    let (needed, _) = refused(1);
    let (_, hint) = refused(needed / 4 * 3);
    assert!(hint.contains("--img") || hint.contains("--batch"), "{hint}");
    let fits = TrainOptions { memory_available: Some(needed), ..options.clone() };
    run(&fits, &mut Memory::default()).unwrap();
}

#[test]
fn a_card_that_is_not_there_is_named_with_those_that_are() {
    let Some((folder, data)) = beside_a_card() else { return };
    let options = TrainOptions { device: "99".to_owned(), ..tiny(folder.path(), &data, "none") };
    let error = run(&options, &mut Memory::default()).unwrap_err();
    assert!(error.to_string().contains("there is no card 99"), "{error}");
    assert!(error.hint().unwrap().contains("numbers go from 0 to"), "{:?}", error.hint());
}

#[test]
fn what_the_card_did_is_written_down_and_kept_on_the_cpu() {
    let Some((folder, data)) = beside_a_card() else { return };
    let options = on_the_card(folder.path(), &data, "watched", Precision::Bf16);
    let stopped_after = |batches| Memory { stop_after: Some(batches), ..Memory::default() };
    let cut = run(&options, &mut stopped_after(4)).unwrap();
    let read = |name: &str| std::fs::read_to_string(cut.folder.join(name)).unwrap();
    let watched = cut.folder.join("telemetry.csv").is_file();
    let samples = if watched { read("telemetry.csv") } else { String::new() };
    if watched {
        assert!(samples.starts_with("time,epoch,training,util_percent,"), "{samples}");
        assert!(samples.lines().count() > 1, "one sample is taken at once");
    } else {
        eprintln!("skipped in part: there is no NVML");
    }

    // On the card again, and the last epoch on the CPU.
    run(&resumed(&cut.folder, "0"), &mut stopped_after(3)).unwrap();
    if watched {
        let now = read("telemetry.csv");
        assert!(now.starts_with(&samples) && now.len() > samples.len(), "the rows before stay\n{now}");
    }
    let done = run(&resumed(&cut.folder, "cpu"), &mut Memory::default()).unwrap();
    assert_eq!((done.end, done.epochs), (TrainEnd::Finished, 3));
    let table = report::results_csv::read_results(&cut.folder.join("results.csv")).unwrap();
    println!("{table:?}");
    let column = |name: &str| table.columns.iter().position(|n| n == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(table.columns.iter().any(|name| name == "gpu/util_mean"), watched);
    let [speed, wait] = ["time/images_per_s", "time/data_wait"].map(column);
    for row in &table.rows[..2] {
        assert!(row[speed] > 0.0 && (0.0..=1.0).contains(&row[wait]), "{row:?}");
        if let Some(mfu) = table.columns.iter().position(|name| name == "mfu") {
            assert!(row[mfu] > 0.0 && row[mfu] < 1.0, "{row:?}");
        }
    }
    assert!(table.rows[2][14..].iter().all(|value| value.is_nan()), "the CPU has no such numbers: {:?}", table.rows[2]);
}

#[test]
fn batches_that_the_card_renders_train_the_same_weights_as_those_of_the_host() {
    let Some((folder, data)) = beside_a_card() else { return };
    for (name, multi_scale, rect) in [("plain", false, false), ("scales", true, false), ("rectangles", false, true)] {
        let options = TrainOptions {
            multi_scale,
            rect,
            noplots: false,
            ..on_the_card(folder.path(), &data, name, Precision::Auto)
        };
        let needed = match run(&TrainOptions { memory_available: Some(1), ..options.clone() }, &mut Memory::default()) {
            Err(TrainError::Memory { needed, .. }) => needed,
            other => panic!("{other:?}"),
        };
        // What the plans need, and nothing for pictures.
        let trained = |memory_available: Option<u64>, line: &str| {
            let mut memory = Memory::default();
            let done = run(&TrainOptions { memory_available, ..options.clone() }, &mut memory).unwrap();
            assert!(memory.lines.iter().any(|l| l.starts_with(line)), "{name}: {:?}", memory.lines);
            let drawn = std::fs::read(done.folder.join("train_batch0.jpg")).unwrap();
            (bits(&done.last.unwrap()), drawn)
        };
        let host = trained(Some(needed), "batches are rendered on the host");
        assert!(trained(None, "the card renders batches") == host, "{name}");
    }
}

#[test]
fn no_cache_changes_a_bit_on_a_card_and_gpu_is_refused_where_it_has_no_room() {
    let Some((folder, data)) = beside_a_card() else { return };
    let with = |cache: Cache, name: &str| TrainOptions {
        cache,
        picture_folder: Some(folder.path().join("pictures")),
        ..on_the_card(folder.path(), &data, name, Precision::Auto)
    };
    let trained = |cache: Cache, name: &str| {
        let mut memory = Memory::default();
        let done = run(&with(cache, name), &mut memory).unwrap();
        (bits(&done.last.unwrap()), bits(&done.best.unwrap()), memory.lines)
    };
    let (last, best, _) = trained(Cache::None, "none");
    for (cache, name) in
        [(Cache::Ram, "ram"), (Cache::Disk, "disk"), (Cache::Val, "val"), (Cache::Gpu, "gpu"), (Cache::Auto, "auto")]
    {
        let (found_last, found_best, lines) = trained(cache, name);
        assert!(found_last == last && found_best == best, "{name}");
        let chosen = lines.iter().any(|l| l.starts_with("--cache auto: all training pictures stay on the card"));
        assert_eq!(chosen, cache == Cache::Auto, "{lines:?}");
    }
    let least = TrainOptions { memory_available: Some(1), ..with(Cache::Gpu, "least") };
    let needed = match run(&least, &mut Memory::default()) {
        Err(TrainError::Memory { needed, .. }) => needed,
        other => panic!("{other:?}"),
    };
    // What the plans need, and nothing for pictures.
    let tight = TrainOptions { memory_available: Some(needed), ..with(Cache::Gpu, "tight") };
    match run(&tight, &mut Memory::default()) {
        Err(TrainError::Memory { what, available: 0, .. }) => assert_eq!(what, "--cache gpu"),
        other => panic!("{other:?}"),
    }
    assert!(!tight.project.join("tight").exists());
}
