//! The number types of weight files, little-endian, and what they are in f32.

use half::{bf16, f16};

/// A type of stored numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl Number {
    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Number::Bool | Number::U8 | Number::I8 => 1,
            Number::I16 | Number::F16 | Number::BF16 => 2,
            Number::I32 | Number::F32 => 4,
            Number::I64 | Number::F64 => 8,
        }
    }

    /// Every whole number of `raw`, rounded to the nearest f32.
    pub fn widen(self, raw: &[u8]) -> Vec<f32> {
        fn all<const N: usize>(raw: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
            raw.as_chunks::<N>().0.iter().map(|b| value(*b)).collect()
        }
        match self {
            Number::Bool => all(raw, |[b]| f32::from(u8::from(b != 0))),
            Number::U8 => all(raw, |[b]| f32::from(b)),
            Number::I8 => all(raw, |b| f32::from(i8::from_le_bytes(b))),
            Number::I16 => all(raw, |b| f32::from(i16::from_le_bytes(b))),
            Number::I32 => all(raw, |b| i32::from_le_bytes(b) as f32),
            Number::I64 => all(raw, |b| i64::from_le_bytes(b) as f32),
            Number::F16 => all(raw, |b| f16::from_le_bytes(b).to_f32()),
            Number::BF16 => all(raw, |b| bf16::from_le_bytes(b).to_f32()),
            Number::F32 => all(raw, f32::from_le_bytes),
            Number::F64 => all(raw, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Number;

    #[test]
    fn half_precision_numbers_are_read_exactly() {
        let cases =
            [(0x3C00u16, 1.0), (0xC000, -2.0), (0x7BFF, 65504.0), (0x0400, 6.103_515_6e-5), (0x0001, 5.960_464_5e-8)];
        let half = |bits: u16| Number::F16.widen(&bits.to_le_bytes())[0];
        for (bits, want) in cases {
            assert_eq!(half(bits), want, "{bits:#06x}");
        }
        assert_eq!(half(0x8000).to_bits(), (-0.0f32).to_bits());
        assert!(half(0x7E00).is_nan());
        assert_eq!(half(0xFC00), f32::NEG_INFINITY);
    }

    #[test]
    fn every_type_is_widened_by_its_size() {
        let raw = [0x80, 0x3F, 0, 0, 0, 0, 0, 0xC0];
        let cases: [(Number, &[f32]); 8] = [
            (Number::Bool, &[1., 1., 0., 0., 0., 0., 0., 1.]),
            (Number::U8, &[128., 63., 0., 0., 0., 0., 0., 192.]),
            (Number::I8, &[-128., 63., 0., 0., 0., 0., 0., -64.]),
            (Number::I16, &[16256., 0., 0., -16384.]),
            (Number::I32, &[16256., -1_073_741_824.]),
            (Number::BF16, &[1., 0., 0., -2.]),
            (Number::F32, &[f32::from_bits(0x3F80), -2.]),
            (Number::F64, &[-2.]),
        ];
        for (number, want) in cases {
            assert_eq!(number.widen(&raw), want, "{number:?}");
            assert_eq!(number.widen(&raw).len() * number.size(), raw.len());
        }
        assert_eq!(Number::I64.widen(&7i64.to_le_bytes()), [7.0]);
    }
}
