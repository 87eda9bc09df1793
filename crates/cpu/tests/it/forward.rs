//! Predictions and raw head maps of the filled models against the reference's, and detections in predictions.

use crate::common::SINGLE;
use parity::{detections, forward};

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

#[test]
fn detections_are_those_of_the_predictions() {
    detections::detections_are_those_of_the_predictions(&SINGLE);
}
