//! Activation functions, their derivatives, and the passes that apply them to a whole tensor.

use super::parallel::{Shared, chunk, chunk_count, chunk_pixels, for_each_index};
use super::simd::{Kernel, Simd};
use super::{View, ViewMut};
use crate::element::Element;

pub use graph::Activation;

/// An activation as a type, so that loops contain it without a branch.
pub(crate) trait ActFn<T>: Copy + Send + Sync {
    fn eval<S: Simd<T>>(self, s: S, z: S::V) -> S::V;
    /// dy * derivative at z.
    fn grad<S: Simd<T>>(self, s: S, z: S::V, dy: S::V) -> S::V;
}

#[derive(Clone, Copy)]
pub(crate) struct IdentityFn;
#[derive(Clone, Copy)]
pub(crate) struct SiluFn;
/// Leaky ReLU with this slope; ReLU is slope 0.
#[derive(Clone, Copy)]
pub(crate) struct LeakyFn<T>(pub T);

impl<T> ActFn<T> for IdentityFn {
    #[inline(always)]
    fn eval<S: Simd<T>>(self, _: S, z: S::V) -> S::V {
        z
    }
    #[inline(always)]
    fn grad<S: Simd<T>>(self, _: S, _: S::V, dy: S::V) -> S::V {
        dy
    }
}

#[inline(always)]
fn sigmoid<T: Element, S: Simd<T>>(s: S, z: S::V) -> S::V {
    let one = s.splat(T::one());
    s.div(one, s.add(one, s.exp(s.sub(s.splat(T::zero()), z))))
}

/// z with -infinity (and +infinity up to `high`) made finite, so that its product with an exact zero is zero.
#[inline(always)]
fn finite<T: Element, S: Simd<T>>(s: S, z: S::V, high: T) -> S::V {
    s.clamp(z, s.splat(T::min_value()), s.splat(high))
}

impl<T: Element> ActFn<T> for SiluFn {
    #[inline(always)]
    fn eval<S: Simd<T>>(self, s: S, z: S::V) -> S::V {
        s.mul(finite(s, z, T::infinity()), sigmoid(s, z))
    }
    #[inline(always)]
    fn grad<S: Simd<T>>(self, s: S, z: S::V, dy: S::V) -> S::V {
        let one = s.splat(T::one());
        let (sig, z) = (sigmoid(s, z), finite(s, z, T::max_value()));
        s.mul(dy, s.mul(sig, s.fma(z, s.sub(one, sig), one)))
    }
}

impl<T: Element> ActFn<T> for LeakyFn<T> {
    #[inline(always)]
    fn eval<S: Simd<T>>(self, s: S, z: S::V) -> S::V {
        let low = if self.0 == T::zero() { s.splat(T::zero()) } else { s.mul(z, s.splat(self.0)) };
        // z <= 0 takes the slope, so that NaN falls through as NaN.
        s.select(s.greater(s.splat(T::zero()), z), low, z)
    }
    #[inline(always)]
    fn grad<S: Simd<T>>(self, s: S, z: S::V, dy: S::V) -> S::V {
        let low = if self.0 == T::zero() { s.splat(T::zero()) } else { s.mul(dy, s.splat(self.0)) };
        s.select(s.greater(z, s.splat(T::zero())), dy, low)
    }
}

/// Evaluates `$body` with `$f` bound to the activation's type.
macro_rules! with_activation {
    ($act:expr, |$f:ident| $body:expr) => {
        match $act {
            $crate::kernels::Activation::Identity => {
                let $f = $crate::kernels::activation::IdentityFn;
                $body
            }
            $crate::kernels::Activation::Silu => {
                let $f = $crate::kernels::activation::SiluFn;
                $body
            }
            $crate::kernels::Activation::Relu => {
                let $f = $crate::kernels::activation::LeakyFn(T::zero());
                $body
            }
            $crate::kernels::Activation::LeakyRelu(slope) => {
                let $f = $crate::kernels::activation::LeakyFn(T::of_f64(f64::from(slope)));
                $body
            }
        }
    };
}
pub(crate) use with_activation;

