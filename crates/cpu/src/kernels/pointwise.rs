//! Sum of tensors, copy between pitches, fill. Bound: memory (bytes read + bytes written).

use super::activation::{Rows, for_pieces, load_piece, store_piece};
use super::parallel::{Shared, chunk, chunk_count, chunk_pixels, for_each_index};
use super::simd::{Kernel, Simd};
use super::{View, ViewMut};
use crate::element::Element;

struct Sum<'a, 'v, T> {
    inputs: &'a [View<'v, T>],
    first: usize,
    out: *mut T,
    out_pitch: usize,
    rows: Rows,
    accumulate: bool,
}

impl<T: Element> Kernel<T> for Sum<'_, '_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        for p in 0..self.rows.count {
            for_pieces!(s, T, S, self.rows.len, |c, len| {
                // SAFETY: pixel first + p and channels c..c+len are inside all views (shapes are equal).
                unsafe {
                    let at = |v: &View<T>| load_piece(s, v.ptr.add((self.first + p) * v.pitch + c), len);
                    let mut sum = at(&self.inputs[0]);
                    for v in &self.inputs[1..] {
                        sum = s.add(sum, at(v));
                    }
                    store_piece(s, self.out.add((self.first + p) * self.out_pitch + c), sum, len, self.accumulate);
                }
            });
        }
    }
}

/// y = sum of the inputs in their order, or y += it. At least one input; shapes equal.
pub fn add<T: Element>(inputs: &[View<T>], y: ViewMut<T>, accumulate: bool) {
    assert!(!inputs.is_empty() && inputs.iter().all(|v| v.shape() == y.shape()));
    let channels = y.channels;
    let dense = y.pitch == channels && inputs.iter().all(|v| v.pitch == channels);
    let size = chunk_pixels(channels);
    let (pixels, out_pitch, out) = (y.pixels(), y.pitch, Shared(y.ptr));
    for_each_index(chunk_count(pixels, size), |i| {
        let range = chunk(i, size, pixels);
        let rows = Rows::new(range.len(), channels, dense);
        T::dispatch(Sum { inputs, first: range.start, out: out.get(), out_pitch, rows, accumulate });
    });
}

/// y = x, or y += x; the pitches may differ. Shapes equal.
pub fn copy<T: Element>(x: View<T>, y: ViewMut<T>, accumulate: bool) {
    add(&[x], y, accumulate);
}

/// Every element of y becomes `value`.
pub fn fill<T: Element>(y: ViewMut<T>, value: T) {
    let (pixels, pitch, channels, out) = (y.pixels(), y.pitch, y.channels, Shared(y.ptr));
    let size = chunk_pixels(channels);
    for_each_index(chunk_count(pixels, size), |i| {
        for p in chunk(i, size, pixels) {
            // SAFETY: this pixel's channels belong to y, and to this chunk only.
            unsafe { std::slice::from_raw_parts_mut(out.get().add(p * pitch), channels) }.fill(value);
        }
    });
}
