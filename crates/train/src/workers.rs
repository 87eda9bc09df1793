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
