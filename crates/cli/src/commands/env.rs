//! `yolov9 env`.

use crate::console::out;
use crate::failure::Failure;
use bench::environment::{Environment, Found};
use std::path::Path;

/// Prints driver, cards, libraries and caches.
///
/// # Errors
/// None: what is missing is the answer.
pub fn run() -> Result<(), Failure> {
    let environment = Environment::look();
    out(&format!("yolov9 {}", env!("CARGO_PKG_VERSION")));
    out(&line("driver", environment.driver.as_deref().unwrap_or("not there")));
    if environment.cards.is_empty() {
        out(&line("cards", "none"));
    }
    for (number, card) in environment.cards.iter().enumerate() {
        let text = match card {
            Ok(card) => format!(
                "{}, {:.1} GiB, compute capability {}.{}, {} multiprocessors",
                card.name,
                card.memory as f64 / (1u64 << 30) as f64,
                card.major,
                card.minor,
                card.multiprocessors
            ),
            Err(reason) => format!("cannot be opened: {reason}"),
        };
        out(&line(&format!("card {number}"), &text));
    }
    for (name, found) in &environment.libraries {
        match found {
            Found::There { version, path: Some(path) } => out(&line(name, &format!("{version}, {}", path.display()))),
            Found::There { version, path: None } => out(&line(name, version)),
            Found::Missing { reason, command } => {
                out(&line(name, &format!("not there: {reason}")));
                out(&line("", &format!("to get it: {command}")));
            }
        }
    }
    let place = |path: Option<&Path>| path.map_or("nowhere, for there is no cache folder".to_owned(), path_text);
    out(&line("kernels", &place(environment.kernels.as_deref())));
    out(&line("tuning", &place(environment.tuning.as_deref())));
    Ok(())
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn line(name: &str, text: &str) -> String {
    format!("{name:<16} {text}")
}
