//! A panic is a bug of this program: it is told in two lines instead of a backtrace.
//!
//! Threads whose panics are caught and handled elsewhere stay silent; only one that reaches `main` is printed.

use crate::console::error_line;
use std::panic::PanicHookInfo;
use std::sync::Mutex;

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the message of a panic for [`report()`]. With `RUST_BACKTRACE` set, the usual output appears as well.
pub fn install() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Ok(mut last) = LAST.lock() {
            *last = Some(describe(info));
        }
        if std::env::var_os("RUST_BACKTRACE").is_some_and(|v| v != "0") {
            usual(info);
        }
    }));
}

/// Prints the last panic.
pub fn report() {
    let last = LAST.lock().ok().and_then(|mut last| last.take());
    error_line("error", &format!("internal error: {}", last.as_deref().unwrap_or("no message")));
    let page = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");
    error_line("hint", &format!("this is a bug of yolov9; please report it with the command line at {page}"));
}

fn describe(info: &PanicHookInfo) -> String {
    let payload = info.payload();
    let message = payload
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned());
    match info.location() {
        Some(place) => format!("{message} ({}:{})", place.file(), place.line()),
        None => message,
    }
}
