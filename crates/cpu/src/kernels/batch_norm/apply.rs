//! Normalise, sum the branches, activate, add the residual: one pass.

use super::super::activation::{ActFn, for_pieces, load_piece, store_piece, with_activation};
use super::super::parallel::{Shared, chunk, chunk_count, chunk_pixels, for_each_index};
use super::super::simd::{Kernel, Simd};
use super::super::{Activation, View, ViewMut};
use super::{BnBranch, Params, check};
use crate::element::Element;

/// y = act(sum over branches of gamma * (x - mean) / sqrt(var + eps) + beta) + residual. One or two branches; all
/// shapes equal.
pub fn bn_apply<T: Element>(
    branches: &[BnBranch<T>],
    eps: T,
    act: Activation,
    residual: Option<View<T>>,
    y: ViewMut<T>,
) {
    check(branches, y.shape());
    assert!(residual.is_none_or(|r| r.shape() == y.shape()));
    let (pixels, channels, pitch, base) = (y.pixels(), y.channels, y.pitch, Shared(y.ptr));
    let size = chunk_pixels(channels);
    for_each_index(chunk_count(pixels, size), |i| {
        let range = chunk(i, size, pixels);
        let (first, count) = (range.start, range.len());
        let y = base.get();
        match branches {
            [a] => {
                let branches = [*a];
                with_activation!(act, |f| T::dispatch(Apply {
                    branches,
                    eps,
                    act: f,
                    residual,
                    y,
                    pitch,
                    first,
                    count
                }));
            }
            [a, b] => {
                let branches = [*a, *b];
                with_activation!(act, |f| T::dispatch(Apply {
                    branches,
                    eps,
                    act: f,
                    residual,
                    y,
                    pitch,
                    first,
                    count
                }));
            }
            _ => unreachable!("checked above"),
        }
    });
}

struct Apply<'a, T, A, const B: usize> {
    branches: [BnBranch<'a, T>; B],
    eps: T,
    act: A,
    residual: Option<View<'a, T>>,
    y: *mut T,
    pitch: usize,
    first: usize,
    count: usize,
}

impl<T: Element, A: ActFn<T>, const B: usize> Kernel<T> for Apply<'_, T, A, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let channels = self.branches[0].x.channels;
        for_pieces!(s, T, S, channels, |c, len| {
            let params: [Params<S::V>; B] =
                std::array::from_fn(|b| Params::load(s, &self.branches[b], self.eps, c, len));
            for p in self.first..self.first + self.count {
                // SAFETY: pixel p, channels c..c+len are inside all views.
                unsafe {
                    let mut z = s.splat(T::zero());
                    for b in 0..B {
                        let x = self.branches[b].x;
                        let x = load_piece(s, x.ptr.add(p * x.pitch + c), len);
                        let v = s.fma(s.sub(x, params[b].mean), params[b].scale, params[b].beta);
                        z = if b == 0 { v } else { s.add(z, v) };
                    }
                    let mut v = self.act.eval(s, z);
                    if let Some(r) = self.residual {
                        v = s.add(v, load_piece(s, r.ptr.add(p * r.pitch + c), len));
                    }
                    store_piece(s, self.y.add(p * self.pitch + c), v, len, false);
                }
            }
        });
    }
}
