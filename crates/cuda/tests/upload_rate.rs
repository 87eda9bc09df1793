//! Copies to a card, timed. Needs a GPU; without one the test says so and is skipped.

use cuda::{Gpu, upload_seconds};

#[test]
fn every_copy_from_page_locked_memory_is_timed_even_of_nothing() {
    let gpu = match Gpu::open(0) {
        Ok(gpu) => gpu,
        Err(missing) => return eprintln!("skipped: {missing}"),
    };
    for bytes in [0, 1, 64 << 20] {
        let seconds = upload_seconds(&gpu, bytes, 10).expect("copies");
        assert!(seconds.len() == 10 && seconds.iter().all(|&s| s > 0.0), "{bytes}: {seconds:?}");
    }
}
