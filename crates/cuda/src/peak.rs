//! Peak rates of cards as NVIDIA's data sheets state them.

use graph::Precision;

/// TFLOP/s of dense products: half precision with float32 sums, TF32, and float32 without tensor cores.
struct Rates {
    /// All of these are words of the card's name.
    words: &'static [&'static str],
    half: f64,
    tf32: f64,
    single: f64,
}

/// A card with more words before those with fewer.
const RATES: &[Rates] = &[
    Rates { words: &["H200", "NVL"], half: 835.5, tf32: 417.5, single: 60.0 },
    Rates { words: &["H100", "NVL"], half: 835.5, tf32: 417.5, single: 60.0 },
    Rates { words: &["H100", "PCIe"], half: 756.0, tf32: 378.0, single: 51.0 },
    Rates { words: &["H200"], half: 989.5, tf32: 494.5, single: 67.0 },
    Rates { words: &["H100"], half: 989.5, tf32: 494.5, single: 67.0 },
    Rates { words: &["A100"], half: 312.0, tf32: 156.0, single: 19.5 },
    Rates { words: &["L40S"], half: 362.0, tf32: 183.0, single: 91.6 },
    Rates { words: &["L4"], half: 121.0, tf32: 60.0, single: 30.3 },
    Rates { words: &["A10"], half: 125.0, tf32: 62.5, single: 31.2 },
];

/// Floating-point operations a second that a card of this name can do at most on dense operands: its nominal rate,
/// which [`crate::Peaks`], as measured, does not reach. `None` for cards that are not known and for slices of a card.
pub fn dense_peak(card: &str, precision: Precision, tf32: bool) -> Option<f64> {
    let words: Vec<&str> = card.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    if words.contains(&"MIG") {
        return None;
    }
    let rates = RATES.iter().find(|rates| rates.words.iter().all(|word| words.contains(word)))?;
    let tera = match precision {
        Precision::F32 if tf32 => rates.tf32,
        Precision::F32 => rates.single,
        _ => rates.half,
    };
    Some(1e12 * tera)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_whole_words_of_their_names() {
        let half = |card| dense_peak(card, Precision::BF16, false);
        assert_eq!(half("NVIDIA H200"), Some(989.5e12));
        assert_eq!(half("NVIDIA H200 NVL"), Some(835.5e12));
        assert_eq!(half("NVIDIA H100 80GB HBM3"), Some(989.5e12));
        assert_eq!(half("NVIDIA H100 PCIe"), Some(756e12));
        assert_eq!(half("NVIDIA A100-SXM4-80GB"), Some(312e12));
        assert_eq!(half("NVIDIA L40S"), Some(362e12));
        assert_eq!(half("NVIDIA L4"), Some(121e12));
        for unknown in ["NVIDIA L40", "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""] {
            assert_eq!(half(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_precision() {
        let rates =
            [(Precision::F32, false), (Precision::F32, true), (Precision::BF16, false), (Precision::F16, false)]
                .map(|(precision, tf32)| dense_peak("NVIDIA A100-SXM4-40GB", precision, tf32));
        assert_eq!(rates, [Some(19.5e12), Some(156e12), Some(312e12), Some(312e12)]);
    }
}
