//! What the optimiser is told in each iteration: learning rates, momentum, and whether it steps.

use crate::hyp::Hyp;
use std::f64::consts::PI;

/// How the learning rate falls over the epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decay {
    #[default]
    Linear,
    Cosine,
    /// Constant for the first half, then cosine.
    FlatCosine,
    Fixed,
}

impl Decay {
    /// Factor of `lr0` in `epoch` of `epochs`, from 1 down to `lrf`.
    pub fn factor(self, epoch: usize, epochs: usize, lrf: f64) -> f64 {
        let cosine = |x: f64, length: f64| (1.0 - (PI * x / length).cos()) / 2.0 * (lrf - 1.0) + 1.0;
        let (x, length) = (epoch as f64, epochs.max(1) as f64);
        match self {
            Self::Linear => (1.0 - x / length) * (1.0 - lrf) + lrf,
            Self::Cosine => cosine(x, length),
            Self::FlatCosine => {
                let flat = epochs / 2;
                // Of an odd number of epochs both halves have the shorter length, as in the reference: the rate is
                // lowest one epoch before the end.
                if epoch <= flat { 1.0 } else { cosine((epoch - flat) as f64, flat.max(1) as f64) }
            }
            Self::Fixed => 1.0,
        }
    }
}

/// Scalars of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Learning rates of biases, weights and norms.
    pub lr: [f64; 3],
    /// Momentum of SGD; the other optimisers keep `Hyp::momentum`.
    pub momentum: f64,
    /// Iterations whose gradients are added up.
    pub accumulate: usize,
}

/// The schedule of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub decay: Decay,
    pub epochs: usize,
    pub batches_per_epoch: usize,
    pub batch: usize,
    lr0: f64,
    lrf: f64,
    momentum: f64,
    warmup_momentum: f64,
    warmup_bias_lr: f64,
    nominal: f64,
    /// Weight decay of the weights group, scaled to the images a step really sees.
    pub weight_decay: f64,
    /// Iterations of the warm-up; the iteration of this number still belongs to it.
    pub warmup: usize,
}

impl Schedule {
    /// The schedule for batches of `batch` images, `batches_per_epoch` of them an epoch.
    pub fn new(hyp: &Hyp, decay: Decay, epochs: usize, batches_per_epoch: usize, batch: usize) -> Self {
        let nominal = hyp.nominal_batch;
        let accumulate = full_accumulation(nominal, batch);
        let warmup = (hyp.warmup_epochs * batches_per_epoch as f64).round_ties_even().max(hyp.warmup_min_iterations);
        Self {
            decay,
            epochs,
            batches_per_epoch,
            batch,
            lr0: hyp.lr0,
            lrf: hyp.lrf,
            momentum: hyp.momentum,
            warmup_momentum: hyp.warmup_momentum,
            warmup_bias_lr: hyp.warmup_bias_lr,
            nominal,
            weight_decay: hyp.weight_decay * (batch * accumulate) as f64 / nominal,
            warmup: warmup as usize,
        }
    }

    /// Scalars of an iteration, counted from 0 over the whole run.
    ///
    /// During the warm-up the rates aim at this epoch's factor; afterwards an epoch uses the factor of the
    /// epoch before, as the reference does. The epoch in which the warm-up ends keeps its own factor.
    pub fn at(&self, iteration: usize) -> Iteration {
        let epoch = iteration / self.batches_per_epoch.max(1);
        let starts_in_warmup = epoch * self.batches_per_epoch <= self.warmup && self.warmup > 0;
        let factor_epoch = if starts_in_warmup { epoch } else { epoch.saturating_sub(1) };
        let target = self.lr0 * self.decay.factor(factor_epoch, self.epochs, self.lrf);
        let full = full_accumulation(self.nominal, self.batch);
        if iteration > self.warmup || self.warmup == 0 {
            return Iteration { lr: [target; 3], momentum: self.momentum, accumulate: full };
        }
        let mix = |from: f64, to: f64| {
            if iteration == self.warmup { to } else { (to - from) / self.warmup as f64 * iteration as f64 + from }
        };
        let other = mix(0.0, target);
        Iteration {
            lr: [mix(self.warmup_bias_lr, target), other, other],
            momentum: mix(self.warmup_momentum, self.momentum),
            accumulate: mix(1.0, self.nominal / self.batch as f64).round_ties_even().max(1.0) as usize,
        }
    }
}

/// Iterations that make up the nominal batch.
fn full_accumulation(nominal: f64, batch: usize) -> usize {
    (nominal / batch.max(1) as f64).round_ties_even().max(1.0) as usize
}

/// When the optimiser steps. Counter and gradients live on over the end of an epoch: no part is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Accumulator {
    /// Iterations whose gradients wait.
    pub pending: usize,
}

impl Accumulator {
    /// Counts an iteration; `true` where the optimiser steps after it.
    pub fn advance(&mut self, accumulate: usize) -> bool {
        self.pending += 1;
        let steps = self.pending >= accumulate;
        if steps {
            self.pending = 0;
        }
        steps
    }

    /// Takes what waits at the very end of a run; `true` where there is something.
    pub fn flush(&mut self) -> bool {
        std::mem::take(&mut self.pending) > 0
    }
}
