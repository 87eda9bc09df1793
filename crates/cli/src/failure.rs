//! Why a command failed: a message, what to do about it, and the exit code.

use crate::console::error_line;
use std::error::Error;
use train::TrainError;

/// Exit code of a command that failed.
pub const FAILED: u8 = 1;
/// Exit code of a wrong command line.
pub const WRONG_USAGE: u8 = 2;
/// Exit code after Ctrl-C, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// What is printed when a command does not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error and its causes, outermost first. Empty: nothing is printed, for the reason is on the screen already.
    pub messages: Vec<String>,
    pub hint: Option<String>,
    pub code: u8,
}

impl Failure {
    /// A command line that cannot be obeyed.
    pub fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { messages: vec![message.into()], hint: Some(hint.into()), code: WRONG_USAGE }
    }

    /// Something that went wrong while a command ran.
    pub fn new(message: impl Into<String>, hint: Option<String>) -> Self {
        Self { messages: vec![message.into()], hint, code: FAILED }
    }

    /// Ended by a code alone.
    pub fn silent(code: u8) -> Self {
        Self { messages: Vec::new(), hint: None, code }
    }

    fn of(error: &dyn Error, hint: Option<String>, code: u8) -> Self {
        let mut messages = vec![error.to_string()];
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Messages that quote their cause need it only once.
            if !messages.iter().any(|m| m.contains(&text)) {
                messages.push(text);
            }
            cause = error.source();
        }
        let mut failure = Self { messages, hint, code };
        failure.take_hint_out_of_the_message();
        failure
    }

    /// Some errors carry their hint as a last line of their own.
    fn take_hint_out_of_the_message(&mut self) {
        for message in &mut self.messages {
            if let Some((text, hint)) = message.split_once("\n  hint: ") {
                self.hint.get_or_insert_with(|| hint.to_owned());
                *message = text.to_owned();
            }
        }
    }

    /// `error: …`, one `cause: …` a line, `hint: …`, on stderr.
    pub fn print(&self) {
        for (i, message) in self.messages.iter().enumerate() {
            error_line(if i == 0 { "error" } else { "  cause" }, message);
        }
        if let Some(hint) = &self.hint {
            error_line("hint", hint);
        }
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let code = match error {
            TrainError::Option { .. } | TrainError::ResumeOption { .. } => WRONG_USAGE,
            TrainError::Stopped { .. } => INTERRUPTED,
            _ => FAILED,
        };
        Self::of(&error, error.hint(), code)
    }
}

impl From<model::ModelError> for Failure {
    fn from(error: model::ModelError) -> Self {
        Self::of(&error, None, FAILED)
    }
}

impl From<bench::BenchError> for Failure {
    fn from(error: bench::BenchError) -> Self {
        let code = if matches!(error, bench::BenchError::Device(_)) { WRONG_USAGE } else { FAILED };
        Self::of(&error, error.hint(), code)
    }
}

impl From<synth::SynthError> for Failure {
    fn from(error: synth::SynthError) -> Self {
        let code = match error {
            synth::SynthError::Option { .. } => WRONG_USAGE,
            _ => FAILED,
        };
        Self::of(&error, error.hint().map(str::to_owned), code)
    }
}

impl From<report::Error> for Failure {
    fn from(error: report::Error) -> Self {
        Self::of(&error, None, FAILED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn a_hint_inside_a_message_gets_a_line_of_its_own() {
        let failure = Failure::from(model::Model::load("no-such-model", None).unwrap_err());
        assert!(!failure.messages[0].contains("hint"), "{failure:?}");
        assert!(failure.hint.as_deref().unwrap().contains("yolov9-s"), "{failure:?}");
    }

    #[test]
    fn a_cause_that_the_message_quotes_is_not_repeated() {
        let source = std::io::Error::other("disk on fire");
        let failure = Failure::from(TrainError::Io { action: "write", path: PathBuf::from("a"), source });
        assert_eq!(failure.messages, ["cannot write a: disk on fire"]);
    }

    #[test]
    fn options_that_cannot_be_obeyed_are_wrong_usage() {
        let error = TrainError::Option { flag: "imgsz", message: "must be at least 64".to_owned(), hint: None };
        assert_eq!(Failure::from(error).code, WRONG_USAGE);
    }
}
