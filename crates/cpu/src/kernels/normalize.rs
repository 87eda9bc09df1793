//! u8 pictures to elements between 0 and 1.

use super::ViewMut;
use super::parallel::{Shared, for_each_index};
use crate::element::Element;

/// y = x / 255, rounded as float32. x is dense (n, h, w, `x_channels`); y has the same pixels and at least as many
/// channels, of which those that x lacks become zero.
pub fn normalize<T: Element>(x: &[u8], x_channels: usize, y: ViewMut<T>) {
    assert!(x_channels <= y.channels && x.len() == y.pixels() * x_channels);
    let (w, channels, pitch, base) = (y.w, y.channels, y.pitch, Shared(y.ptr));
    for_each_index(y.n * y.h, |row| {
        for pixel in row * w..(row + 1) * w {
            // SAFETY: this pixel's channels belong to y, and to this row only.
            let y = unsafe { std::slice::from_raw_parts_mut(base.get().add(pixel * pitch), channels) };
            let (values, padding) = y.split_at_mut(x_channels);
            let x = &x[pixel * x_channels..][..x_channels];
            values.iter_mut().zip(x).for_each(|(y, &x)| *y = T::of_f64(f64::from(f32::from(x) / 255.0)));
            padding.fill(T::zero());
        }
    });
}
