//! Names of the files that detection writes for each source: no two sources share one, even when they share a stem.

use std::collections::HashSet;
use std::path::Path;

/// Hands out one output stem a source, in the order of the sources: `a.jpg` then `a.png` give `a` and `a_2`, so do `d1/i.jpg` and
/// `d2/i.jpg`. Names that differ only in case count as equal, because they are one file on Windows and macOS.
#[derive(Debug, Default)]
pub struct OutputNames {
    taken: HashSet<String>,
}

/// An output stem, and whether it had to differ from the source's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputStem {
    /// Stem of the files to write for the source, without suffix.
    pub stem: String,
    /// The source's own stem was taken: worth a warning.
    pub renamed: bool,
}

impl OutputNames {
    /// The stem for `source`, which no later call returns again.
    pub fn assign(&mut self, source: &Path) -> OutputStem {
        let own = source.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let own = if own.is_empty() { "image".to_owned() } else { own };
        let mut stem = own.clone();
        let mut number = 1_u64;
        while !self.taken.insert(stem.to_lowercase()) {
            number += 1;
            stem = format!("{own}_{number}");
        }
        OutputStem { renamed: number > 1, stem }
    }
}
