//! Class loss of one anchor: binary cross entropy with logits, optionally with a weight on positives, focal
//! modulation (Lin et al. 2017) and label smoothing.

use crate::Real;

/// Balance factor of the focal loss.
const FOCAL_ALPHA: f64 = 0.25;
const LANES: usize = 8;
/// Logits handled at a time.
const BUFFER: usize = 128;

/// How class logits are scored.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassLoss<T> {
    pub positive_weight: T,
    /// 0: no focal modulation.
    pub gamma: T,
    /// Label smoothing of anchors with an object, see [`super::LossConfig::label_smoothing`].
    pub smoothing: T,
}

impl<T: Real> ClassLoss<T> {
    /// Loss of one logit against a target in [0, 1], and its derivative.
    pub fn term(&self, logit: T, target: T) -> (T, T) {
        let one = T::one();
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

    /// True when a class of target 0 costs just ln(1 + exp(x)).
    fn is_plain(&self) -> bool {
        self.gamma == T::zero()
    }

    /// Sum over the logits of an anchor without an object; writes `scale` times the gradient when asked.
    pub fn background(&self, logits: &[T], scale: T, gradient: Option<&mut [T]>) -> T {
        match gradient {
            _ if !self.is_plain() => self.general(logits, |_| T::zero(), scale, gradient),
            Some(gradient) => softplus_sum_with_gradient(logits, scale, gradient),
            None => softplus_sum(logits),
        }
    }

    /// Sum over the logits of an anchor whose class `object.0` has the target score `object.1`.
    pub fn foreground(&self, logits: &[T], object: (usize, T), scale: T, mut gradient: Option<&mut [T]>) -> T {
        let (class, target) = object;
        if !self.is_plain() || self.smoothing != T::zero() {
            let others = target * self.smoothing * T::of(0.5);
            let own = target - others;
            return self.general(logits, |c| if c == class { own } else { others }, scale, gradient);
        }
        // The other classes are background: those before it, then those after it.
        let (loss, slope) = self.term(logits[class], target);
        let before = self.background(&logits[..class], scale, gradient.as_deref_mut().map(|g| &mut g[..class]));
        let after = self.background(&logits[class + 1..], scale, gradient.as_deref_mut().map(|g| &mut g[class + 1..]));
        if let Some(gradient) = gradient {
            gradient[class] = slope * scale;
        }
        before + loss + after
    }

    fn general(&self, logits: &[T], target: impl Fn(usize) -> T, scale: T, mut gradient: Option<&mut [T]>) -> T {
        let mut sum = T::zero();
        for (class, &logit) in logits.iter().enumerate() {
            let (loss, slope) = self.term(logit, target(class));
            sum = sum + loss;
            if let Some(gradient) = gradient.as_deref_mut() {
                gradient[class] = slope * scale;
            }
        }
        sum
    }
}

/// Sum of ln(1 + exp(x)). Terms go through a buffer, because element by element the loop vectorises and a
/// running sum of floats does not; the buffer is then added in eight lanes.
fn softplus_sum<T: Real>(logits: &[T]) -> T {
    let mut terms = [T::zero(); BUFFER];
    let mut sum = T::zero();
    for logits in logits.chunks(BUFFER) {
        let terms = &mut terms[..logits.len()];
        for (term, logit) in terms.iter_mut().zip(logits) {
            *term = logit.softplus_sigmoid().0;
        }
        sum = sum + lane_sum(terms);
    }
    sum
}

/// The same sum, with the gradient sigmoid(x) * scale.
fn softplus_sum_with_gradient<T: Real>(logits: &[T], scale: T, gradient: &mut [T]) -> T {
    let mut terms = [T::zero(); BUFFER];
    let mut sum = T::zero();
    for (logits, gradient) in logits.chunks(BUFFER).zip(gradient.chunks_mut(BUFFER)) {
        let terms = &mut terms[..logits.len()];
        for ((term, slope), logit) in terms.iter_mut().zip(gradient).zip(logits) {
            let (softplus, sigmoid) = logit.softplus_sigmoid();
            *term = softplus;
            *slope = sigmoid * scale;
        }
        sum = sum + lane_sum(terms);
    }
    sum
}

/// Sum in eight lanes, the lanes added in order, then what is left over.
fn lane_sum<T: Real>(values: &[T]) -> T {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut lanes = [T::zero(); LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = lanes[i] + chunk[i];
        }
    }
    lanes.iter().chain(tail).fold(T::zero(), |a, &b| a + b)
}
