//! Class loss of one anchor: binary cross entropy with logits, optionally with a weight on positives, focal
//! modulation (Lin et al. 2017) and label smoothing.

use crate::Real;

/// Balance factor of the focal loss.
const FOCAL_ALPHA: f64 = 0.25;
const LANES: usize = 8;

/// How class logits are scored.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassLoss<T> {
    pub positive_weight: T,
    /// 0: no focal modulation.
    pub gamma: T,
    /// Target t becomes t * (1 - smoothing) + smoothing / 2.
    pub smoothing: T,
}

impl<T: Real> ClassLoss<T> {
    /// Loss of one logit against a target in [0, 1], and its derivative.
    pub fn term(&self, logit: T, target: T) -> (T, T) {
        let one = T::one();
        let target = target * (one - self.smoothing) + self.smoothing * T::of(0.5);
        let (softplus, p) = logit.softplus_sigmoid();
        let (softplus_negative, q) = (-logit).softplus_sigmoid();
        let positive = self.positive_weight * target;
        let loss = positive * softplus_negative + (one - target) * softplus;
        let slope = (one - target) * p - positive * q;
        if self.gamma == T::zero() {
            return (loss, slope);
        }
        let balance = target * T::of(FOCAL_ALPHA) + (one - target) * T::of(1.0 - FOCAL_ALPHA);
        // How far the prediction is from the target: 1 - (t p + (1 - t) q).
        let miss = target * q + (one - target) * p;
        let modulation = miss.powf(self.gamma);
        let modulation_slope = if miss > T::zero() {
            self.gamma * miss.powf(self.gamma - one) * (one - target - target) * p * q
        } else {
            T::zero()
        };
        (balance * loss * modulation, balance * (slope * modulation + loss * modulation_slope))
    }

    /// Sum over the logits of an anchor without an object; writes `scale` times the gradient when asked.
    pub fn background(&self, logits: &[T], scale: T, gradient: Option<&mut [T]>) -> T {
        if self.gamma == T::zero() && self.smoothing == T::zero() {
            return match gradient {
                Some(gradient) => softplus_sum_with_gradient(logits, scale, gradient),
                None => softplus_sum(logits),
            };
        }
        self.general(logits, None, scale, gradient)
    }

    /// Sum over the logits of an anchor whose class `object.0` has the target score `object.1`.
    pub fn foreground(&self, logits: &[T], object: (usize, T), scale: T, gradient: Option<&mut [T]>) -> T {
        self.general(logits, Some(object), scale, gradient)
    }

    fn general(&self, logits: &[T], object: Option<(usize, T)>, scale: T, mut gradient: Option<&mut [T]>) -> T {
        let mut sum = T::zero();
        for (class, &logit) in logits.iter().enumerate() {
            let target = object.filter(|o| o.0 == class).map_or(T::zero(), |o| o.1);
            let (loss, slope) = self.term(logit, target);
            sum = sum + loss;
            if let Some(gradient) = gradient.as_deref_mut() {
                gradient[class] = slope * scale;
            }
        }
        sum
    }
}

/// Sum of ln(1 + exp(x)) in eight lanes (so that it vectorises), lanes added in order.
fn softplus_sum<T: Real>(logits: &[T]) -> T {
    let (chunks, tail) = logits.as_chunks::<LANES>();
    let mut lanes = [T::zero(); LANES];
    for x in chunks {
        for i in 0..LANES {
            lanes[i] = lanes[i] + x[i].softplus_sigmoid().0;
        }
    }
    let sum = lanes.iter().fold(T::zero(), |a, &b| a + b);
    tail.iter().fold(sum, |sum, x| sum + x.softplus_sigmoid().0)
}

/// The same sum, with the gradient sigmoid(x) * scale.
fn softplus_sum_with_gradient<T: Real>(logits: &[T], scale: T, gradient: &mut [T]) -> T {
    let (chunks, tail) = logits.as_chunks::<LANES>();
    let (gradient_chunks, gradient_tail) = gradient.as_chunks_mut::<LANES>();
    let mut lanes = [T::zero(); LANES];
    for (x, g) in chunks.iter().zip(gradient_chunks) {
        for i in 0..LANES {
            let (softplus, sigmoid) = x[i].softplus_sigmoid();
            lanes[i] = lanes[i] + softplus;
            g[i] = sigmoid * scale;
        }
    }
    let mut sum = lanes.iter().fold(T::zero(), |a, &b| a + b);
    for (x, g) in tail.iter().zip(gradient_tail) {
        let (softplus, sigmoid) = x.softplus_sigmoid();
        sum = sum + softplus;
        *g = sigmoid * scale;
    }
    sum
}
