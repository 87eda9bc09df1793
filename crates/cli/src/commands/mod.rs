//! One file a command: its flags, and what it prints.

pub mod bench;
pub mod convert_weights;
pub mod demo;
pub mod detect;
pub mod env;
pub mod info;
pub mod selftest;
pub mod synth;
pub mod train;
pub mod val;
mod values;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;
use std::path::Path;

/// Runs the command that was typed.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(arguments: Arguments) -> Result<(), Failure> {
    crate::interrupt::listen();
    match arguments.command {
        Command::Train(args) => train::run(*args, arguments.given),
        Command::Val(args) => val::run(*args),
        Command::Detect(args) => detect::run(*args),
        Command::ConvertWeights(args) => convert_weights::run(args),
        Command::Info(args) => info::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Env => env::run(),
        Command::Selftest(args) => selftest::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Synth(args) => synth::run(args),
    }
}

/// The last line of a command.
fn saved_to(folder: &Path) {
    crate::console::out(&format!("Results saved to {}", folder.display()));
}
