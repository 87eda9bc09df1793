//! The program from outside: what it prints where, and its exit codes. One binary, so that it links once.

mod console;
mod detect;
mod end_to_end;
mod harness;
mod help;
mod info;
mod machine;
#[cfg(unix)]
mod signals;
mod synth;
mod train;
mod usage;
mod weights;
