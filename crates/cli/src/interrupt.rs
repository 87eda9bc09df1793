//! Ctrl-C: the first asks a training run to write its state and stop, the second ends the program.

use crate::console::note;
use crate::failure::INTERRUPTED;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
static GRACEFUL: AtomicBool = AtomicBool::new(false);

/// True once Ctrl-C was pressed.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Whether the work going on looks at [`asked`]. Otherwise the first Ctrl-C ends the program.
pub fn graceful(on: bool) {
    GRACEFUL.store(on, Ordering::Relaxed);
}

/// Starts listening. Where the system does not allow that, Ctrl-C keeps its usual meaning.
pub fn listen() {
    let result = ctrlc::set_handler(|| {
        if !GRACEFUL.load(Ordering::Relaxed) || ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        note("stopping after this step and writing the state; Ctrl-C again quits at once");
    });
    if let Err(error) = result {
        note(&format!("Ctrl-C ends the program without writing the state: {error}"));
    }
}
