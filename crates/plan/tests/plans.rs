//! Planned runs: their arithmetic, their speed, and what profiles make of it.

use cuda::CudaOptions;
use graph::{Level, OptimizerKind, Precision, Recompute};
use model::Model;
use plan::calibration::{Calibration, ProfileError};
use plan::cards::Card;
use plan::memory::{Formats, Part, Planner, Request, free_on, usable};
use plan::picture;
use plan::report::{Report, Target, timeline};
use plan::speed::{Kind, Limit};

fn planner(name: &str, side: usize, validation: bool, devices: usize) -> Planner {
    let options = |precision| CudaOptions { precision, tf32: false, tune: true, capture: true };
    Planner::new(Request {
        model: Model::load(name, Some(3)).unwrap(),
        side,
        formats: Formats { training: options(Precision::BF16), inference: options(Precision::F16) },
        optimizer: OptimizerKind::Sgd,
        most_labels: 20,
        validation,
        devices,
    })
}

#[test]
fn parts_add_up_to_the_total_at_every_level() {
    let planner = planner("yolov9-t", 320, true, 2);
    for level in Level::ALL {
        let memory = planner.at_level(8, level).unwrap();
        let parts = memory.parts();
        assert_eq!(parts.iter().map(|p| p.1).sum::<u64>(), memory.total(), "{level:?}: {parts:?}");
        let recomputed = parts[Part::Recomputed as usize].1;
        assert_eq!(recomputed > 0, level != Level::KeepAll, "{level:?}: {parts:?}");
    }
}

#[test]
fn a_validation_takes_weights_of_its_own_and_shares_the_arena() {
    let [with, without] = [true, false].map(|v| planner("gelan-t", 320, v, 1).at_level(4, Level::KeepAll).unwrap());
    let validation = with.validation.clone().unwrap();
    assert_eq!(with.step, without.step);
    let beyond = validation.arena.saturating_sub(with.step.arena);
    assert_eq!(with.total(), without.total() + validation.state() + beyond);
}

#[test]
fn the_timeline_is_highest_where_the_plan_says() {
    let memory = planner("gelan-t", 160, false, 1).memory(2, Recompute::Level(Level::DropActivations)).unwrap();
    let alive: Vec<u64> = timeline(&memory).iter().map(|at| at.iter().sum()).collect();
    let report = memory.plan.memory();
    assert_eq!(alive.iter().max(), Some(&report.lower_bound));
    assert_eq!(alive[report.peak_op], report.lower_bound);
}

#[test]
fn the_largest_batch_fits_and_the_next_one_does_not() {
    let planner = planner("yolov9-t", 320, true, 1);
    let free = free_on(Card::find("RTX 4060").unwrap().memory());
    for level in Level::ALL {
        let found = planner.largest(level, free).unwrap().unwrap();
        assert_eq!((found.batch % 8, found.capped), (0, None), "{level:?}");
        let bytes = |batch| planner.at_level(batch, level).unwrap().beside_the_context();
        assert!(found.bytes == bytes(found.batch) && found.bytes <= usable(free), "{level:?}");
        assert!(bytes(found.batch + 8) > usable(free), "{level:?}");
    }
}

#[test]
fn a_faster_card_is_faster_and_a_larger_batch_never_slower_an_image() {
    let planner = planner("yolov9-s", 640, false, 1);
    let calibration = Calibration::built_in().unwrap();
    let rate = |batch: usize, card: &str| {
        let target = Target::Card(Card::find(card).unwrap());
        let made = Report::new(&planner, batch, Recompute::Level(Level::KeepAll), target, &calibration).unwrap();
        made.0.cards[0].images_per_second.unwrap()
    };
    assert!(rate(16, "H200") > rate(16, "RTX 4090") && rate(16, "RTX 4090") > rate(16, "RTX 3060"));
    let rates = [1, 4, 16, 64].map(|batch| rate(batch, "H200"));
    assert!(rates.is_sorted(), "{rates:?}");
    // Measured on an H200, neither of them in the calibration: 47.27 ms for batch 64, 17.96 for batch 16.
    for (rate, measured) in [(rates[3], 64e3 / 47.27), (rates[2], 16e3 / 17.96)] {
        assert!((rate / measured - 1.0).abs() < 0.15, "{rates:?}");
    }
}

