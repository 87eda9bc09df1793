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
    /// Batches of a step after the warm-up, not rounded yet.
    accumulation: f64,
    /// Weight decay of the hyper-parameters, for a nominal batch.
    nominal_decay: f64,
    /// Weight decay of the weights group, scaled to the images a step really sees.
    pub weight_decay: f64,
    /// Iterations of the warm-up; the iteration of this number still belongs to it.
    pub warmup: usize,
}

impl Schedule {
    /// The schedule for batches of `batch` images, `batches_per_epoch` of them an epoch.
    pub fn new(hyp: &Hyp, decay: Decay, epochs: usize, batches_per_epoch: usize, batch: usize) -> Self {
        let nominal = hyp.nominal_batch;
        let accumulation = nominal / batch.max(1) as f64;
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
            accumulation,
            nominal_decay: hyp.weight_decay,
            weight_decay: hyp.weight_decay * (batch * whole(accumulation)) as f64 / nominal,
            warmup: warmup as usize,
        }
    }

    /// The same with exactly `steps` batches a step, whatever the nominal batch; the warm-up grows from 1 to `steps`.
    /// Weight decay is scaled to `batch * steps` images by the same rule.
    pub fn with_accumulation(mut self, steps: usize) -> Self {
        self.accumulation = steps.max(1) as f64;
        self.weight_decay = self.nominal_decay * (self.batch * steps.max(1)) as f64 / self.nominal;
        self
    }

    /// The same with `lr0` and `warmup_bias_lr` times `factor`.
    pub fn with_rate_factor(mut self, factor: f64) -> Self {
        self.lr0 *= factor;
        self.warmup_bias_lr *= factor;
        self
    }

    /// Learning rate after the warm-up, before it falls.
    pub fn rate(&self) -> f64 {
        self.lr0
    }

    /// Batches of a step after the warm-up.
    pub fn accumulate(&self) -> usize {
        whole(self.accumulation)
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
        let full = self.accumulate();
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
            accumulate: whole(mix(1.0, self.accumulation)),
        }
    }
}

/// Batches of a step: at least one.
fn whole(accumulation: f64) -> usize {
    accumulation.round_ties_even().max(1.0) as usize
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
