//! Nearest-neighbour resize to any size: source = floor(destination * in / out), and its gradient.

use super::parallel::{Shared, for_each_index};
use super::{View, ViewMut};
use crate::element::Element;

/// y[n, i, j] = x[n, floor(i*hx/hy), floor(j*wx/wy)], or added. Batch and channels equal, sizes free.
pub fn resize_nearest<T: Element>(x: View<T>, y: ViewMut<T>, accumulate: bool) {
    assert_eq!((x.n, x.channels), (y.n, y.channels));
    assert!(x.h * x.w > 0 || y.h * y.w == 0, "resize of an empty picture");
    let (h, w, pitch, channels, out) = (y.h, y.w, y.pitch, y.channels, Shared(y.ptr));
    for_each_index(x.n * h, |row| {
        let (n, i) = (row / h, row % h);
        let source_row = (n * x.h + i * x.h / h) * x.w;
        for j in 0..w {
            // SAFETY: both pixels are inside their views; this row of y belongs to this call only.
            let (from, to) = unsafe {
                (
                    std::slice::from_raw_parts(x.at(source_row + j * x.w / w), channels),
                    std::slice::from_raw_parts_mut(out.get().add((row * w + j) * pitch), channels),
                )
            };
            if accumulate {
                to.iter_mut().zip(from).for_each(|(t, f)| *t += *f);
            } else {
                to.copy_from_slice(from);
            }
        }
    });
}

/// dx = sum of dy over the pixels that read each source pixel in [`resize_nearest`], or added; row-major order.
pub fn resize_nearest_grad<T: Element>(dy: View<T>, dx: ViewMut<T>, accumulate: bool) {
    assert_eq!((dx.n, dx.channels), (dy.n, dy.channels));
    let (h, w, pitch, channels, out) = (dx.h, dx.w, dx.pitch, dx.channels, Shared(dx.ptr));
    // floor(d*in/out) = s  <=>  d in [ceil(s*out/in), ceil((s+1)*out/in))
    let readers = |s: usize, inner: usize, outer: usize| (s * outer).div_ceil(inner)..((s + 1) * outer).div_ceil(inner);
    for_each_index(dx.n * h, |row| {
        let (n, y) = (row / h, row % h);
        for x in 0..w {
            // SAFETY: this row of dx belongs to this call only.
            let to = unsafe { std::slice::from_raw_parts_mut(out.get().add((row * w + x) * pitch), channels) };
            if !accumulate {
                to.fill(T::zero());
            }
            for i in readers(y, h, dy.h) {
                for j in readers(x, w, dy.w) {
                    // SAFETY: i < dy.h and j < dy.w by the bound above.
                    let from = unsafe { std::slice::from_raw_parts(dy.at((n * dy.h + i) * dy.w + j), channels) };
                    to.iter_mut().zip(from).for_each(|(t, f)| *t += *f);
                }
            }
        }
    });
}
