//! The moving average of the weights.

/// Largest decay.
const DECAY: f64 = 0.9999;
/// Updates over which the decay rises.
const RAMP: f64 = 2000.0;

/// Decay of update number `updates`, counted from 1: `0.9999 (1 - exp(-updates / 2000))`.
pub fn decay(updates: u64) -> f64 {
    DECAY * (1.0 - (-(updates as f64) / RAMP).exp())
}
