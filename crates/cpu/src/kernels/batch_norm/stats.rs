//! Mean and biased variance per channel.
//!
//! Each chunk of pixels gives (mean, M2), M2 the sum of squared deviations from the chunk's own mean (two passes over
//! data that is in cache); chunks merge by Chan's formula. E[x^2] - E[x]^2 is never formed: it cancels.

use super::super::View;
use super::super::activation::{for_pieces, load_piece, store_piece};
use super::super::parallel::{Shared, chunk, chunk_count, chunk_pixels, for_each_index};
use super::super::simd::{Kernel, Simd};
use crate::element::Element;

/// Scratch elements of [`bn_stats`] for x of this shape.
pub fn bn_stats_scratch(shape: [usize; 4]) -> usize {
    let [n, h, w, channels] = shape;
    2 * channels * chunk_count(n * h * w, chunk_pixels(channels))
}

/// mean and var (biased: divided by n*h*w) of each channel of x. Without pixels both are 0. Scratch:
/// [`bn_stats_scratch`] elements, of any content.
pub fn bn_stats<T: Element>(x: View<T>, mean: &mut [T], var: &mut [T], scratch: &mut [T]) {
    let (pixels, channels) = (x.pixels(), x.channels);
    assert!(mean.len() == channels && var.len() == channels);
    let size = chunk_pixels(channels);
    let parts = &mut scratch[..bn_stats_scratch(x.shape())];
    let base = Shared(parts.as_mut_ptr());
    for_each_index(chunk_count(pixels, size), |i| {
        let range = chunk(i, size, pixels);
        // SAFETY: chunk i's pixels are inside x, its part of the scratch is its own.
        unsafe {
            T::dispatch(Chunk {
                x: x.at(range.start),
                pitch: x.pitch,
                pixels: range.len(),
                channels,
                out: base.get().add(i * 2 * channels),
            });
        }
    });
    for c in 0..channels {
        let (mut count, mut m, mut m2) = (0.0f64, 0.0f64, 0.0f64);
        for (i, part) in parts.chunks_exact(2 * channels).enumerate() {
            let n = chunk(i, size, pixels).len() as f64;
            let delta = part[c].as_f64() - m;
            m2 += part[channels + c].as_f64() + delta * delta * count * n / (count + n);
            m += delta * n / (count + n);
            count += n;
        }
        mean[c] = T::of_f64(m);
        var[c] = T::of_f64(if count > 0.0 { m2 / count } else { 0.0 });
    }
}

struct Chunk<T> {
    x: *const T,
    pitch: usize,
    pixels: usize,
    channels: usize,
    /// channels means, then channels M2.
    out: *mut T,
}

impl<T: Element> Kernel<T> for Chunk<T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let scale = s.splat(T::one() / T::of_usize(self.pixels));
        for_pieces!(s, T, S, self.channels, |c, len| {
            // SAFETY: channels c..c+len of the chunk's pixels, and of the output.
            unsafe {
                let x = self.x.add(c);
                let zero = s.splat(T::zero());
                let [sum, _] = self.sums(s, x, len, |v| [v, zero]);
                let rough = s.mul(sum, scale);
                let [left, square] = self.sums(s, x, len, |v| {
                    let d = s.sub(v, rough);
                    [d, s.mul(d, d)]
                });
                // The deviations do not quite cancel when the sum was rounded: what is left corrects both.
                let shift = s.mul(left, scale);
                let mean = s.add(rough, shift);
                let m2 = s.sub(square, s.mul(shift, left));
                store_piece(s, self.out.add(c), mean, len, false);
                store_piece(s, self.out.add(self.channels + c), m2, len, false);
            }
        });
    }
}

impl<T: Element> Chunk<T> {
    /// Sums of f's two values over the pixels at one vector of channels, in four interleaved parts.
    #[inline(always)]
    unsafe fn sums<S: Simd<T>>(&self, s: S, x: *const T, len: usize, f: impl Fn(S::V) -> [S::V; 2]) -> [S::V; 2] {
        let mut acc = [[s.splat(T::zero()); 2]; 4];
        let mut p = 0;
        while p + 4 <= self.pixels {
            for i in 0..4 {
                let [a, b] = f(load_piece(s, x.add((p + i) * self.pitch), len));
                acc[i] = [s.add(acc[i][0], a), s.add(acc[i][1], b)];
            }
            p += 4;
        }
        while p < self.pixels {
            let [a, b] = f(load_piece(s, x.add(p * self.pitch), len));
            acc[0] = [s.add(acc[0][0], a), s.add(acc[0][1], b)];
            p += 1;
        }
        std::array::from_fn(|k| s.add(s.add(acc[0][k], acc[1][k]), s.add(acc[2][k], acc[3][k])))
    }
}
