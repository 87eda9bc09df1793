//! Numbers as C's `printf` writes them with `%.{precision}g`, which the field's result files use.

/// `value` as `%.{precision}g`: `precision` significant digits (0 counts as 1), scientific when the exponent is below -4 or not below the
/// precision, without trailing zeros. Not-a-number is `nan` whatever its sign; infinities are `inf` and `-inf`.
pub fn format_g(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let precision = precision.max(1);
    // The exponent is that of the rounded number (9.9999e5 with three digits is 1e+06), hence formatted first.
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= i32::try_from(precision).unwrap_or(i32::MAX) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.unsigned_abs());
    }
    // Not negative: the exponent is below the precision.
    let decimals = (precision as i64 - 1 - i64::from(exponent)) as usize;
    trim_zeros(&format!("{value:.decimals$}")).to_owned()
}

fn trim_zeros(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

/// `value` rounded to `decimals` places, ties by its exact decimal expansion to even (what Python's `round` gives).
pub fn round_to(value: f64, decimals: usize) -> f64 {
    format!("{value:.decimals$}").parse().unwrap_or(value)
}
