//! The two element types of the kernels, f32 and f64, and their scalar exponential functions.

use std::fmt::Debug;

use num_traits::{Float, NumAssign};

use crate::kernels::simd::{Kernel, Portable};

/// A floating-point type the kernels are written for: f32 for work, f64 for reference and gradient checks.
pub trait Element: Float + NumAssign + Debug + Default + Send + Sync + 'static {
    /// The nearest value to `v`.
    fn of_f64(v: f64) -> Self;

    /// The value as f64, exact for both types.
    fn as_f64(self) -> f64;

    /// e^self. f32: within 2 ulp, gradual underflow to 0, overflow to infinity, NaN stays NaN. f64: the standard
    /// library's.
    fn exp_fast(self) -> Self;

    /// Runs a kernel with the widest vectors this CPU has.
    fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out;

    /// A count as an element; counts here are far below the type's exact integer range times its precision.
    fn of_usize(v: usize) -> Self {
        Self::of_f64(v as f64)
    }
}

impl Element for f32 {
    fn of_f64(v: f64) -> Self {
        v as f32
    }

    fn as_f64(self) -> f64 {
        f64::from(self)
    }

    fn exp_fast(self) -> Self {
        exp_f32(self)
    }

    fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = crate::kernels::simd::Avx2::detect() {
            return crate::kernels::simd::run_avx2(simd, kernel);
        }
        kernel.run(Portable)
    }
}

impl Element for f64 {
    fn of_f64(v: f64) -> Self {
        v
    }

    fn as_f64(self) -> f64 {
        self
    }

    fn exp_fast(self) -> Self {
        self.exp()
    }

    fn dispatch<K: Kernel<Self>>(kernel: K) -> K::Out {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = crate::kernels::simd::Avx2::detect() {
            return crate::kernels::simd::run_avx2(simd, kernel);
        }
        kernel.run(Portable)
    }
}

/// Constants of the f32 exponential, shared with the vector form: e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln 2 / 2.
pub(crate) mod exp_const {
    /// Above this the result is infinite.
    pub const HIGH: f32 = 89.0;
    /// Below this the result rounds to zero.
    pub const LOW: f32 = -104.0;
    /// 1.5 * 2^23: adding it rounds to an integer, which then sits in the low bits.
    pub const MAGIC: f32 = 12_582_912.0;
    /// Upper part of ln 2; ten bits, so its product with n is exact.
    pub const LN2_HIGH: f32 = 355.0 / 512.0;
    /// ln 2 - LN2_HIGH.
    pub const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Minimax polynomial of (e^r - 1 - r) / r^2, highest power first (Cephes' expf).
    pub const POLY: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
}

#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    use exp_const::*;
    // Comparisons, not min/max: a NaN must pass through.
    let x = if x > HIGH { HIGH } else { x };
    let x = if x < LOW { LOW } else { x };
    let t = x * std::f32::consts::LOG2_E + MAGIC;
    let n = t - MAGIC;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = POLY[0];
    for c in &POLY[1..] {
        p = p * r + c;
    }
    let y = (p * (r * r) + r) + 1.0;
    // 2^n in two factors: one alone would leave the exponent's range at both ends.
    let i = (t.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = i >> 1;
    let power = |e: i32| f32::from_bits((e.wrapping_add(127) as u32) << 23);
    y * power(half) * power(i.wrapping_sub(half))
}

/// The logistic function 1 / (1 + e^-x).
#[inline]
pub fn sigmoid<T: Element>(x: T) -> T {
    T::one() / (T::one() + (-x).exp_fast())
}

/// x * sigmoid(x); 0 at -infinity.
#[inline]
pub fn silu<T: Element>(x: T) -> T {
    // A finite factor, so that its product with an exact zero is zero. Comparisons keep NaN.
    let factor = if x < T::min_value() { T::min_value() } else { x };
    factor * sigmoid(x)
}

/// Derivative of [`silu`]: s * (1 + x * (1 - s)) with s = sigmoid(x); 0 at -infinity, 1 at +infinity.
#[inline]
pub fn silu_grad<T: Element>(x: T) -> T {
    let factor = if x > T::max_value() {
        T::max_value()
    } else if x < T::min_value() {
        T::min_value()
    } else {
        x
    };
    let s = sigmoid(x);
    s * (T::one() + factor * (T::one() - s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::Simd;

    struct Exp<'a, T>(&'a mut [T]);

    impl<T: Element> Kernel<T> for Exp<'_, T> {
        type Out = ();

        #[inline(always)]
        fn run<S: Simd<T>>(self, s: S) {
            for part in self.0.chunks_mut(S::LANES) {
                // SAFETY: exactly part.len() elements are read and written.
                unsafe {
                    let v = s.load_first(part.as_ptr(), part.len());
                    s.store_first(part.as_mut_ptr(), s.exp(v), part.len());
                }
            }
        }
    }

    fn ulp_distance(a: f32, b: f32) -> u32 {
        a.to_bits().abs_diff(b.to_bits())
    }

    #[test]
    fn exp_f32_is_within_two_ulp_everywhere() {
        let mut worst = 0;
        let mut x = -110.0f32;
        let mut batch = Vec::new();
        while x < 95.0 {
            batch.push(x);
            x += 0.000_97;
        }
        let mut vector = batch.clone();
        f32::dispatch(Exp(&mut vector));
        let mut portable = batch.clone();
        Exp(&mut portable).run(Portable);
        for ((&x, &v), &p) in batch.iter().zip(&vector).zip(&portable) {
            let exact = f64::from(x).exp() as f32;
            for y in [v, p, x.exp_fast()] {
                let d = ulp_distance(y, exact);
                assert!(d <= 2, "exp({x}) = {y}, exact {exact}, {d} ulp");
                worst = worst.max(d);
            }
        }
        println!("worst {worst} ulp");
    }

    #[test]
    fn exponential_functions_keep_their_limits() {
        let mut v = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 0.0, -0.0, 88.7, -103.9];
        f32::dispatch(Exp(&mut v));
        assert_eq!(v[0], f32::INFINITY);
        assert_eq!(v[1], 0.0);
        assert!(v[2].is_nan());
        assert_eq!((v[3], v[4], v[5], v[6]), (f32::INFINITY, 0.0, 1.0, 1.0));
        assert!(v[7].is_finite() && v[8] > 0.0);
        for (x, y, g) in [(f32::INFINITY, f32::INFINITY, 1.0), (f32::NEG_INFINITY, 0.0, 0.0), (0.0, 0.0, 0.5)] {
            assert_eq!(silu(x), y, "silu({x})");
            assert_eq!(silu_grad(x), g);
        }
        assert!(silu(f64::NAN).is_nan() && silu_grad(f32::NAN).is_nan());
        assert!((sigmoid(-800.0f64)).abs() < 1e-300);
    }
}
