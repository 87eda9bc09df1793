//! How many threads load images: a number, or what suits the machine.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Threads that load images. Speed only: results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WorkersText", into = "WorkersText")]
pub enum Workers {
    /// As many as suit the machine and the device.
    Auto,
    /// At least one, at most as many as the machine has cores.
    Count(usize),
}

impl Workers {
    /// Threads that [`Self::Auto`] takes on a machine that runs `cores` threads at once: all while a card computes; a step on
    /// the CPU keeps all cores busy itself, so that loading gets an eighth of them.
    pub fn automatic(cores: usize, on_card: bool) -> usize {
        if on_card { cores.max(1) } else { (cores / 8).max(1) }
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self::Count(8)
    }
}

impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Count(count) => write!(f, "{count}"),
        }
    }
}

impl FromStr for Workers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) => Ok(Self::Count(count)),
            _ => Err(format!("'{text}' is neither a number nor auto")),
        }
    }
}

/// [`Workers`] in files: a number, or the word.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WorkersText {
    Count(usize),
    Word(AutoWord),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AutoWord {
    Auto,
}

impl From<WorkersText> for Workers {
    fn from(text: WorkersText) -> Self {
        match text {
            WorkersText::Count(count) => Self::Count(count),
            WorkersText::Word(AutoWord::Auto) => Self::Auto,
        }
    }
}

impl From<Workers> for WorkersText {
    fn from(workers: Workers) -> Self {
        match workers {
            Workers::Count(count) => Self::Count(count),
            Workers::Auto => Self::Word(AutoWord::Auto),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_takes_all_cores_beside_a_card_and_an_eighth_beside_a_step_on_the_cpu() {
        assert_eq!([1, 7, 8, 16, 100].map(|cores| Workers::automatic(cores, false)), [1, 1, 1, 2, 12]);
        assert_eq!([0, 1, 16].map(|cores| Workers::automatic(cores, true)), [1, 1, 16]);
    }
}
