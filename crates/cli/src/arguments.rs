//! The command line as a whole: the commands and what all of them share.

use crate::commands::{bench::BenchArgs, convert_weights::ConvertArgs, demo::DemoArgs, detect::DetectArgs};
use crate::commands::{info::InfoArgs, selftest::SelftestArgs, synth::SynthArgs, train::TrainArgs, val::ValArgs};
use crate::failure::{Failure, WRONG_USAGE};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Trains, validates and runs YOLOv9. Flags are those of the reference trainer
#[derive(Debug, Parser)]
#[command(name = "yolov9", version, infer_long_args = true, arg_required_else_help = true, args_override_self = true)]
#[command(after_help = "`yolov9 demo` trains a detector on built-in photographs in a few minutes.")]
pub struct Arguments {
    /// Threads that compute [default: one a core]
    #[arg(long, global = true, value_name = "N", display_order = 900)]
    threads: Option<usize>,

    #[command(subcommand)]
    pub command: Command,

    /// Long names of the flags that were typed, without their dashes and in their canonical form.
    #[arg(skip)]
    pub given: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; the loss follows from the model
    #[command(aliases = ["train_dual", "train_triple", "train.py", "train_dual.py", "train_triple.py"])]
    Train(Box<TrainArgs>),
    /// Measure a model: precision, recall and mAP, by class
    #[command(aliases = ["val_dual", "val_triple", "val.py", "val_dual.py", "val_triple.py"])]
    Val(Box<ValArgs>),
    /// Find objects in images
    #[command(aliases = ["detect_dual", "detect.py", "detect_dual.py"])]
    Detect(Box<DetectArgs>),
    /// Write weights in another form: without the auxiliary branch, folded, as safetensors or .pt
    ConvertWeights(ConvertArgs),
    /// Show a model's layers, parameters and GFLOPs
    Info(InfoArgs),
    /// Train, validate and detect on built-in photographs of blood cells
    Demo(DemoArgs),
    /// Show driver, GPUs, libraries and what is missing
    Env,
    /// Hold a GPU's results against the processor's: every op, every model
    Selftest(SelftestArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Draw a set of pictures with labels, for benchmarks and tests without a download
    Synth(SynthArgs),
}

/// Parses what was typed. `None`: help or the version was asked for and is printed.
///
/// # Errors
/// Wrong usage, already printed.
pub fn parse() -> Result<Option<Arguments>, Failure> {
    let mut command = Arguments::command();
    let parsed = command.try_get_matches_from_mut(std::env::args_os()).and_then(|matches| {
        let mut arguments = Arguments::from_arg_matches(&matches)?;
        arguments.given = given(&command, &matches);
        Ok(arguments)
    });
    match parsed {
        Ok(arguments) => Ok(Some(arguments)),
        Err(mut error) => {
            suggest_commands_by_their_names(&command, &mut error);
            let printed = error.print();
            match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                    crate::console::note_output(printed);
                    Ok(None)
                }
                _ => Err(Failure::silent(WRONG_USAGE)),
            }
        }
    }
}

/// A misspelt command is suggested once, not once more for each of the reference's names of it.
fn suggest_commands_by_their_names(command: &clap::Command, error: &mut clap::Error) {
    let Some(ContextValue::Strings(similar)) = error.get(ContextKind::SuggestedSubcommand) else { return };
    let mut names: Vec<String> = Vec::new();
    for name in similar.iter().rev().filter_map(|similar| command.find_subcommand(similar)).map(|c| c.get_name()) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
}

fn given(command: &clap::Command, matches: &ArgMatches) -> Vec<String> {
    let Some((name, matches)) = matches.subcommand() else { return Vec::new() };
    let Some(command) = command.find_subcommand(name) else { return Vec::new() };
    let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let flags = command.get_arguments().filter(|argument| typed(argument.get_id().as_str()));
    flags.filter_map(|argument| argument.get_long()).map(str::to_owned).collect()
}

impl Arguments {
    /// Bounds the threads that compute. Results do not depend on their number.
    ///
    /// # Errors
    /// `--threads 0`, and systems that refuse to start threads.
    pub fn limit_threads(&self) -> Result<(), Failure> {
        let Some(threads) = self.threads else { return Ok(()) };
        if threads == 0 {
            return Err(Failure::usage(
                "--threads: at least one thread is needed",
                "leave --threads out for one a core",
            ));
        }
        // More threads than cores only wait for each other.
        let cores = std::thread::available_parallelism().map_or(threads, usize::from);
        if threads > cores {
            crate::console::warning(&format!(
                "--threads {threads}: this machine runs {cores} at once; {cores} are used"
            ));
        }
        let threads = threads.min(cores);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
        pool.map_err(|error| Failure::new(format!("cannot start {threads} threads: {error}"), None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn flags_that_were_typed_are_known_by_their_canonical_name() {
        let mut command = Arguments::command();
        let line = ["yolov9", "train_dual", "--batch", "64", "--img", "320", "--local_rank", "-1"];
        let matches = command.try_get_matches_from_mut(line).unwrap();
        assert_eq!(given(&command, &matches), ["batch-size", "imgsz", "local_rank"]);
    }
}
