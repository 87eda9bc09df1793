//! Predictions and raw head maps of the filled models against the reference's.

use crate::common::SINGLE;
use parity::forward;

#[test]
fn predictions_of_every_model_agree() {
    forward::predictions_of_every_model_agree(&SINGLE);
}

#[test]
fn main_branch_alone_predicts_the_same_bits() {
    forward::main_branch_alone_predicts_the_same_bits(&SINGLE);
}

#[test]
fn training_mode_head_maps_agree() {
    forward::training_mode_head_maps_agree(&SINGLE);
}
