//! Backward of batch norm + activation in two passes.
//!
//! With dz = dy * act'(z) and xhat = (x - mean) / sqrt(var + eps):
//! 1. reduce: S1 = sum dz (one for all branches), S2 = sum dz * xhat per branch; dbeta += S1, dgamma += S2;
//! 2. apply: dx = gamma / sqrt(var + eps) * (dz - S1/N - xhat * S2/N), N = n*h*w.

use super::super::activation::{ActFn, for_pieces, load_piece, store_piece, with_activation};
use super::super::parallel::{Shared, chunk, chunk_count, chunk_pixels, for_each_index};
use super::super::simd::{Kernel, Simd};
use super::super::{Activation, View, ViewMut};
use super::{BnBranch, Params, check};
use crate::element::Element;

/// Sums of [`bn_reduce`], one element per channel each; `s2` has one slice per branch.
#[derive(Debug)]
pub struct BnSums<'a, 'b, T> {
    /// Sum of dz.
    pub s1: &'a mut [T],
    /// Sums of dz * xhat.
    pub s2: &'a mut [&'b mut [T]],
}

/// A branch's parameter gradients, added to; one element per channel each.
#[derive(Debug)]
pub struct BnGrads<'a, T> {
    /// Gradient of the scale.
    pub dgamma: &'a mut [T],
    /// Gradient of the shift.
    pub dbeta: &'a mut [T],
}

/// Scratch elements of [`bn_reduce`].
pub fn bn_reduce_scratch(shape: [usize; 4], branches: usize) -> usize {
    let [n, h, w, channels] = shape;
    (1 + branches) * channels * chunk_count(n * h * w, chunk_pixels(channels))
}

/// Writes S1 and S2, and adds them to the branches' dbeta and dgamma (`grads`: one per branch, or empty when parameters
/// are frozen). dy is the gradient of the activation's output. Scratch: [`bn_reduce_scratch`] elements, of any content.
pub fn bn_reduce<T: Element>(
    dy: View<T>,
    branches: &[BnBranch<T>],
    eps: T,
    act: Activation,
    sums: BnSums<T>,
    grads: &mut [BnGrads<T>],
    scratch: &mut [T],
) {
    check(branches, dy.shape());
    let (pixels, channels) = (dy.pixels(), dy.channels);
    let BnSums { s1, s2 } = sums;
    assert!(s1.len() == channels && s2.len() == branches.len() && s2.iter().all(|s| s.len() == channels));
    assert!(grads.is_empty() || grads.len() == branches.len());
    assert!(grads.iter().all(|g| g.dgamma.len() == channels && g.dbeta.len() == channels));
    let size = chunk_pixels(channels);
    let width = (1 + branches.len()) * channels;
    let parts = &mut scratch[..bn_reduce_scratch(dy.shape(), branches.len())];
    let base = Shared(parts.as_mut_ptr());
    for_each_index(chunk_count(pixels, size), |i| {
        let range = chunk(i, size, pixels);
        let (first, count) = (range.start, range.len());
        // SAFETY: this chunk's part of the scratch.
        let out = unsafe { base.get().add(i * width) };
        match branches {
            [a] => {
                let branches = [*a];
                with_activation!(act, |f| T::dispatch(Reduce { dy, branches, eps, act: f, out, first, count }));
            }
            [a, b] => {
                let branches = [*a, *b];
                with_activation!(act, |f| T::dispatch(Reduce { dy, branches, eps, act: f, out, first, count }));
            }
            _ => unreachable!("checked above"),
        }
    });
    for c in 0..channels {
        let total = |k: usize| {
            let sum: f64 = parts.chunks_exact(width.max(1)).map(|part| part[k * channels + c].as_f64()).sum();
            T::of_f64(sum)
        };
        s1[c] = total(0);
        for (b, s2) in s2.iter_mut().enumerate() {
            s2[c] = total(1 + b);
        }
    }
    for (b, g) in grads.iter_mut().enumerate() {
        g.dbeta.iter_mut().zip(s1.iter()).for_each(|(g, s)| *g += *s);
        g.dgamma.iter_mut().zip(s2[b].iter()).for_each(|(g, s)| *g += *s);
    }
}

/// dz and each branch's xhat of one piece of a pixel.
#[inline(always)]
unsafe fn piece<T: Element, S: Simd<T>, A: ActFn<T>, const B: usize>(
    s: S,
    act: A,
    dy: View<T>,
    branches: &[BnBranch<T>; B],
    params: &[Params<S::V>; B],
    p: usize,
    c: usize,
    len: usize,
) -> (S::V, [S::V; B]) {
    let mut z = s.splat(T::zero());
    let mut xhat = [z; B];
    for b in 0..B {
        let x = load_piece(s, branches[b].x.ptr.add(p * branches[b].x.pitch + c), len);
        let centred = s.sub(x, params[b].mean);
        xhat[b] = s.mul(centred, params[b].rstd);
        let v = s.fma(centred, params[b].scale, params[b].beta);
        z = if b == 0 { v } else { s.add(z, v) };
    }
    (act.grad(s, z, load_piece(s, dy.ptr.add(p * dy.pitch + c), len)), xhat)
}

