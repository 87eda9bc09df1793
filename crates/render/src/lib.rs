//! Sample recipes to pixels on a card: `data` draws them, `cuda` renders them, and neither knows the other.

mod flat;
pub mod made_up;

pub use flat::flat;
