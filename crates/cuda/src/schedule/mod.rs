//! Which ops of a plan may run side by side, and in what order they are recorded. No card is needed to say.
//!
//! What must wait for what follows from memory alone: every op reads and writes known bytes of the arena and of flat
//! buffers (`uses.rs`), so a later op waits for an earlier one where both touch a byte and one of them writes it
//! (`hazards.rs`). Places that the plan uses for one buffer after the other are safe by the same rule, and sums into one
//! place keep their order, so that results have the bits of ops run one by one. `lanes.rs` lays ops out on a few lanes.

mod hazards;
mod lanes;
#[cfg(test)]
mod random;
mod span;
mod uses;

pub use hazards::{Access, waits};
pub use lanes::{Step, arrange};
pub use span::{Space, Span};
pub use uses::{microseconds, uses};

use graph::Plan;

/// Lanes that captured plans are laid out on unless told otherwise.
///
/// By the estimates of [`microseconds`], the way from yolov9-s's first op to its last at batch 16 takes 17.0 ms on one lane,
/// 11.1 on two, 10.4 on three and 10.3 on four: a third lane takes what the two branches of the model do not share, and
/// nothing is left for a fourth.
pub const STREAMS: usize = 3;

/// Steps of a plan on so many lanes. `scratch` is how many bytes of its workspace an op really uses, by its index.
pub fn steps(plan: &Plan, lanes: usize, scratch: impl Fn(usize) -> u64) -> Vec<Step> {
    arrange(&waits(&uses(plan, scratch)), &microseconds(plan), lanes)
}