struct Reduce<'a, T, A, const B: usize> {
    dy: View<'a, T>,
    branches: [BnBranch<'a, T>; B],
    eps: T,
    act: A,
    out: *mut T,
    first: usize,
    count: usize,
}

impl<T: Element, A: ActFn<T>, const B: usize> Kernel<T> for Reduce<'_, T, A, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let channels = self.dy.channels;
        for_pieces!(s, T, S, channels, |c, len| {
            let params: [Params<S::V>; B] =
                std::array::from_fn(|b| Params::load(s, &self.branches[b], self.eps, c, len));
            let mut s1 = s.splat(T::zero());
            let mut s2 = [s1; B];
            for p in self.first..self.first + self.count {
                // SAFETY: pixel p, channels c..c+len are inside all views.
                let (dz, xhat) = unsafe { piece(s, self.act, self.dy, &self.branches, &params, p, c, len) };
                s1 = s.add(s1, dz);
                for b in 0..B {
                    s2[b] = s.fma(dz, xhat[b], s2[b]);
                }
            }
            // SAFETY: `out` has 1 + B rows of all channels.
            unsafe {
                store_piece(s, self.out.add(c), s1, len, false);
                for b in 0..B {
                    store_piece(s, self.out.add((1 + b) * channels + c), s2[b], len, false);
                }
            }
        });
    }
}

/// Writes each branch's dx, or adds to it (`accumulate`, one flag per branch). s1 and s2 are [`bn_reduce`]'s, summed
/// over all processes if the statistics were; `count` is the number of pixels behind them (n*h*w of one process).
pub fn bn_backward<T: Element>(
    dy: View<T>,
    branches: &[BnBranch<T>],
    eps: T,
    act: Activation,
    s1: &[T],
    s2: &[&[T]],
    count: usize,
    dx: &mut [ViewMut<T>],
    accumulate: &[bool],
) {
    check(branches, dy.shape());
    let (pixels, channels) = (dy.pixels(), dy.channels);
    assert!(s1.len() == channels && s2.len() == branches.len() && s2.iter().all(|s| s.len() == channels));
    assert!(dx.len() == branches.len() && dx.iter().all(|d| d.shape() == dy.shape()));
    assert_eq!(accumulate.len(), branches.len());
    let inverse = T::one() / T::of_usize(count.max(1));
    let size = chunk_pixels(channels);
    let target = |b: usize| Target { out: Shared(dx[b].ptr), pitch: dx[b].pitch, s2: s2[b], accumulate: accumulate[b] };
    let targets = [target(0), target(branches.len() - 1)];
    for_each_index(chunk_count(pixels, size), |i| {
        let range = chunk(i, size, pixels);
        let (first, count) = (range.start, range.len());
        match branches {
            [a] => {
                let (branches, targets) = ([*a], [targets[0]]);
                with_activation!(act, |f| {
                    T::dispatch(Backward { dy, branches, eps, act: f, s1, targets, inverse, first, count });
                });
            }
            [a, b] => {
                let branches = [*a, *b];
                with_activation!(act, |f| {
                    T::dispatch(Backward { dy, branches, eps, act: f, s1, targets, inverse, first, count });
                });
            }
            _ => unreachable!("checked above"),
        }
    });
}

/// Where a branch's dx goes.
struct Target<'a, T> {
    out: Shared<T>,
    pitch: usize,
    s2: &'a [T],
    accumulate: bool,
}

impl<T> Clone for Target<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Target<'_, T> {}

struct Backward<'a, T, A, const B: usize> {
    dy: View<'a, T>,
    branches: [BnBranch<'a, T>; B],
    eps: T,
    act: A,
    s1: &'a [T],
    targets: [Target<'a, T>; B],
    inverse: T,
    first: usize,
    count: usize,
}

impl<T: Element, A: ActFn<T>, const B: usize> Kernel<T> for Backward<'_, T, A, B> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let inverse = s.splat(self.inverse);
        for_pieces!(s, T, S, self.dy.channels, |c, len| {
            let params: [Params<S::V>; B] =
                std::array::from_fn(|b| Params::load(s, &self.branches[b], self.eps, c, len));
            // SAFETY: the sums have one element per channel.
            let (m1, m2): (S::V, [S::V; B]) = unsafe {
                let m1 = s.mul(load_piece(s, self.s1.as_ptr().add(c), len), inverse);
                let m2 = |b: usize| s.mul(load_piece(s, self.targets[b].s2.as_ptr().add(c), len), inverse);
                (m1, std::array::from_fn(m2))
            };
            for p in self.first..self.first + self.count {
                // SAFETY: pixel p, channels c..c+len are inside all views.
                unsafe {
                    let (dz, xhat) = piece(s, self.act, self.dy, &self.branches, &params, p, c, len);
                    let centred = s.sub(dz, m1);
                    for b in 0..B {
                        let t = self.targets[b];
                        let v = s.mul(params[b].scale, s.sub(centred, s.mul(xhat[b], m2[b])));
                        store_piece(s, t.out.get().add(p * t.pitch + c), v, len, t.accumulate);
                    }
                }
            }
        });
    }
}
