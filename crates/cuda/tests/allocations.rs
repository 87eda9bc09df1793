//! Running a prepared plan allocates nothing on the host. Needs a GPU; without one the test says so and is skipped.

mod card;

use card::Card;
use graph::{Executor, OptimizerKind, Precision};
use parity::{Packed, Step, filled, load, pictures};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every request on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no count any more.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
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
fn a_prepared_step_allocates_nothing_on_the_host() {
    let Some(card) = Card::open(Precision::BF16, false) else { return };
    let case = "yolov9-cmicro-nc5";
    let model = load(case);
    let mut step = Step::on(card, &model, &filled(&model, case), [2, 64, 64], OptimizerKind::Sgd, false);
    let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4]];
    step.upload(&pictures("train", 2, 64, 64), &Packed::of(rows.as_flattened(), 2));
    // What is kept for later runs is made in the first ones.
    for _ in 0..3 {
        step.run();
    }
    step.write_inputs();
    let before = COUNT.get();
    step.executor.run(step.plan).expect("a run");
    assert_eq!(COUNT.get() - before, 0, "allocations during a step");
}
