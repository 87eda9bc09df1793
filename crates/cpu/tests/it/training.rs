//! Losses, gradients, optimiser steps, running statistics and averages of the filled models against the
//! reference's.

use crate::common::{Assigned, DOUBLE, SINGLE};
use parity::{tensors, training};

#[test]
fn losses_and_gradients_agree() {
    training::losses_and_gradients_agree(&SINGLE);
}

#[test]
fn gradients_with_the_recorded_assignment_agree() {
    training::gradients_with_the_recorded_assignment_agree(Assigned);
}

#[test]
fn every_tensor_agrees() {
    tensors::every_tensor_agrees(&SINGLE, &DOUBLE);
}

#[test]
fn losses_agree_in_float64() {
    training::losses_agree_in_float64(&DOUBLE);
}

#[test]
fn three_sgd_steps_agree() {
    training::three_sgd_steps_agree(&DOUBLE, true);
}

#[test]
fn three_sgd_steps_agree_in_float32() {
    training::three_sgd_steps_agree(&SINGLE, false);
}

#[test]
fn an_adamw_step_agrees() {
    training::an_adamw_step_agrees(&DOUBLE);
}

#[test]
fn float32_gradients_are_as_exact_as_the_references() {
    training::gradients_are_as_exact_as_the_references(&SINGLE, &DOUBLE);
}

#[test]
fn assignments_and_head_maps_agree() {
    training::assignments_and_head_maps_agree(&SINGLE);
}
