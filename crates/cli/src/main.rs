//! The binary `yolov9`: parses arguments, shows progress, prints results and errors. What a command does lives in
//! the crate `train`.
//!
//! Exit codes: 0 all went well, 1 it failed, 2 the command line is wrong, 130 interrupted.

mod arguments;
mod commands;
mod compute;
mod console;
mod demo;
mod device;
mod failure;
mod interrupt;
mod panics;
mod reference_flags;

use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    panics::install();
    let result = match std::panic::catch_unwind(run) {
        Ok(result) => result,
        Err(_) => {
            panics::report();
            return ExitCode::from(failure::FAILED);
        }
    };
    match result.and_then(|()| console::check_output()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code)
        }
    }
}

fn run() -> Result<(), Failure> {
    let Some(arguments) = arguments::parse()? else { return Ok(()) };
    arguments.limit_threads()?;
    commands::run(arguments)
}
