//! Convolution weight gradient: dw[co][tap][ci] += sum over pixels of dy[p][co] * x[p at tap][ci], and the bias
//! gradient, the sum of dy.
//!
//! The output rows of all images are cut into chunks by shape; each chunk sums into a copy of dw in scratch, and the
//! copies are added in chunk order. Where dw is large and pixels are few, there are fewer chunks and each is split by
//! output channels instead. A chunk goes through its rows in bands that stay in the second-level cache; per band, tap
//! and block of input channels, a tile of up to 6 output channels x 2 vectors of input channels stays in registers over
//! all pixels: broadcast dy, multiply with the vectors of x. The pixels a tap sees in a row are a range, so borders
//! cost nothing.
//!
//! Cost: 2 * n*h*w * cout*taps*cin/groups FLOP; reads x and dy once per band, adds to dw.
//! 3x3 16->16 @80x80, batch 2, f32, one core (AMD EPYC Zen 3, FMA peak 103.6 GFLOP/s, 2026-11-30): 59 MFLOP, 1.6 MB,
//! bound 0.57 ms, 0.62 ms.

use std::ops::Range;

use super::super::View;
use super::super::activation::load_piece;
use super::super::parallel::{Shared, chunk, for_each_index};
use super::super::simd::{Kernel, Simd};
use super::ConvAttrs;
use super::pack::Blocks;
use crate::element::Element;

/// Independent items wanted.
const ITEMS: usize = 16;
/// Pixels that are worth a copy of dw of their own.
const CHUNK_PIXELS: usize = 512;
/// Most elements of all copies together, unless one alone is larger.
const COPIES: usize = 1 << 22;
/// Elements of x and dy in one band, and the pixels a band has whatever that takes: a tile's sums are fetched and put
/// back once a band.
const BAND: usize = 1 << 14;
const BAND_PIXELS: usize = 256;

/// How the work is cut; a function of the shape.
#[derive(Clone, Copy)]
struct Split {
    /// Row chunks, each with a copy of dw and dbias.
    chunks: usize,
    /// Rows of a chunk.
    rows: usize,
    /// Parts of a group's output channels.
    parts: usize,
    /// Output channels of a part.
    part: usize,
    /// dw and dbias together.
    copy: usize,
}

impl Split {
    fn new(x: [usize; 4], y: [usize; 4], attrs: ConvAttrs) -> Self {
        let copy = attrs.weight_len(x[3], y[3]) + y[3];
        let total_rows = y[0] * y[1];
        let wanted = (total_rows * y[2] / CHUNK_PIXELS).min(COPIES / copy.max(1)).clamp(1, ITEMS);
        let rows = total_rows.div_ceil(wanted).max(1);
        let chunks = total_rows.div_ceil(rows).max(1);
        let outputs = (y[3] / attrs.groups).max(1);
        let part = outputs.div_ceil(ITEMS.div_ceil(chunks * attrs.groups)).next_multiple_of(6).min(outputs);
        Self { chunks, rows, parts: outputs.div_ceil(part), part, copy }
    }
}

/// Scratch elements of [`conv_weight_grad`]; x is `[n, h, w, cin]`.
pub fn conv_weight_grad_scratch(x: [usize; 4], cout: usize, attrs: ConvAttrs) -> usize {
    let [h, w] = attrs.output_size([x[1], x[2]]);
    let split = Split::new(x, [x[0], h, w, cout], attrs);
    split.chunks * split.copy
}

/// dw += gradient of the loss by the weights (OHWI), dbias += by the bias. x `[n, h, w, cin]`, dy
/// `[n, output_size, cout]`. Scratch: [`conv_weight_grad_scratch`] elements, of any content.
pub fn conv_weight_grad<T: Element>(
    x: View<T>,
    dy: View<T>,
    dw: &mut [T],
    dbias: Option<&mut [T]>,
    attrs: ConvAttrs,
    scratch: &mut [T],
) {
    attrs.check(x.shape(), dy.shape(), dw.len());
    assert!(dbias.as_ref().is_none_or(|b| b.len() == dy.channels));
    let split = Split::new(x.shape(), dy.shape(), attrs);
    let copies = &mut scratch[..split.chunks * split.copy];
    let base = Shared(copies.as_mut_ptr());
    let with_bias = dbias.is_some();
    let outputs = dy.channels / attrs.groups;
    if dy.channels == 0 {
        return;
    }
    for_each_index(split.chunks * attrs.groups * split.parts, |item| {
        let (c, rest) = (item / (attrs.groups * split.parts), item % (attrs.groups * split.parts));
        let (group, part) = (rest / split.parts, rest % split.parts);
        T::dispatch(Item {
            x,
            dy,
            attrs,
            // SAFETY: chunk c's copy.
            copy: unsafe { base.get().add(c * split.copy) },
            bias: with_bias,
            group,
            outputs: chunk(part, split.part, outputs),
            rows: chunk(c, split.rows, dy.n * dy.h),
        });
    });
    merge(dw, copies, split.copy, 0);
    if let Some(dbias) = dbias {
        merge(dbias, copies, split.copy, dw.len());
    }
}

