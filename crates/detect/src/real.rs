//! The two float types everything here is written for, with the exponentials that dominate the loss.

use num_traits::Float;

/// `f32` or `f64`. Training runs in `f32`; `f64` serves tests and exact comparisons.
pub trait Real: Float + Default + std::fmt::Debug + Send + Sync + 'static {
    /// The constant rounded to this type.
    fn of(value: f64) -> Self;
    /// This value as `f64` (exact).
    fn wide(self) -> f64;
    /// exp(x) for x <= 0, relative error below 3 ulp; NaN stays NaN. The `f32` version is branch-free
    /// so that loops over it vectorise, and never goes below the smallest normal number.
    fn exp_nonpositive(self) -> Self;
    /// ln(1 + e) for 0 <= e <= 1, with full relative precision near 0.
    fn ln_1p_unit(self) -> Self;

    /// (ln(1 + exp(x)), sigmoid(x)) from one exponential, without overflow at either end.
    #[inline(always)]
    fn softplus_sigmoid(self) -> (Self, Self) {
        let one = Self::one();
        let positive = self > Self::zero();
        let e = (if positive { -self } else { self }).exp_nonpositive();
        let reciprocal = one / (one + e);
        let sigmoid = (if positive { one } else { e }) * reciprocal;
        let ramp = if positive { self } else { Self::zero() };
        (ramp + e.ln_1p_unit(), sigmoid)
    }

    /// 1 / (1 + exp(-x)) without overflow.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let positive = self > Self::zero();
        let e = (if positive { -self } else { self }).exp_nonpositive();
        (if positive { Self::one() } else { e }) / (Self::one() + e)
    }
}

impl Real for f32 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self as f64
    }

    #[inline(always)]
    fn exp_nonpositive(self) -> Self {
        // exp(x) = 2^n exp(r) with n = round(x / ln 2): adding 1.5 * 2^23 rounds to an integer and leaves
        // n in the low bits. ln 2 is split so that n * LN2_HIGH is exact. |r| <= ln 2 / 2, where the
        // Taylor polynomial of degree 7 is exact to 5e-9.
        const ROUND: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
        let x = if self < -87.0 { -87.0 } else { self };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN2_HIGH) - n * LN2_LOW;
        let mut p = 1.0 / 5040.0;
        p = p * r + 1.0 / 720.0;
        p = p * r + 1.0 / 120.0;
        p = p * r + 1.0 / 24.0;
        p = p * r + 1.0 / 6.0;
        p = p * r + 0.5;
        let exp = p * (r * r) + r + 1.0;
        exp * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
    }

    #[inline(always)]
    fn ln_1p_unit(self) -> Self {
        // ln(1 + e) = 2 artanh(s), s = e / (2 + e) <= 1/3: the series to s^17 is exact to 2e-9.
        let s = self / (2.0 + self);
        let q = s * s;
        let mut p = 2.0 / 17.0;
        p = p * q + 2.0 / 15.0;
        p = p * q + 2.0 / 13.0;
        p = p * q + 2.0 / 11.0;
        p = p * q + 2.0 / 9.0;
        p = p * q + 2.0 / 7.0;
        p = p * q + 2.0 / 5.0;
        p = p * q + 2.0 / 3.0;
        p * (q * s) + 2.0 * s
    }
}

impl Real for f64 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn exp_nonpositive(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn ln_1p_unit(self) -> Self {
        self.ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_softplus_and_sigmoid_agree_with_f64_over_the_whole_range() {
        for i in -34_000..=34_000 {
            let x = i as f32 * 0.0025;
            let (softplus, sigmoid) = x.softplus_sigmoid();
            let (want_softplus, want_sigmoid) = (x as f64).softplus_sigmoid();
            assert!((softplus as f64 - want_softplus).abs() <= 4e-7 * want_softplus, "softplus({x}) = {softplus}");
            assert!((sigmoid as f64 - want_sigmoid).abs() <= 4e-7 * want_sigmoid, "sigmoid({x}) = {sigmoid}");
            assert!((x.sigmoid() as f64 - want_sigmoid).abs() <= 4e-7 * want_sigmoid, "sigmoid({x})");
        }
    }

    #[test]
    fn extreme_and_non_finite_logits_keep_their_meaning() {
        assert_eq!(f32::INFINITY.softplus_sigmoid(), (f32::INFINITY, 1.0));
        assert_eq!(1e30f32.softplus_sigmoid(), (1e30, 1.0));
        let (softplus, sigmoid) = f32::NEG_INFINITY.softplus_sigmoid();
        assert!(softplus < 1e-37 && sigmoid < 1e-37);
        assert!(f32::NAN.softplus_sigmoid().0.is_nan() && f32::NAN.softplus_sigmoid().1.is_nan());
        assert!(f32::NAN.sigmoid().is_nan());
        assert!(f32::NAN.exp_nonpositive().is_nan());
    }
}
