//! Vectors of [`Element`]s: one trait, an AVX2+FMA form for x86-64 found at run time, and a portable form.
//!
//! A [`Kernel`]'s `run` and everything it calls is `#[inline(always)]`, so that all of it is compiled inside
//! [`run_avx2`], the one function with the target features on.

use crate::element::Element;

/// Work that wants vectors; started by [`Element::dispatch`].
pub trait Kernel<T> {
    /// What the work returns.
    type Out;

    /// The work. Mark it `#[inline(always)]`.
    fn run<S: Simd<T>>(self, simd: S) -> Self::Out;
}

/// Vector operations. The value itself is the proof that the CPU has them.
pub trait Simd<T>: Copy + Send + Sync {
    /// A vector.
    type V: Copy;
    /// Elements of a vector; at most 8.
    const LANES: usize;

    /// Reads `LANES` elements.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` elements.
    unsafe fn load(self, p: *const T) -> Self::V;
    /// Writes `LANES` elements.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` elements.
    unsafe fn store(self, p: *mut T, v: Self::V);
    /// Reads the first `n <= LANES` elements, zero for the others.
    ///
    /// # Safety
    /// `p` must be readable for `n` elements.
    unsafe fn load_first(self, p: *const T, n: usize) -> Self::V;
    /// Writes the first `n <= LANES` elements only.
    ///
    /// # Safety
    /// `p` must be writable for `n` elements.
    unsafe fn store_first(self, p: *mut T, v: Self::V, n: usize);
    /// The same value in all lanes.
    fn splat(self, v: T) -> Self::V;
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a - b
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a / b
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// a * b + c, with one rounding where the CPU has it.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// x limited to low..=high; NaN stays NaN.
    fn clamp(self, x: Self::V, low: Self::V, high: Self::V) -> Self::V;
    /// e^x, see [`Element::exp_fast`].
    fn exp(self, x: Self::V) -> Self::V;
    /// Mask: a > b.
    fn greater(self, a: Self::V, b: Self::V) -> Self::V;
    /// Mask: a > b, or a is NaN.
    fn greater_or_nan(self, a: Self::V, b: Self::V) -> Self::V;
    /// a where the mask is set, else b.
    fn select(self, mask: Self::V, a: Self::V, b: Self::V) -> Self::V;
}

/// Plain arrays of four, which LLVM maps to whatever 128-bit vectors there are.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

