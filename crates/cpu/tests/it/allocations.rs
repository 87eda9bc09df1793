//! Prepared plans allocate nothing.

use crate::common::{Packed, SINGLE, filled, load, pictures, step};
use detect::nms::NmsConfig;
use graph::{Executor, OptimizerKind};
use parity::detections::Detector;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every request on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHED.try_with(Cell::get).unwrap_or(false) {
            COUNT.set(COUNT.get() + 1);
        }
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: came from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of `work` on this thread.
fn allocations(work: impl FnOnce()) -> usize {
    COUNT.set(0);
    WATCHED.set(true);
    work();
    WATCHED.set(false);
    COUNT.get()
}

/// A pool of one thread, so that all work happens on the watched one.
fn one_thread() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool")
}

#[test]
fn a_prepared_step_allocates_nothing() {
    let count = one_thread().install(|| {
        let model = load("yolov9-cmicro-nc5");
        let shape = [2, 64, 64];
        let tensors = filled(&model, "yolov9-cmicro-nc5");
        let mut step = step(&model, &tensors, shape, OptimizerKind::Sgd);
        let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4]];
        step.upload(&pictures("train", 2, 64, 64), &Packed::of(rows.as_flattened(), 2));
        step.run();
        step.write_inputs();
        allocations(|| step.executor.run(step.plan).expect("a run"))
    });
    assert_eq!(count, 0, "allocations during a step");
}

#[test]
fn prepared_detection_allocates_nothing() {
    let count = one_thread().install(|| {
        let config = NmsConfig { conf_threshold: 0.0, multi_label: true, ..NmsConfig::default() };
        let mut detector = Detector::new(&SINGLE, "yolov9-cmicro-nc5", Some(config));
        detector.upload();
        detector.executor.run(detector.plan).expect("a run");
        assert!(detector.detections().iter().any(|image| !image.is_empty()));
        detector.upload();
        allocations(|| detector.executor.run(detector.plan).expect("a run"))
    });
    assert_eq!(count, 0, "allocations during detection");
}