/// out += the copies' elements from `offset`, in order of the copies.
fn merge<T: Element>(out: &mut [T], copies: &[T], copy: usize, offset: usize) {
    const PIECE: usize = 4096;
    let (len, base) = (out.len(), Shared(out.as_mut_ptr()));
    for_each_index(len.div_ceil(PIECE), |i| {
        let range = chunk(i, PIECE, len);
        // SAFETY: pieces of `out` are disjoint.
        let to = unsafe { std::slice::from_raw_parts_mut(base.get().add(range.start), range.len()) };
        for part in copies.chunks_exact(copy) {
            let from = &part[offset + range.start..offset + range.end];
            to.iter_mut().zip(from).for_each(|(t, f)| *t += *f);
        }
    });
}

/// Some output channels of one group over one chunk of rows.
struct Item<'a, T> {
    x: View<'a, T>,
    dy: View<'a, T>,
    attrs: ConvAttrs,
    copy: *mut T,
    bias: bool,
    group: usize,
    /// Output channels within the group.
    outputs: Range<usize>,
    /// Rows of dy, counted over all images.
    rows: Range<usize>,
}

impl<T: Element> Kernel<T> for Item<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let depth = self.x.channels / self.attrs.groups;
        let taps = self.attrs.taps();
        let per_output = taps * depth;
        let first = self.group * (self.dy.channels / self.attrs.groups) + self.outputs.start;
        let count = self.outputs.len();
        // SAFETY: this item's channels of this chunk's copy belong to it alone.
        let (dw, dbias) = unsafe {
            let bias = self.copy.add(self.dy.channels * per_output);
            (
                std::slice::from_raw_parts_mut(self.copy.add(first * per_output), count * per_output),
                std::slice::from_raw_parts_mut(bias.add(first), count),
            )
        };
        dw.fill(T::zero());
        dbias.fill(T::zero());
        let blocks = Blocks { lanes: S::LANES, outputs: depth };
        let row_len = self.dy.w * (count + depth * self.attrs.stride[0] * self.attrs.stride[1]);
        let band = (BAND / row_len.max(1)).max(BAND_PIXELS.div_ceil(self.dy.w.max(1)));
        let mut start = self.rows.start;
        while start < self.rows.end {
            let rows = start..(start + band).min(self.rows.end);
            start = rows.end;
            if self.bias {
                self.sum_bias(rows.clone(), first, dbias);
            }
            for tap in 0..taps {
                for b in 0..blocks.count() {
                    let (vector, vectors) = blocks.block(b);
                    let ci = vector * S::LANES;
                    // SAFETY: rows, channels and tap are inside the views.
                    unsafe {
                        match vectors {
                            1 => self.outputs_of::<S, 1>(s, rows.clone(), first, tap, ci, dw),
                            2 => self.outputs_of::<S, 2>(s, rows.clone(), first, tap, ci, dw),
                            _ => self.outputs_of::<S, 3>(s, rows.clone(), first, tap, ci, dw),
                        }
                    }
                }
            }
        }
    }
}

