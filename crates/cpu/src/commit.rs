//! The commit: gradient norm, clip, optimiser, moving averages, over flat buffers.
//!
//! One pass to sum squares (reads 4 bytes an element), one to update (SGD with an average: reads 16, writes
//! 16). Sums run over fixed chunks in float64 and are merged in chunk order.

use crate::Element;
use crate::regions::Regions;
use graph::{CommitReport, CommitStep, ExecError, GroupScalars, OptimizerKind, ParamLayout, ParamSlot, Region};
use rayon::prelude::*;

/// Elements that one task works on.
const CHUNK: usize = 16 * 1024;

/// Number of partial sums of a layout's gradient norm.
pub(crate) fn partial_sums(layout: &ParamLayout) -> usize {
    trained(layout).map(|s| s.len.div_ceil(CHUNK)).sum()
}

fn trained(layout: &ParamLayout) -> impl Iterator<Item = &ParamSlot> {
    layout.slots().iter().filter(|s| s.param.trained)
}

/// Applies one step and clears the gradient. A gradient whose norm is not finite changes nothing.
pub(crate) fn commit<T: Element>(
    regions: &mut Regions<T>,
    step: &CommitStep,
    partials: &mut Vec<f64>,
) -> Result<CommitReport, ExecError> {
    let states = step.kind.states();
    if regions.spec().optimizer.is_none_or(|kept| kept.states() < states) {
        return Err(ExecError::NoRegion(Region::State(states - 1)));
    }
    let (spec, [weights, gradients, ema, buffers, ema_buffers, s0, s1, s2]) = regions.many([
        Region::Weights,
        Region::Gradients,
        Region::EmaWeights,
        Region::Buffers,
        Region::EmaBuffers,
        Region::State(0),
        Region::State(1),
        Region::State(2),
    ]);
    let grad_norm = norm(&spec.layout, gradients, partials);
    let applied = grad_norm.is_finite();
    if applied {
        let scale = (step.clip / (grad_norm + 1e-6)).min(1.0);
        for slot in trained(&spec.layout) {
            let Some(group) = slot.param.group.index() else { continue };
            let range = slot.offset..slot.offset + slot.len;
            let of = |state: usize| if state < states { range.clone() } else { 0..0 };
            let state = [&mut s0[of(0)], &mut s1[of(1)], &mut s2[of(2)]];
            update(step, step.groups[group], scale, &mut weights[range.clone()], &gradients[range], state);
        }
        if let Some(decay) = step.ema_decay {
            average(ema, weights, decay);
            average(ema_buffers, buffers, decay);
        }
    }
    gradients.par_chunks_mut(CHUNK).for_each(|chunk| chunk.fill(T::zero()));
    Ok(CommitReport { grad_norm, applied, loss_scale: 1.0 })
}

/// Euclidean norm over all trained parameters.
fn norm<T: Element>(layout: &ParamLayout, gradients: &[T], partials: &mut Vec<f64>) -> f64 {
    partials.clear();
    partials.resize(partial_sums(layout), 0.0);
    let mut rest = &mut partials[..];
    for slot in trained(layout) {
        let (sums, after) = rest.split_at_mut(slot.len.div_ceil(CHUNK));
        let values = &gradients[slot.offset..slot.offset + slot.len];
        sums.par_iter_mut().zip(values.par_chunks(CHUNK)).for_each(|(sum, chunk)| {
            *sum = chunk.iter().map(|v| v.as_f64() * v.as_f64()).sum();
        });
        rest = after;
    }
    partials.iter().sum::<f64>().sqrt()
}

