//! What this machine has: driver, cards, libraries, and where results that can be made again are kept.

use cuda::libraries::{Library, find, versions};
use cuda::{CudaError, Gpu, Properties, conv, kernels};
use std::path::PathBuf;

/// A library that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    There {
        version: String,
        path: Option<PathBuf>,
    },
    /// Not there, or not usable.
    Missing {
        /// Where it was looked for, and what the system said.
        reason: String,
        /// What brings it.
        command: String,
    },
}

/// Everything that is worth knowing before a GPU is used.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Release of the driver, such as `580.95.05`, where the system tells it.
    pub driver: Option<String>,
    /// Cards in the order of their numbers; why one could not be opened.
    pub cards: Vec<Result<Properties, String>>,
    pub libraries: Vec<(&'static str, Found)>,
    /// Folder of compiled kernels; `None` where the user has no cache folder.
    pub kernels: Option<PathBuf>,
    /// File of the choices of convolutions.
    pub tuning: Option<PathBuf>,
}

impl Environment {
    /// Looks around. Works on machines without a GPU.
    pub fn look() -> Self {
        let cards = (0..Gpu::count()).map(|at| Gpu::open(at).map(|gpu| gpu.properties().clone()));
        let cards = cards.map(|card| card.map_err(|error| error.to_string())).collect();
        let libraries = versions().into_iter().map(|(library, version)| {
            let found = match version {
                Ok(version) => Found::There { version: version.version, path: version.path },
                Err(error) => missing(library, error),
            };
            (library.name(), found)
        });
        Self {
            driver: std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| release(&text)),
            cards,
            libraries: libraries.collect(),
            kernels: kernels::compiler::cache_folder(),
            tuning: conv::tuning_file(),
        }
    }
}

fn missing(library: Library, error: CudaError) -> Found {
    let (reason, command) = match error {
        CudaError::Missing { library: which, looked, hint } if which == library.name() => (looked, hint),
        // It is loaded after what it needs.
        CudaError::Missing { library: which, hint, .. } => match find(library) {
            Some(path) => (format!("{} needs {which}", path.display()), hint),
            None => (format!("it needs {which} beside itself"), library.install_command().to_owned()),
        },
        other => (other.to_string(), library.install_command().to_owned()),
    };
    Found::Missing { reason, command }
}

/// The release in the driver's own words: the first word that is numbers and points.
fn release(text: &str) -> Option<String> {
    let number = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_release_is_found_in_its_words() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)\n\
                    GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n";
        assert_eq!(release(text).as_deref(), Some("580.95.05"));
        assert_eq!(release("nothing of the kind"), None);
    }

    #[test]
    fn every_library_is_listed_with_what_brings_it() {
        let environment = Environment::look();
        assert_eq!(environment.libraries.len(), Library::ALL.len());
        for (name, found) in &environment.libraries {
            if let Found::Missing { command, .. } = found {
                assert!(command.contains("install"), "{name}: {command}");
            }
        }
    }
}