#[test]
fn the_picture_is_drawn_for_a_run_of_any_size() {
    let planner = planner("gelan-t", 64, true, 3);
    let calibration = Calibration::built_in().unwrap();
    let (report, memory) =
        Report::new(&planner, 1, Recompute::Level(Level::KeepAll), Target::Bytes(8 << 30), &calibration).unwrap();
    let canvas = picture::draw(&report, &memory).unwrap();
    let colours: std::collections::BTreeSet<_> = (0..canvas.height()).filter_map(|y| canvas.pixel(150, y)).collect();
    let parts = memory.parts().iter().filter(|p| p.1 > 8 << 20).count();
    assert!(colours.len() > parts, "{} colours in the bar, {parts} parts", colours.len());
    assert!(report.cards[0].images_per_second.is_none() && report.cards[0].fits);
}

/// As `yolov9 bench step --profile --json` writes it, but for rows.
fn profile(device: &str, ms: f64, rows: &str) -> String {
    format!(
        r#"{{"device": "{device}", "model": "yolov9-t", "imgsz": 640, "batch": 64, "precision": "bf16",
            "step_ms": {{"median": {ms}, "fastest": 1.0, "slowest": 2.0}}, "profile": {{"ms": 1.0, "rows": [{rows}]}}}}"#
    )
}

fn row(op: &str, count: usize, ms: f64, gflop: f64, megabytes: f64) -> String {
    format!(
        r#"{{"op": "{op}", "shape": "a", "count": {count}, "ms": {ms}, "gflop": {gflop}, "megabytes": {megabytes}}}"#
    )
}

#[test]
fn shares_come_from_profiles_without_what_launches_and_events_cost() {
    // 790 GFLOP at 789 TFLOP/s take 1.001 ms; 4200 MB at 4.2 TB/s take 1 ms, and nothing fits the cache.
    let rows = [row("Conv2d", 10, 2.0, 790.0, 420.0), row("BnApply", 10, 1.3, 0.0, 4200.0)].join(",");
    // 3.3 ms by events, 3.1 as a recorded step: 0.01 ms of each op are events, 0.005 its launch.
    let found = Calibration::of_profiles(&[profile("NVIDIA H200", 3.1, &rows)]).unwrap();
    let close = |got: f64, want: f64| assert!((got - want).abs() < 2e-3, "{got}, not {want}");
    close(found.share(Kind::Forward, Limit::Arithmetic), 1.0006 / 1.85);
    close(found.share(Kind::NormForward, Limit::Traffic), 1.0 / 1.15);
    // What was not measured is taken from its kind, or is usual.
    close(found.share(Kind::Forward, Limit::Traffic), found.share(Kind::Forward, Limit::Arithmetic));
    close(found.share(Kind::Loss, Limit::Traffic), 0.5);
    assert_eq!(found.card, "H200");
    assert!(found.basis().contains("yolov9-t, 640 pixels, batch 64, bf16"), "{}", found.basis());
    let again: Calibration = serde_json::from_str(&found.to_json().unwrap()).unwrap();
    assert_eq!(again, found);
}

#[test]
fn profiles_that_say_nothing_are_refused() {
    let rows = row("Conv2d", 1, 1.0, 1.0, 1.0);
    let of = |texts: &[String]| Calibration::of_profiles(texts).unwrap_err();
    assert!(matches!(of(&[]), ProfileError::None));
    assert!(matches!(of(&["{}".to_owned()]), ProfileError::Json(_)));
    assert!(matches!(of(&[profile("NVIDIA H200", 1.0, "")]), ProfileError::NoOps));
    assert!(matches!(of(&[profile("Radeon VII", 1.0, &rows)]), ProfileError::Card(_)));
    let two = [profile("NVIDIA H200", 1.0, &rows), profile("NVIDIA H100", 1.0, &rows)];
    assert!(matches!(of(&two), ProfileError::Cards(..)));
}
