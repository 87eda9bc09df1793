//! Fitness, the best epoch, and when to stop.

use serde::{Deserialize, Serialize};

/// What is maximised: `0.1 mAP50 + 0.9 mAP50-95`.
pub fn fitness(map50: f64, map50_95: f64) -> f64 {
    0.1 * map50 + 0.9 * map50_95
}

/// Watches the fitness of the epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStopping {
    /// Best fitness so far.
    pub best: f64,
    /// Epoch of the best fitness.
    pub best_epoch: usize,
    /// Whether any epoch was seen.
    pub seen: bool,
}

impl Default for EarlyStopping {
    fn default() -> Self {
        Self { best: 0.0, best_epoch: 0, seen: false }
    }
}

impl EarlyStopping {
    /// Notes an epoch; `true` where it is as good as the best so far (ties count as better: longer training).
    pub fn note(&mut self, epoch: usize, fitness: f64) -> bool {
        // No number is better than NaN, which would therefore stay the best for ever.
        let fitness = if fitness.is_nan() { 0.0 } else { fitness };
        let better = fitness >= self.best || !self.seen;
        if better {
            (self.best, self.best_epoch, self.seen) = (fitness, epoch, true);
        }
        better
    }

    /// `true` where `epoch` is at least `patience` epochs after the best; never for a patience of 0.
    pub fn stops(&self, epoch: usize, patience: usize) -> bool {
        patience > 0 && epoch.saturating_sub(self.best_epoch) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fitness_that_is_no_number_does_not_stay_the_best() {
        let mut stopping = EarlyStopping::default();
        assert!(stopping.note(0, f64::NAN));
        assert!(stopping.note(1, 0.1));
        assert!(!stopping.note(2, f64::NAN));
        assert_eq!((stopping.best, stopping.best_epoch), (0.1, 1));
        assert!(stopping.stops(4, 3) && !stopping.stops(3, 3) && !stopping.stops(100, 0));
    }
}
