//! Whole plans on the CPU: gradients against central differences, models against the fixtures of the
//! running reference, memory budgets, determinism.

mod allocations;
mod budget;
mod checkpoints;
mod common;
mod forward;
mod gradients;
mod threads;
mod training;
mod zoo;
