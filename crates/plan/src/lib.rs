//! What a training run takes of a card's memory, and how fast it goes, before there is a card.

pub mod calibration;
pub mod cards;
mod error;
pub mod graphs;
pub mod largest;
pub mod memory;
pub mod picture;
pub mod report;
pub mod speed;

pub use error::PlanError;
