//! Max pooling (padding is -infinity) and its gradient, which goes to the first maximum in row-major order.
//!
//! The gradient recomputes the maximum from x and scatters; windows overlap, so the work is split by image and by a
//! vector of channels, never by window.

use super::activation::{load_piece, store_piece};
use super::average_pool::window;
use super::parallel::{Shared, for_each_index};
use super::simd::{Kernel, Simd};
use super::{PoolAttrs, View, ViewMut};
use crate::element::Element;

/// Channels one gradient task handles: at least two vectors.
const CHANNEL_BLOCK: usize = 16;

struct ForwardRow<'v, T> {
    x: View<'v, T>,
    attrs: PoolAttrs,
    out: *mut T,
    out_pitch: usize,
    w: usize,
    n: usize,
    i: usize,
    accumulate: bool,
}

impl<T: Element> Kernel<T> for ForwardRow<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let PoolAttrs { kernel, stride, pad } = self.attrs;
        let x = self.x;
        let rows = window(self.i, kernel, stride, pad, x.h);
        for j in 0..self.w {
            let cols = window(j, kernel, stride, pad, x.w);
            let mut c = 0;
            while c < x.channels {
                let len = (x.channels - c).min(S::LANES);
                let mut best = s.splat(T::neg_infinity());
                for r in rows.clone() {
                    for q in cols.clone() {
                        // SAFETY: r < x.h, q < x.w, c + len <= x.channels.
                        let v = unsafe { load_piece(s, x.ptr.add(((self.n * x.h + r) * x.w + q) * x.pitch + c), len) };
                        best = s.select(s.greater_or_nan(v, best), v, best);
                    }
                }
                // SAFETY: `out` is this call's own row of y.
                unsafe { store_piece(s, self.out.add(j * self.out_pitch + c), best, len, self.accumulate) };
                c += S::LANES;
            }
        }
    }
}

/// y = maximum of each window, or added; NaN wins. y is `[n, output_len(h), output_len(w), channels]`.
pub fn max_pool<T: Element>(x: View<T>, y: ViewMut<T>, attrs: PoolAttrs, accumulate: bool) {
    assert_eq!([x.n, attrs.output_len(x.h), attrs.output_len(x.w), x.channels], y.shape());
    let (h, w, out_pitch, base) = (y.h, y.w, y.pitch, Shared(y.ptr));
    for_each_index(y.n * h, |row| {
        // SAFETY: row * w < pixels of y.
        let out = unsafe { base.get().add(row * w * out_pitch) };
        T::dispatch(ForwardRow { x, attrs, out, out_pitch, w, n: row / h, i: row % h, accumulate });
    });
}

struct GradImage<'v, T> {
    x: View<'v, T>,
    dy: View<'v, T>,
    attrs: PoolAttrs,
    dx: *mut T,
    dx_pitch: usize,
    n: usize,
    first: usize,
    count: usize,
}

impl<T: Element> Kernel<T> for GradImage<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let PoolAttrs { kernel, stride, pad } = self.attrs;
        let Self { x, dy, n, .. } = self;
        let end = self.first + self.count;
        for i in 0..dy.h {
            let rows = window(i, kernel, stride, pad, x.h);
            for j in 0..dy.w {
                let cols = window(j, kernel, stride, pad, x.w);
                if rows.is_empty() || cols.is_empty() {
                    continue;
                }
                let mut c = self.first;
                while c < end {
                    let len = (end - c).min(S::LANES);
                    let mut best = s.splat(T::neg_infinity());
                    // Row-major position in the window; small whole numbers are exact in both types.
                    let mut place = s.splat(T::zero());
                    let mut position = T::zero();
                    for r in rows.clone() {
                        for q in cols.clone() {
                            // SAFETY: r < x.h, q < x.w, c + len <= x.channels.
                            let v = unsafe { load_piece(s, x.ptr.add(((n * x.h + r) * x.w + q) * x.pitch + c), len) };
                            let better = s.greater_or_nan(v, best);
                            best = s.select(better, v, best);
                            place = s.select(better, s.splat(position), place);
                            position += T::one();
                        }
                    }
                    let mut places = [T::zero(); 8];
                    // SAFETY: LANES <= 8; pixels and channels are inside the views; only this call writes image n's
                    // channels first..end.
                    unsafe {
                        s.store(places.as_mut_ptr(), place);
                        let from = dy.ptr.add(((n * dy.h + i) * dy.w + j) * dy.pitch + c);
                        for (lane, at) in places.iter().enumerate().take(len) {
                            let at = at.to_usize().unwrap_or(0);
                            let (r, q) = (rows.start + at / cols.len(), cols.start + at % cols.len());
                            *self.dx.add(((n * x.h + r) * x.w + q) * self.dx_pitch + c + lane) += *from.add(lane);
                        }
                    }
                    c += S::LANES;
                }
            }
        }
    }
}

/// dx = dy sent to the first maximum (row-major) of each window of x, or added.
pub fn max_pool_grad<T: Element>(x: View<T>, dy: View<T>, mut dx: ViewMut<T>, attrs: PoolAttrs, accumulate: bool) {
    assert_eq!([x.n, attrs.output_len(x.h), attrs.output_len(x.w), x.channels], dy.shape());
    assert_eq!(x.shape(), dx.shape());
    if !accumulate {
        super::fill(dx.reborrow(), T::zero());
    }
    let (dx_pitch, base) = (dx.pitch, Shared(dx.ptr));
    let blocks = x.channels.div_ceil(CHANNEL_BLOCK);
    for_each_index(x.n * blocks, |item| {
        let (n, first) = (item / blocks, item % blocks * CHANNEL_BLOCK);
        let count = CHANNEL_BLOCK.min(x.channels - first);
        T::dispatch(GradImage { x, dy, attrs, dx: base.get(), dx_pitch, n, first, count });
    });
}
