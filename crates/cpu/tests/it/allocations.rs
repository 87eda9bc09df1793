//! A prepared step allocates nothing.

use crate::common::{Packed, filled, load, pictures, step};
use graph::{Executor, OptimizerKind};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

thread_local! {
    static WATCHED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}
static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every request on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if WATCHED.try_with(std::cell::Cell::get).unwrap_or(false) {
            COUNT.fetch_add(1, Ordering::Relaxed);
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

#[test]
fn a_prepared_step_allocates_nothing() {
    // One thread, so that all work happens on the watched one.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
    let count = pool.install(|| {
        let model = load("yolov9-cmicro-nc5");
        let shape = [2, 64, 64];
        let tensors = filled(&model, "yolov9-cmicro-nc5");
        let mut step = step(&model, &tensors, shape, OptimizerKind::Sgd);
        let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4]];
        step.upload(&pictures("train", 2, 64, 64), &Packed::of(rows.as_flattened(), 2));
        step.run();
        step.write_inputs();
        WATCHED.set(true);
        let before = COUNT.load(Ordering::Relaxed);
        step.executor.run(step.plan).expect("a run");
        let after = COUNT.load(Ordering::Relaxed);
        WATCHED.set(false);
        after - before
    });
    assert_eq!(count, 0, "allocations during a step");
}
