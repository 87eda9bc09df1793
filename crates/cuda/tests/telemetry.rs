//! A card is watched. Needs a GPU and NVML; without them every test says so and is skipped.

use cuda::Gpu;
use cuda::telemetry::{Monitor, Quantity, Sample};
use std::time::{Duration, Instant};

fn watched() -> Option<(Gpu, Monitor)> {
    if Gpu::count() == 0 {
        println!("skipped: there is no card");
        return None;
    }
    let gpu = Gpu::open(0).expect("a card");
    match Monitor::start(&gpu.pci_bus_id().expect("a place on the bus")) {
        Ok(monitor) => Some((gpu, monitor)),
        Err(problem) => {
            println!("skipped: {problem}");
            None
        }
    }
}

/// The next sample that was begun after this call.
fn next(monitor: &Monitor) -> Sample {
    let start = Instant::now();
    monitor.take();
    let mut taken = Vec::new();
    // The first may have been begun before.
    while taken.len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60), "no sample comes");
        std::thread::sleep(Duration::from_millis(20));
        taken.extend(monitor.take());
    }
    taken[1]
}

#[test]
fn the_place_on_the_bus_names_domain_bus_device_and_function() {
    let Some((gpu, _monitor)) = watched() else { return };
    let place = gpu.pci_bus_id().expect("a place on the bus");
    let digits: Vec<&str> = place.split([':', '.']).collect();
    assert_eq!(digits.len(), 4, "{place}");
    assert!(digits.iter().all(|part| u32::from_str_radix(part, 16).is_ok()), "{place}");
}

#[test]
fn the_card_that_is_watched_is_the_one_that_is_used() {
    let Some((gpu, monitor)) = watched() else { return };
    let bytes = 2usize << 30;
    let before = next(&monitor).reading;
    let buffer = gpu.allocate(bytes).expect("memory");
    gpu.synchronize().expect("zeroed");
    let after = next(&monitor).reading;
    println!("{before:?}\n{after:?}");
    drop(buffer);
    let used = |reading: cuda::telemetry::Reading| reading.get(Quantity::MemoryUsed);
    if let (Some(before), Some(after)) = (used(before), used(after)) {
        assert!(after - before >= 0.9 * bytes as f64, "{before} bytes, then {after}");
    }
    if let Some(total) = after.get(Quantity::MemoryTotal) {
        let told = gpu.properties().memory as f64;
        assert!((total / told - 1.0).abs() < 0.1, "{total} bytes, {told} as CUDA counts");
    }
}

#[test]
fn quantities_are_in_their_units() {
    let Some((_gpu, monitor)) = watched() else { return };
    let reading = next(&monitor).reading;
    println!("{reading:?}");
    let ranges = [
        (Quantity::Utilisation, 0.0..=100.0),
        (Quantity::MemoryUtilisation, 0.0..=100.0),
        (Quantity::Power, 5.0..=2000.0),
        (Quantity::Temperature, 5.0..=110.0),
        (Quantity::SmClock, 50.0..=5000.0),
        (Quantity::MemoryClock, 100.0..=30_000.0),
        (Quantity::Upload, 0.0..=200_000.0),
        (Quantity::Download, 0.0..=200_000.0),
    ];
    for (quantity, range) in ranges {
        if let Some(value) = reading.get(quantity) {
            assert!(range.contains(&value), "{quantity:?} {value}, not in {range:?}");
        }
    }
}

#[test]
fn a_sample_comes_each_second_and_the_end_at_once() {
    let Some((_gpu, monitor)) = watched() else { return };
    next(&monitor);
    let start = Instant::now();
    let samples: Vec<Sample> = (0..2).flat_map(|_| [next(&monitor)]).collect();
    assert!(start.elapsed() > Duration::from_secs(2), "{samples:?}");
    let start = Instant::now();
    drop(monitor);
    assert!(start.elapsed() < Duration::from_millis(700), "{:?}", start.elapsed());
}
