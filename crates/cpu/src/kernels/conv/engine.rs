//! The direct convolution both forward and data gradient run.
//!
//! A tile is 6 pixels x 2 vectors of output channels (3 x 3 or 6 x 1 where the channel count asks for it) held in
//! registers over all taps and input channels: broadcast one input element per pixel, multiply with two vectors of
//! packed weights. Each pixel is an input pointer per tap; a tap outside of the picture points to a row of zeros, so
//! borders need no code of their own and tiles run across row ends. Pointers of a chunk of up to 96 pixels are found
//! once and serve all blocks of output channels.

use super::super::activation::{ActFn, load_piece};
use super::super::parallel::{Shared, chunk_count, for_each_index};
use super::super::simd::{Kernel, Simd};
use super::super::{Activation, View, ViewMut};
use super::MAX_TAPS;
use super::pack::Blocks;
use crate::element::Element;
use crate::kernels::activation::with_activation;

/// Pixels of the smallest chunk: a multiple of both tile heights.
const PIXEL_STEP: usize = 12;
/// Entries of a chunk's pointer table.
const TABLE: usize = PIXEL_STEP * MAX_TAPS;

/// One tap: which packed weights, and where its input pixel is relative to the output grid's.
#[derive(Clone, Copy, Default)]
pub(super) struct Tap {
    pub weight: usize,
    pub dy: isize,
    pub dx: isize,
}

/// A grid of output pixels: (y0 + a*step, x0 + b*step), a < rows, b < cols; grid point (a, b) reads the input at
/// (a*source_step + dy, b*source_step + dx) for each tap. `[y, x]` order.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    pub origin: [usize; 2],
    pub step: [usize; 2],
    pub size: [usize; 2],
    pub source_step: [usize; 2],
}

/// What happens to a finished sum.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a, T> {
    pub bias: Option<&'a [T]>,
    pub act: Activation,
    pub accumulate: bool,
}

/// A whole convolution: input, packed weights, output and their geometry.
pub(super) struct Direct<'a, T> {
    pub input: View<'a, T>,
    pub packed: &'a [T],
    /// At least one pixel's input channels of one group, all zero.
    pub zeros: &'a [T],
    pub groups: usize,
    pub blocks: Blocks,
    /// Taps of the packed weights.
    pub weight_taps: usize,
}

impl<T: Element> Direct<'_, T> {
    /// Writes the pixels of one grid with these taps.
    pub fn run(&self, grid: Grid, taps: &[Tap], output: &mut ViewMut<T>, epilogue: Epilogue<T>) {
        let pixels = output.n * grid.size[0] * grid.size[1];
        if pixels == 0 || output.channels == 0 {
            return;
        }
        let depth = self.input.channels / self.groups;
        debug_assert!(self.zeros.len() >= depth && taps.len() <= MAX_TAPS);
        // As many pixels as the table holds, but enough chunks to share out; a function of the shape only.
        let most = (TABLE / taps.len().max(1) / PIXEL_STEP * PIXEL_STEP).min(96);
        let size = (pixels / 32).next_multiple_of(PIXEL_STEP).clamp(PIXEL_STEP, most);
        let chunks = chunk_count(pixels, size);
        let target = Shared(output.ptr);
        for_each_index(chunks * self.groups, |item| {
            let (chunk, group) = (item / self.groups, item % self.groups);
            let first = chunk * size;
            let job = Job {
                direct: self,
                grid,
                taps,
                target: target.get(),
                target_pitch: output.pitch,
                target_size: [output.h, output.w],
                bias: epilogue.bias,
                accumulate: epilogue.accumulate,
                group,
                first,
                count: size.min(pixels - first),
                act: (),
            };
            with_activation!(epilogue.act, |f| T::dispatch(job.with_act(f)));
        });
    }
}

