//! Average pooling; padding counts as zeros (divisor kernel^2), as in AConv and ADown where there is none.

use super::parallel::{Shared, for_each_index};
use super::{PoolAttrs, View, ViewMut};
use crate::element::Element;

/// y = mean of each window, or added. y is `[n, output_len(h), output_len(w), channels]`.
pub fn average_pool<T: Element>(x: View<T>, y: ViewMut<T>, attrs: PoolAttrs, accumulate: bool) {
    let PoolAttrs { kernel, stride, pad } = attrs;
    assert_eq!([x.n, attrs.output_len(x.h), attrs.output_len(x.w), x.channels], y.shape());
    let (h, w, pitch, channels, out) = (y.h, y.w, y.pitch, y.channels, Shared(y.ptr));
    let scale = T::one() / T::of_usize(kernel * kernel);
    for_each_index(y.n * h, |row| {
        let (n, i) = (row / h, row % h);
        for j in 0..w {
            // SAFETY: this row of y belongs to this call only.
            let to = unsafe { std::slice::from_raw_parts_mut(out.get().add((row * w + j) * pitch), channels) };
            if !accumulate {
                to.fill(T::zero());
            }
            for r in window(i, kernel, stride, pad, x.h) {
                for c in window(j, kernel, stride, pad, x.w) {
                    // SAFETY: r < x.h and c < x.w.
                    let from = unsafe { std::slice::from_raw_parts(x.at((n * x.h + r) * x.w + c), channels) };
                    to.iter_mut().zip(from).for_each(|(t, f)| *t += *f * scale);
                }
            }
        }
    });
}

/// dx = sum over the windows holding each pixel of dy / kernel^2, or added; windows in row-major order.
pub fn average_pool_grad<T: Element>(dy: View<T>, dx: ViewMut<T>, attrs: PoolAttrs, accumulate: bool) {
    let PoolAttrs { kernel, stride, pad } = attrs;
    assert_eq!([dx.n, attrs.output_len(dx.h), attrs.output_len(dx.w), dx.channels], dy.shape());
    let (h, w, pitch, channels, out) = (dx.h, dx.w, dx.pitch, dx.channels, Shared(dx.ptr));
    let scale = T::one() / T::of_usize(kernel * kernel);
    for_each_index(dx.n * h, |row| {
        let (n, y) = (row / h, row % h);
        for x in 0..w {
            // SAFETY: this row of dx belongs to this call only.
            let to = unsafe { std::slice::from_raw_parts_mut(out.get().add((row * w + x) * pitch), channels) };
            if !accumulate {
                to.fill(T::zero());
            }
            for i in holders(y, kernel, stride, pad, dy.h) {
                for j in holders(x, kernel, stride, pad, dy.w) {
                    // SAFETY: i < dy.h and j < dy.w.
                    let from = unsafe { std::slice::from_raw_parts(dy.at((n * dy.h + i) * dy.w + j), channels) };
                    to.iter_mut().zip(from).for_each(|(t, f)| *t += *f * scale);
                }
            }
        }
    });
}

/// Input positions of window `i` that are inside the picture.
pub(crate) fn window(i: usize, kernel: usize, stride: usize, pad: usize, len: usize) -> std::ops::Range<usize> {
    let start = i * stride;
    start.saturating_sub(pad)..(start + kernel).saturating_sub(pad).min(len)
}

/// Windows that hold input position `p`: i*stride <= p + pad < i*stride + kernel.
fn holders(p: usize, kernel: usize, stride: usize, pad: usize, windows: usize) -> std::ops::Range<usize> {
    let first = (p + pad + 1).saturating_sub(kernel).div_ceil(stride);
    first..((p + pad) / stride + 1).min(windows)
}