impl<T: Element> Item<'_, T> {
    #[inline(always)]
    fn sum_bias(&self, rows: Range<usize>, first: usize, dbias: &mut [T]) {
        for p in rows.start * self.dy.w..rows.end * self.dy.w {
            // SAFETY: pixel p and these channels are inside dy.
            let from = unsafe { std::slice::from_raw_parts(self.dy.ptr.add(p * self.dy.pitch + first), dbias.len()) };
            dbias.iter_mut().zip(from).for_each(|(t, f)| *t += *f);
        }
    }

    /// All output channels for one tap and NV vectors of input channels, in tiles of nearly equal height.
    #[inline(always)]
    unsafe fn outputs_of<S: Simd<T>, const NV: usize>(
        &self,
        s: S,
        rows: Range<usize>,
        first: usize,
        tap: usize,
        ci: usize,
        dw: &mut [T],
    ) {
        let count = self.outputs.len();
        // Three vectors leave registers for nine sums (twelve spill).
        let most = if NV == 3 { 3 } else { 6 };
        let tiles = count.div_ceil(most);
        let mut done = 0;
        for t in 0..tiles {
            let height = (count - done).div_ceil(tiles - t);
            let co = first + done;
            let out = &mut dw[done * self.per_output()..];
            match height {
                1 => self.tile::<S, 1, NV>(s, rows.clone(), co, tap, ci, out),
                2 => self.tile::<S, 2, NV>(s, rows.clone(), co, tap, ci, out),
                3 => self.tile::<S, 3, NV>(s, rows.clone(), co, tap, ci, out),
                4 if NV < 3 => self.tile::<S, 4, NV>(s, rows.clone(), co, tap, ci, out),
                5 if NV < 3 => self.tile::<S, 5, NV>(s, rows.clone(), co, tap, ci, out),
                _ if NV < 3 => self.tile::<S, 6, NV>(s, rows.clone(), co, tap, ci, out),
                _ => unreachable!("three vectors have tiles of at most three"),
            }
            done += height;
        }
    }

    #[inline(always)]
    fn per_output(&self) -> usize {
        self.attrs.taps() * (self.x.channels / self.attrs.groups)
    }

    /// One register tile over the pixels of some rows; added to `out`, which starts at the tile's first output channel.
    #[inline(always)]
    unsafe fn tile<S: Simd<T>, const MR: usize, const NV: usize>(
        &self,
        s: S,
        rows: Range<usize>,
        co: usize,
        tap: usize,
        ci: usize,
        out: &mut [T],
    ) {
        let (x, dy, attrs) = (self.x, self.dy, self.attrs);
        let depth = x.channels / attrs.groups;
        let (ky, kx) = (tap / attrs.kernel[1], tap % attrs.kernel[1]);
        let last = (depth - ci - (NV - 1) * S::LANES).min(S::LANES);
        let channel = self.group * depth + ci;
        // Columns whose input column ox*stride + kx - pad is inside.
        let cols = inside(dy.w, x.w, attrs.stride[1], kx, attrs.pad[1]);
        let step = attrs.stride[1] * x.pitch;
        let mut acc = [[s.splat(T::zero()); NV]; MR];
        for row in rows {
            let (n, oy) = (row / dy.h, row % dy.h);
            let iy = (oy * attrs.stride[0] + ky).wrapping_sub(attrs.pad[0]);
            if iy >= x.h || cols.is_empty() {
                continue;
            }
            let ix = cols.start * attrs.stride[1] + kx - attrs.pad[1];
            let source = x.ptr.add(((n * x.h + iy) * x.w + ix) * x.pitch + channel);
            let grad = dy.ptr.add((row * dy.w + cols.start) * dy.pitch + co);
            acc = if last == S::LANES {
                row_sum::<T, S, MR, NV, true>(s, acc, cols.len(), source, step, grad, dy.pitch, last)
            } else {
                row_sum::<T, S, MR, NV, false>(s, acc, cols.len(), source, step, grad, dy.pitch, last)
            };
        }
        let out = out.as_mut_ptr().add(tap * depth + ci);
        for i in 0..MR {
            for j in 0..NV {
                let p = out.add(i * self.per_output() + j * S::LANES);
                if j + 1 < NV || last == S::LANES {
                    s.store(p, s.add(s.load(p), acc[i][j]));
                } else {
                    s.store_first(p, s.add(load_piece(s, p, last), acc[i][j]), last);
                }
            }
        }
    }
}

/// Output positions o < outputs with 0 <= o*stride + k - pad < inputs.
fn inside(outputs: usize, inputs: usize, stride: usize, k: usize, pad: usize) -> Range<usize> {
    let low = pad.saturating_sub(k).div_ceil(stride);
    let high = if inputs + pad > k { (inputs + pad - k - 1) / stride + 1 } else { 0 };
    low..high.min(outputs).max(low)
}

/// Adds a row's products to a tile.
///
/// # Safety
/// `source` and `grad` must be readable for the row's pixels: NV vectors (the last `last` elements long unless FULL),
/// and MR elements.
#[inline(always)]
unsafe fn row_sum<T: Element, S: Simd<T>, const MR: usize, const NV: usize, const FULL: bool>(
    s: S,
    mut acc: [[S::V; NV]; MR],
    pixels: usize,
    mut source: *const T,
    step: usize,
    mut grad: *const T,
    grad_step: usize,
    last: usize,
) -> [[S::V; NV]; MR] {
    for _ in 0..pixels {
        let mut xv = [s.splat(T::zero()); NV];
        for j in 0..NV {
            let p = source.add(j * S::LANES);
            xv[j] = if FULL || j + 1 < NV { s.load(p) } else { s.load_first(p, last) };
        }
        for i in 0..MR {
            let d = s.splat(*grad.add(i));
            for j in 0..NV {
                acc[i][j] = s.fma(d, xv[j], acc[i][j]);
            }
        }
        source = source.wrapping_add(step);
        grad = grad.wrapping_add(grad_step);
    }
    acc
}