/// Calls `$body` for vector pieces of a row of `$count` elements: offset, and number of elements.
macro_rules! for_pieces {
    ($s:ident, $T:ty, $S:ty, $count:expr, |$c:ident, $len:ident| $body:expr) => {{
        let total: usize = $count;
        let mut $c = 0;
        while $c < total {
            let $len = (total - $c).min(<$S as Simd<$T>>::LANES);
            $body;
            $c += <$S as Simd<$T>>::LANES;
        }
    }};
}
pub(crate) use for_pieces;

/// A vector at `p`: whole if `len` is a vector's length, else its first `len` elements.
#[inline(always)]
pub(crate) unsafe fn load_piece<T, S: Simd<T>>(s: S, p: *const T, len: usize) -> S::V {
    if len == S::LANES { s.load(p) } else { s.load_first(p, len) }
}

/// Writes or adds the first `len` elements of a vector.
#[inline(always)]
pub(crate) unsafe fn store_piece<T, S: Simd<T>>(s: S, p: *mut T, v: S::V, len: usize, accumulate: bool) {
    let v = if accumulate { s.add(load_piece(s, p, len), v) } else { v };
    if len == S::LANES { s.store(p, v) } else { s.store_first(p, v, len) }
}

/// Rows of pixels as one loop sees them; a dense tensor becomes one long row.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub count: usize,
    pub len: usize,
}

impl Rows {
    pub fn new(pixels: usize, channels: usize, dense: bool) -> Self {
        if dense { Self { count: 1, len: pixels * channels } } else { Self { count: pixels, len: channels } }
    }
}

struct Pass<T, A> {
    act: A,
    x: *const T,
    x_pitch: usize,
    dy: Option<(*const T, usize)>,
    out: *mut T,
    out_pitch: usize,
    rows: Rows,
    accumulate: bool,
}

impl<T: Element, A: ActFn<T>> Kernel<T> for Pass<T, A> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd<T>>(self, s: S) {
        for p in 0..self.rows.count {
            for_pieces!(s, T, S, self.rows.len, |c, len| {
                // SAFETY: pixel p and channels c..c+len are inside the views this chunk was made from.
                unsafe {
                    let x = load_piece(s, self.x.add(p * self.x_pitch + c), len);
                    let v = match self.dy {
                        None => self.act.eval(s, x),
                        Some((dy, pitch)) => self.act.grad(s, x, load_piece(s, dy.add(p * pitch + c), len)),
                    };
                    store_piece(s, self.out.add(p * self.out_pitch + c), v, len, self.accumulate);
                }
            });
        }
    }
}

fn pass<T: Element>(x: View<T>, dy: Option<View<T>>, out: ViewMut<T>, act: Activation, accumulate: bool) {
    assert_eq!(x.shape(), out.shape());
    let channels = x.channels;
    let dense = x.pitch == channels && out.pitch == channels && dy.is_none_or(|d| d.pitch == channels);
    let size = chunk_pixels(channels);
    let base = Shared(out.ptr);
    for_each_index(chunk_count(x.pixels(), size), |i| {
        let range = chunk(i, size, x.pixels());
        let rows = Rows::new(range.len(), channels, dense);
        // SAFETY: the chunk's pixels are inside the views, and no other chunk writes them.
        unsafe {
            let first = range.start;
            let source = x.at(first);
            let target = base.get().add(first * out.pitch);
            let dy = dy.map(|d| (d.ptr.add(first * d.pitch), d.pitch));
            with_activation!(act, |f| T::dispatch(Pass {
                act: f,
                x: source,
                x_pitch: x.pitch,
                dy,
                out: target,
                out_pitch: out.pitch,
                rows,
                accumulate
            }));
        }
    });
}

/// y = act(x), or y += act(x). Shapes equal.
pub fn activation<T: Element>(x: View<T>, y: ViewMut<T>, act: Activation, accumulate: bool) {
    pass(x, None, y, act, accumulate);
}

/// dx = dy * act'(x), or dx += it; x is the activation's input. Shapes equal.
pub fn activation_grad<T: Element>(x: View<T>, dy: View<T>, dx: ViewMut<T>, act: Activation, accumulate: bool) {
    assert_eq!(x.shape(), dy.shape());
    pass(x, Some(dy), dx, act, accumulate);
}