struct Job<'a, 'd, T, A> {
    direct: &'a Direct<'d, T>,
    grid: Grid,
    taps: &'a [Tap],
    target: *mut T,
    target_pitch: usize,
    target_size: [usize; 2],
    bias: Option<&'a [T]>,
    accumulate: bool,
    group: usize,
    first: usize,
    count: usize,
    act: A,
}

impl<'a, 'd, T> Job<'a, 'd, T, ()> {
    fn with_act<A>(self, act: A) -> Job<'a, 'd, T, A> {
        let Job {
            direct, grid, taps, target, target_pitch, target_size, bias, accumulate, group, first, count, ..
        } = self;
        Job { direct, grid, taps, target, target_pitch, target_size, bias, accumulate, group, first, count, act }
    }
}

impl<T: Element, A: ActFn<T>> Kernel<T> for Job<'_, '_, T, A> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        let mut sources = [std::ptr::null::<T>(); TABLE];
        let mut targets = [0usize; 96];
        self.fill_tables(&mut sources, &mut targets);
        for b in 0..self.direct.blocks.count() {
            let (vector, vectors) = self.direct.blocks.block(b);
            // SAFETY: the tables cover the chunk, padded to a whole number of tiles.
            unsafe {
                match vectors {
                    1 => self.tiles::<S, 6, 1>(s, &sources, &targets, vector),
                    2 => self.tiles::<S, 6, 2>(s, &sources, &targets, vector),
                    _ => self.tiles::<S, 3, 3>(s, &sources, &targets, vector),
                }
            }
        }
    }
}

impl<T: Element, A: ActFn<T>> Job<'_, '_, T, A> {
    /// Pixels of the chunk with padding: the table's row length.
    #[inline(always)]
    fn padded(&self) -> usize {
        self.count.next_multiple_of(PIXEL_STEP)
    }

    /// Input pointers `[tap][pixel]`, and each pixel's offset in the output.
    #[inline(always)]
    fn fill_tables(&self, sources: &mut [*const T; TABLE], targets: &mut [usize; 96]) {
        let (input, grid) = (self.direct.input, self.grid);
        let depth = input.channels / self.direct.groups;
        let zeros = self.direct.zeros.as_ptr();
        let padded = self.padded();
        let base = input.ptr.wrapping_add(self.group * depth);
        let [rows, cols] = grid.size;
        let (mut n, rest) = (self.first / (rows * cols), self.first % (rows * cols));
        let (mut a, mut b) = (rest / cols, rest % cols);
        let mut p = 0;
        // One run of pixels per output row: per tap only its ends need a look.
        while p < self.count {
            let run = (cols - b).min(self.count - p);
            let (y, x) = (grid.origin[0] + a * grid.step[0], grid.origin[1] + b * grid.step[1]);
            let first = ((n * self.target_size[0] + y) * self.target_size[1] + x) * self.target_pitch;
            for (i, t) in targets[p..p + run].iter_mut().enumerate() {
                *t = first + i * grid.step[1] * self.target_pitch;
            }
            let (sy, sx) = ((a * grid.source_step[0]) as isize, (b * grid.source_step[1]) as isize);
            let step = grid.source_step[1];
            for (t, tap) in self.taps.iter().enumerate() {
                let row = &mut sources[t * padded + p..][..run];
                // Negative positions wrap to huge ones and fail the same comparison.
                let iy = (sy + tap.dy) as usize;
                let ix = sx + tap.dx;
                let (low, high) = if iy < input.h { columns(ix, step, input.w, run) } else { (run, run) };
                row[..low].fill(zeros);
                let start = (n * input.h).wrapping_add(iy).wrapping_mul(input.w).wrapping_add_signed(ix);
                let mut at = base.wrapping_add((start.wrapping_add(low * step)).wrapping_mul(input.pitch));
                for q in &mut row[low..high] {
                    *q = at;
                    at = at.wrapping_add(step * input.pitch);
                }
                row[high..].fill(zeros);
            }
            p += run;
            b = 0;
            a += 1;
            if a == rows {
                a = 0;
                n += 1;
            }
        }
        for t in 0..self.taps.len() {
            sources[t * padded + self.count..(t + 1) * padded].fill(zeros);
        }
    }