/// Updates one parameter. `state` holds as many buffers as the rule keeps, the others are empty.
fn update<T: Element>(
    step: &CommitStep,
    group: GroupScalars,
    scale: f64,
    weights: &mut [T],
    gradients: &[T],
    state: [&mut [T]; 3],
) {
    let of = T::of_f64;
    let GroupScalars { lr, momentum, weight_decay } = group;
    let (one_minus_m, one_minus_b2) = (of(1.0 - momentum), of(1.0 - step.beta2));
    let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
    let (c1, c2) = (correction(momentum), of(correction(step.beta2).sqrt()));
    let (shrink, size) = (of(1.0 - lr * weight_decay), of(lr / c1));
    let (scale, lr, m, decay) = (of(scale), of(lr), of(momentum), of(weight_decay));
    let (b2, eps) = (of(step.beta2), of(step.eps));
    let [s0, s1, s2] = state;
    match step.kind {
        OptimizerKind::Sgd => chunks(weights, gradients, [s0, s1, s2], |w, g, [v, _, _]| {
            let g = *g * scale + decay * *w;
            *v = m * *v + g;
            *w -= lr * (g + m * *v);
        }),
        OptimizerKind::Adam => chunks(weights, gradients, [s0, s1, s2], |w, g, [first, second, _]| {
            let g = *g * scale + decay * *w;
            *first = m * *first + one_minus_m * g;
            *second = b2 * *second + one_minus_b2 * g * g;
            *w -= size * *first / (second.sqrt() / c2 + eps);
        }),
        OptimizerKind::AdamW => chunks(weights, gradients, [s0, s1, s2], |w, g, [first, second, largest]| {
            let g = *g * scale;
            *w *= shrink;
            *first = m * *first + one_minus_m * g;
            *second = b2 * *second + one_minus_b2 * g * g;
            *largest = largest.max(*second);
            *w -= size * *first / (largest.sqrt() / c2 + eps);
        }),
        OptimizerKind::Lion => chunks(weights, gradients, [s0, s1, s2], |w, g, [first, _, _]| {
            let g = *g * scale;
            *w *= shrink;
            let direction = m * *first + one_minus_m * g;
            if direction != T::zero() {
                *w -= lr * direction.signum();
            }
            *first = b2 * *first + one_minus_b2 * g;
        }),
    }
}

/// Calls `f` with each weight, its gradient and its states; absent states come as a throw-away zero.
fn chunks<T: Element>(
    weights: &mut [T],
    gradients: &[T],
    [s0, s1, s2]: [&mut [T]; 3],
    f: impl Fn(&mut T, &T, [&mut T; 3]) + Sync,
) {
    // A state that a rule does not keep is empty; it then yields no chunk, so chunks are taken by index.
    let parts = weights.par_chunks_mut(CHUNK).zip(gradients.par_chunks(CHUNK));
    let run = |(w, g): (&mut [T], &[T]), a: &mut [T], b: &mut [T], c: &mut [T]| {
        for i in 0..w.len() {
            let mut none = [T::zero(); 2];
            let [n1, n2] = &mut none;
            f(&mut w[i], &g[i], [&mut a[i], b.get_mut(i).unwrap_or(n1), c.get_mut(i).unwrap_or(n2)]);
        }
    };
    match (s1.is_empty(), s2.is_empty()) {
        (true, _) => parts.zip(s0.par_chunks_mut(CHUNK)).for_each(|(p, a)| run(p, a, &mut [], &mut [])),
        (_, true) => parts
            .zip(s0.par_chunks_mut(CHUNK))
            .zip(s1.par_chunks_mut(CHUNK))
            .for_each(|((p, a), b)| run(p, a, b, &mut [])),
        _ => parts
            .zip(s0.par_chunks_mut(CHUNK))
            .zip(s1.par_chunks_mut(CHUNK))
            .zip(s2.par_chunks_mut(CHUNK))
            .for_each(|(((p, a), b), c)| run(p, a, b, c)),
    }
}

/// `average = decay * average + (1 - decay) * value`.
fn average<T: Element>(averages: &mut [T], values: &[T], decay: f64) {
    let (d, e) = (T::of_f64(decay), T::of_f64(1.0 - decay));
    averages.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK)).for_each(|(averages, values)| {
        averages.iter_mut().zip(values).for_each(|(a, &v)| *a = d * *a + e * v);
    });
}