/// Multiply and add; fused only where that is an instruction and not a library call.
#[inline(always)]
fn mul_add<T: Element>(a: T, b: T, c: T) -> T {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn map2<T: Element>(a: [T; 4], b: [T; 4], f: impl Fn(T, T) -> T) -> [T; 4] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl<T: Element> Simd<T> for Portable {
    type V = [T; 4];
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(self, p: *const T) -> [T; 4] {
        p.cast::<[T; 4]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T, v: [T; 4]) {
        p.cast::<[T; 4]>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const T, n: usize) -> [T; 4] {
        let mut v = [T::zero(); 4];
        for (i, e) in v.iter_mut().enumerate() {
            if i < n {
                *e = *p.add(i);
            }
        }
        v
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut T, v: [T; 4], n: usize) {
        for (i, e) in v.into_iter().enumerate() {
            if i < n {
                *p.add(i) = e;
            }
        }
    }
    #[inline(always)]
    fn splat(self, v: T) -> [T; 4] {
        [v; 4]
    }
    #[inline(always)]
    fn add(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: [T; 4], b: [T; 4], c: [T; 4]) -> [T; 4] {
        std::array::from_fn(|i| mul_add(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn clamp(self, x: [T; 4], low: [T; 4], high: [T; 4]) -> [T; 4] {
        std::array::from_fn(|i| {
            let v = if x[i] > high[i] { high[i] } else { x[i] };
            if v < low[i] { low[i] } else { v }
        })
    }
    #[inline(always)]
    fn exp(self, x: [T; 4]) -> [T; 4] {
        x.map(T::exp_fast)
    }
    #[inline(always)]
    fn greater(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| if a > b { T::one() } else { T::zero() })
    }
    #[inline(always)]
    fn greater_or_nan(self, a: [T; 4], b: [T; 4]) -> [T; 4] {
        map2(a, b, |a, b| if a > b || a.is_nan() { T::one() } else { T::zero() })
    }
    #[inline(always)]
    fn select(self, mask: [T; 4], a: [T; 4], b: [T; 4]) -> [T; 4] {
        std::array::from_fn(|i| if mask[i] != T::zero() { a[i] } else { b[i] })
    }
}

#[cfg(target_arch = "x86_64")]
pub use avx2::{Avx2, run_avx2};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::{Kernel, Simd};
    use crate::element::exp_const;

    /// 256-bit vectors with FMA. Exists only where the CPU has both.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    impl Avx2 {
        /// The proof, if this CPU gives it. The answer is cached by the standard library: one load.
        #[inline(always)]
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
        }
    }

    /// Runs a kernel compiled for AVX2 and FMA.
    #[inline(always)]
    pub fn run_avx2<T, K: Kernel<T>>(simd: Avx2, kernel: K) -> K::Out
    where
        Avx2: Simd<T>,
    {
        #[target_feature(enable = "avx2,fma")]
        fn inner<T, K: Kernel<T>>(simd: Avx2, kernel: K) -> K::Out
        where
            Avx2: Simd<T>,
        {
            kernel.run(simd)
        }
        // SAFETY: an Avx2 value proves that the CPU has AVX2 and FMA.
        unsafe { inner(simd, kernel) }
    }

    /// Masks for the first n lanes: read from index lanes - n.
    static MASK32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    static MASK64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

    macro_rules! common {
        ($t:ty, $v:ty, $lanes:expr, $mask:ident, $load:ident, $store:ident, $maskload:ident, $maskstore:ident, $set1:ident,
         $add:ident, $sub:ident, $mul:ident, $div:ident, $fma:ident, $max:ident, $min:ident, $cmp:ident, $or:ident,
         $blend:ident) => {
            type V = $v;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn load(self, p: *const $t) -> $v {
                $load(p)
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $t, v: $v) {
                $store(p, v)
            }
            #[inline(always)]
            unsafe fn load_first(self, p: *const $t, n: usize) -> $v {
                debug_assert!(n <= $lanes);
                $maskload(p, _mm256_loadu_si256($mask.as_ptr().add($lanes - n).cast()))
            }
            #[inline(always)]
            unsafe fn store_first(self, p: *mut $t, v: $v, n: usize) {
                debug_assert!(n <= $lanes);
                $maskstore(p, _mm256_loadu_si256($mask.as_ptr().add($lanes - n).cast()), v)
            }
            #[inline(always)]
            fn splat(self, v: $t) -> $v {
                // SAFETY: self proves AVX2 and FMA (here and below).
                unsafe { $set1(v) }
            }
            #[inline(always)]
            fn add(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $add(a, b) }
            }
            #[inline(always)]
            fn sub(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $mul(a, b) }
            }
            #[inline(always)]
            fn div(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $div(a, b) }
            }
            #[inline(always)]
            fn fma(self, a: $v, b: $v, c: $v) -> $v {
                // SAFETY: self proves FMA.
                unsafe { $fma(a, b, c) }
            }
            #[inline(always)]
            fn clamp(self, x: $v, low: $v, high: $v) -> $v {
                // SAFETY: self proves AVX2. min and max return their second operand when one is NaN.
                unsafe { $max(low, $min(high, x)) }
            }
            #[inline(always)]
            fn greater(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $cmp::<_CMP_GT_OQ>(a, b) }
            }
            #[inline(always)]
            fn greater_or_nan(self, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $or($cmp::<_CMP_GT_OQ>(a, b), $cmp::<_CMP_UNORD_Q>(a, a)) }
            }
            #[inline(always)]
            fn select(self, mask: $v, a: $v, b: $v) -> $v {
                // SAFETY: self proves AVX2.
                unsafe { $blend(b, a, mask) }
            }
        };
    }

    impl Simd<f32> for Avx2 {
        common!(
            f32,
            __m256,
            8,
            MASK32,
            _mm256_loadu_ps,
            _mm256_storeu_ps,
            _mm256_maskload_ps,
            _mm256_maskstore_ps,
            _mm256_set1_ps,
            _mm256_add_ps,
            _mm256_sub_ps,
            _mm256_mul_ps,
            _mm256_div_ps,
            _mm256_fmadd_ps,
            _mm256_max_ps,
            _mm256_min_ps,
            _mm256_cmp_ps,
            _mm256_or_ps,
            _mm256_blendv_ps
        );

        #[inline(always)]
        fn exp(self, x: __m256) -> __m256 {
            use exp_const::*;
            // SAFETY: self proves AVX2 and FMA. The steps are the scalar form's.
            unsafe {
                let x = _mm256_max_ps(_mm256_set1_ps(LOW), _mm256_min_ps(_mm256_set1_ps(HIGH), x));
                let t = _mm256_fmadd_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E), _mm256_set1_ps(MAGIC));
                let n = _mm256_sub_ps(t, _mm256_set1_ps(MAGIC));
                let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_HIGH), x);
                let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN2_LOW), r);
                let mut p = _mm256_set1_ps(POLY[0]);
                for i in 1..POLY.len() {
                    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(POLY[i]));
                }
                let y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0));
                let i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_castps_si256(_mm256_set1_ps(MAGIC)));
                let half = _mm256_srai_epi32::<1>(i);
                let bias = _mm256_set1_epi32(127);
                let a = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
                let b = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias));
                _mm256_mul_ps(_mm256_mul_ps(y, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b))
            }
        }
    }

    impl Simd<f64> for Avx2 {
        common!(
            f64,
            __m256d,
            4,
            MASK64,
            _mm256_loadu_pd,
            _mm256_storeu_pd,
            _mm256_maskload_pd,
            _mm256_maskstore_pd,
            _mm256_set1_pd,
            _mm256_add_pd,
            _mm256_sub_pd,
            _mm256_mul_pd,
            _mm256_div_pd,
            _mm256_fmadd_pd,
            _mm256_max_pd,
            _mm256_min_pd,
            _mm256_cmp_pd,
            _mm256_or_pd,
            _mm256_blendv_pd
        );

        #[inline(always)]
        fn exp(self, x: __m256d) -> __m256d {
            let mut lanes = [0.0f64; 4];
            // SAFETY: self proves AVX2; `lanes` has four elements.
            unsafe {
                self.store(lanes.as_mut_ptr(), x);
                self.load(lanes.map(f64::exp).as_ptr())
            }
        }
    }
}