    /// One block of output channels (from vector `vector`) for all pixels of the chunk.
    #[inline(always)]
    unsafe fn tiles<S: Simd<T>, const MR: usize, const NV: usize>(
        &self,
        s: S,
        sources: &[*const T; TABLE],
        targets: &[usize; 96],
        vector: usize,
    ) {
        let direct = self.direct;
        let depth = direct.input.channels / direct.groups;
        let outputs = direct.blocks.outputs;
        let per_channel = direct.weight_taps * depth;
        let first = vector * S::LANES;
        let weights =
            direct.packed.as_ptr().add((self.group * direct.blocks.vectors() * S::LANES + first) * per_channel);
        let channel = self.group * outputs + first;
        let valid = outputs - first;
        let padded = self.padded();
        let bias: [S::V; NV] = std::array::from_fn(|j| match self.bias {
            Some(bias) => {
                let len = valid.saturating_sub(j * S::LANES).min(S::LANES);
                load_piece(s, bias.as_ptr().add(channel + j * S::LANES), len)
            }
            None => s.splat(T::zero()),
        });
        let mut p = 0;
        while p < self.count {
            let acc = tile::<T, S, MR, NV>(s, sources.as_ptr().add(p), padded, self.taps, weights, depth);
            let live = (self.count - p).min(MR);
            for i in 0..MR {
                if i >= live {
                    break;
                }
                let out = self.target.add(targets[p + i] + channel);
                for j in 0..NV {
                    let out = out.add(j * S::LANES);
                    let v = self.act.eval(s, s.add(acc[i][j], bias[j]));
                    let len = valid - j * S::LANES;
                    if j + 1 < NV || len >= S::LANES {
                        s.store(out, if self.accumulate { s.add(s.load(out), v) } else { v });
                    } else {
                        s.store_first(out, if self.accumulate { s.add(s.load_first(out, len), v) } else { v }, len);
                    }
                }
            }
            p += MR;
        }
    }
}

/// The i < run with 0 <= first + i*step < width, as a range.
#[inline(always)]
fn columns(first: isize, step: usize, width: usize, run: usize) -> (usize, usize) {
    let low = if first < 0 { first.unsigned_abs().div_ceil(step) } else { 0 };
    let room = width as isize - first;
    let high = if room > 0 { (room as usize).div_ceil(step) } else { 0 };
    let low = low.min(run);
    (low, high.clamp(low, run))
}

/// Sums of one tile. `sources` is the first pixel's column of the pointer table, rows `padded` apart.
///
/// # Safety
/// The table's pointers must be readable for `depth` elements, the weights for their block.
#[inline(always)]
unsafe fn tile<T: Element, S: Simd<T>, const MR: usize, const NV: usize>(
    s: S,
    sources: *const *const T,
    padded: usize,
    taps: &[Tap],
    weights: *const T,
    depth: usize,
) -> [[S::V; NV]; MR] {
    let width = NV * S::LANES;
    let mut acc = [[s.splat(T::zero()); NV]; MR];
    for (t, tap) in taps.iter().enumerate() {
        let row = sources.add(t * padded);
        let pixel: [*const T; MR] = std::array::from_fn(|i| *row.add(i));
        let mut w = weights.add(tap.weight * depth * width);
        for k in 0..depth {
            let mut wv = [s.splat(T::zero()); NV];
            for j in 0..NV {
                wv[j] = s.load(w.add(j * S::LANES));
            }
            for i in 0..MR {
                let x = s.splat(*pixel[i].add(k));
                for j in 0..NV {
                    acc[i][j] = s.fma(x, wv[j], acc[i][j]);
                }
            }
            w = w.add(width);
        }
    }
    acc
}
