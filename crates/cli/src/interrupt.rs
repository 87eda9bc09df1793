//! Ctrl-C: the first asks a training run to write its state and stop, the second ends the program.
//!
//! Supervisors such as `timeout` send a signal to the process and then to its group: what follows within
//! [`SAME_REQUEST`] is the first request once more.

use crate::console::note;
use crate::failure::INTERRUPTED;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Too large a file; the number is the same on Linux, macOS and the BSDs.
#[cfg(unix)]
const SIGXFSZ: i32 = 25;

/// Signals that come this soon after the first mean the same.
const SAME_REQUEST: Duration = Duration::from_millis(250);

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
    // Caught, the signal of a file size limit leaves the write that met it with an error to report.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default());
    let result = ctrlc::set_handler(|| {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        let again = ASKED.swap(true, Ordering::Relaxed);
        let repeated = again && FIRST.get().is_some_and(|first| first.elapsed() < SAME_REQUEST);
        if repeated {
            return;
        }
        if again || !GRACEFUL.load(Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        let _ = FIRST.set(Instant::now());
        note("stopping after this step and writing the state; Ctrl-C again quits at once");
    });
    if let Err(error) = result {
        note(&format!("Ctrl-C ends the program without writing the state: {error}"));
    }
}
