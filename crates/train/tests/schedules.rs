//! Schedules against the reference's own numbers, `pieces/schedules.json`.

use serde_json::Value;
use testkit::{assert_close, json};
use train::early_stopping::{EarlyStopping, fitness};
use train::ema;
use train::hyp::Hyp;
use train::schedule::{Accumulator, Decay, Schedule};

fn number(v: &Value) -> f64 {
    v.as_f64().expect("a number")
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().expect("a list").iter().map(number).collect()
}

fn decay(name: &str) -> Decay {
    match name {
        "linear" => Decay::Linear,
        "cosine" => Decay::Cosine,
        "flat_cosine" => Decay::FlatCosine,
        "fixed" => Decay::Fixed,
        other => panic!("unknown schedule {other}"),
    }
}

#[test]
fn learning_rate_factors_are_the_references() {
    let file = json("pieces/schedules.json");
    for epochs in [10, 15, 100] {
        for (name, want) in file[format!("factor_epochs{epochs}")].as_object().unwrap() {
            let got: Vec<f64> = (0..=epochs).map(|e| decay(name).factor(e, epochs, 0.01)).collect();
            assert_close(&format!("{name} over {epochs}"), &got, &numbers(want), 1e-12, 1e-12);
        }
    }
}

#[test]
fn every_iteration_is_the_references() {
    let file = json("pieces/schedules.json");
    for run in file["runs"].as_array().unwrap() {
        let size = |key: &str| number(&run[key]) as usize;
        let (batches, epochs, batch) = (size("batches_per_epoch"), size("epochs"), size("batch_size"));
        let hyp = Hyp { lrf: number(&run["lrf"]), ..Hyp::default() };
        let schedule = Schedule::new(&hyp, decay(run["schedule"].as_str().unwrap()), epochs, batches, batch);
        assert_eq!(schedule.warmup, size("warmup_iterations"));
        assert_close("decay", &[schedule.weight_decay], &[number(&run["weight_decay_scaled"])], 0.0, 1e-12);
        let mut accumulator = Accumulator::default();
        let decisions: Vec<_> = (0..batches * epochs)
            .map(|i| {
                let at = schedule.at(i);
                (at, accumulator.advance(at.accumulate))
            })
            .collect();
        for row in run["rows"].as_array().unwrap() {
            let row = row.as_array().unwrap();
            let iteration = number(&row[0]) as usize;
            let (at, steps) = decisions[iteration];
            let got = [at.lr[0], at.lr[1], at.momentum, at.accumulate as f64];
            let want: Vec<f64> = row[2..6].iter().map(number).collect();
            assert_close(&format!("iteration {iteration} of batch {batch}"), &got, &want, 1e-12, 1e-12);
            assert_eq!(at.lr[1], at.lr[2]);
            assert_eq!(steps, row[6].as_bool().unwrap(), "step at iteration {iteration} of batch {batch}");
        }
    }
}

#[test]
fn weight_decay_follows_the_images_of_a_step() {
    let file = json("pieces/schedules.json");
    for (batch, want) in file["accumulate"].as_object().unwrap() {
        let schedule = Schedule::new(&Hyp::default(), Decay::Linear, 10, 50, batch.parse().unwrap());
        assert_eq!(schedule.at(1000).accumulate as f64, number(&want["accumulate"]), "batch {batch}");
        assert_close(batch, &[schedule.weight_decay], &[number(&want["weight_decay"])], 0.0, 1e-12);
    }
}

#[test]
fn accumulation_by_number_replaces_the_nominal_batch() {
    let hyp = Hyp::default();
    let schedule = Schedule::new(&hyp, Decay::Linear, 10, 50, 16);
    // As many as the nominal batch of 64 makes anyway.
    assert_eq!(schedule.clone().with_accumulation(4), schedule);
    for steps in [1, 3, 7] {
        let other = schedule.clone().with_accumulation(steps);
        let counts: Vec<usize> = (0..500).map(|i| other.at(i).accumulate).collect();
        assert_eq!((counts[0], counts[other.warmup]), (1, steps), "the warm-up starts with every batch");
        assert!(counts.windows(2).all(|pair| pair[0] <= pair[1]), "{counts:?}");
        assert!(counts[other.warmup..].iter().all(|&n| n == steps));
        assert_close("decay", &[other.weight_decay], &[hyp.weight_decay * (16 * steps) as f64 / 64.0], 0.0, 1e-12);
        for i in [0, 10, 200] {
            assert_eq!((other.at(i).lr, other.at(i).momentum), (schedule.at(i).lr, schedule.at(i).momentum));
        }
    }
}

#[test]
fn a_rate_factor_scales_every_learning_rate_and_nothing_else() {
    let schedule = Schedule::new(&Hyp::default(), Decay::Cosine, 10, 50, 16);
    let scaled = schedule.clone().with_rate_factor(2.0);
    assert_eq!((scaled.rate(), scaled.weight_decay, scaled.warmup), (0.02, schedule.weight_decay, schedule.warmup));
    for i in [0, 1, 77, 150, 151, 499] {
        let (a, b) = (scaled.at(i), schedule.at(i));
        assert_close(&format!("iteration {i}"), &a.lr, &b.lr.map(|lr| 2.0 * lr), 1e-15, 1e-12);
        assert_eq!((a.momentum, a.accumulate), (b.momentum, b.accumulate));
    }
}

#[test]
fn ema_decay_is_the_references() {
    for (updates, want) in json("pieces/schedules.json")["ema_decay"].as_object().unwrap() {
        assert_close(updates, &[ema::decay(updates.parse().unwrap())], &[number(want)], 1e-15, 1e-12);
    }
}

#[test]
fn early_stopping_is_the_references() {
    for case in json("pieces/schedules.json")["early_stopping"].as_array().unwrap() {
        let patience = number(&case["patience"]) as usize;
        let mut watch = EarlyStopping::default();
        for (epoch, value) in numbers(&case["fitness"]).into_iter().enumerate() {
            watch.note(epoch, value);
            let want = case["stop"][epoch].as_bool().unwrap();
            assert_eq!(watch.stops(epoch, patience), want, "patience {patience}, epoch {epoch}");
        }
    }
}

#[test]
fn fitness_weighs_map50_95_most() {
    assert_close("fitness", &[fitness(0.5, 0.25)], &[0.275], 1e-15, 0.0);
}

#[test]
fn unfinished_accumulation_is_flushed_once() {
    let mut accumulator = Accumulator::default();
    assert!(!accumulator.advance(3));
    assert!(accumulator.flush());
    assert!(!accumulator.flush());
}

#[test]
fn no_warmup_starts_at_the_full_rate() {
    let hyp = Hyp { warmup_epochs: 0.0, warmup_min_iterations: 0.0, nominal_batch: 8.0, ..Hyp::default() };
    let at = Schedule::new(&hyp, Decay::Fixed, 5, 4, 8).at(0);
    assert_eq!((at.lr, at.momentum, at.accumulate), ([0.01; 3], 0.937, 1));
}
