//! The detection loss on the card against `detect::detection_loss` and the fixtures. Skipped where there is no card.

mod agreement;
mod capture;
mod card;
mod edges;
mod pieces;
mod problem;
mod reference;
mod train;
