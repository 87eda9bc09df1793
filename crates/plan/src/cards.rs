//! NVIDIA cards from 8 to 192 GB: their memory and rates, as data sheets and drivers state them. None of it is measured
//! here.

/// A card's memory and rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Card {
    /// As `--gpu` takes it.
    pub name: &'static str,
    /// Memory that the driver shows of an idle card, in MiB. Less than what is sold where a part corrects errors.
    pub mebibytes: u64,
    /// Memory, in GB/s.
    pub bandwidth: f64,
    /// Dense products of half precision added in float32, in TFLOP/s.
    pub half: f64,
    /// Dense products of TF32, in TFLOP/s.
    pub tf32: f64,
    /// Float32 without tensor cores, in TFLOP/s.
    pub single: f64,
    /// Second-level cache, in MB.
    pub l2: f64,
}

/// Shorthand for the rows below.
const fn card(name: &'static str, mebibytes: u64, bandwidth: f64, [half, tf32, single]: [f64; 3], l2: f64) -> Card {
    Card { name, mebibytes, bandwidth, half, tf32, single, l2 }
}

/// All known cards, by memory. Consumer cards multiply half precision at half their advertised rate when sums are float32.
pub const CARDS: &[Card] = &[
    card("RTX 4060", 8_188, 272.0, [30.2, 15.1, 15.1], 24.0),
    card("RTX 3060", 12_288, 360.0, [25.5, 12.7, 12.7], 3.0),
    card("RTX 4070", 12_282, 504.0, [58.3, 29.1, 29.1], 36.0),
    card("RTX 4080", 16_376, 717.0, [97.5, 48.7, 48.7], 64.0),
    card("A10", 23_028, 600.0, [125.0, 62.5, 31.2], 6.0),
    card("L4", 23_034, 300.0, [121.0, 60.0, 30.3], 48.0),
    card("RTX 3090", 24_576, 936.0, [71.0, 35.6, 35.6], 6.0),
    card("RTX 4090", 24_564, 1_008.0, [165.2, 82.6, 82.6], 72.0),
    card("RTX 5090", 32_607, 1_792.0, [209.5, 104.8, 104.8], 96.0),
    card("A100 40GB", 40_960, 1_555.0, [312.0, 156.0, 19.5], 40.0),
    card("L40S", 46_068, 864.0, [362.0, 183.0, 91.6], 96.0),
    card("RTX A6000", 49_140, 768.0, [154.8, 77.4, 38.7], 6.0),
    card("A100 80GB", 81_920, 2_039.0, [312.0, 156.0, 19.5], 40.0),
    card("H100", 81_559, 3_350.0, [989.0, 495.0, 67.0], 50.0),
    card("H200", 143_771, 4_800.0, [989.0, 495.0, 67.0], 50.0),
    card("B200", 183_359, 8_000.0, [2_250.0, 1_125.0, 75.0], 126.0),
];

impl Card {
    /// Bytes of memory.
    pub fn memory(&self) -> u64 {
        self.mebibytes << 20
    }

    /// The card of a name: case, blanks, `NVIDIA` and `GeForce` do not matter, nor does `RTX` before a number.
    ///
    /// # Errors
    /// Names that look like it, the nearest first; none where nothing does.
    pub fn find(name: &str) -> Result<&'static Card, Vec<&'static str>> {
        let typed = key(name);
        if let Some(card) = CARDS.iter().find(|c| key(c.name) == typed) {
            return Ok(card);
        }
        let mut near: Vec<(usize, &'static str)> = CARDS
            .iter()
            .map(|c| {
                let known = key(c.name);
                let part = !typed.is_empty() && (known.contains(&typed) || typed.contains(&known));
                (if part { 0 } else { distance(&known, &typed) }, c.name)
            })
            .filter(|(far, _)| *far <= 2)
            .collect();
        near.sort_unstable();
        Err(near.into_iter().map(|n| n.1).collect())
    }
}

/// What counts of a name.
fn key(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|w| !["nvidia", "geforce", "rtx", "sxm", "gb", "pcie"].contains(w))
        .collect::<String>()
        .replace("rtx", "")
        .replace("gb", "")
}

/// Letters to insert, leave out or change (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_however_they_are_written() {
        for (typed, name) in [
            ("RTX 4090", "RTX 4090"),
            ("rtx4090", "RTX 4090"),
            ("4090", "RTX 4090"),
            ("NVIDIA GeForce RTX 3060", "RTX 3060"),
            ("a100-40gb", "A100 40GB"),
            ("A100 80", "A100 80GB"),
            ("A6000", "RTX A6000"),
            ("NVIDIA H200", "H200"),
        ] {
            assert_eq!(Card::find(typed).map(|c| c.name), Ok(name), "{typed}");
        }
    }

    #[test]
    fn an_unknown_card_gets_those_that_look_like_it() {
        let near = Card::find("A100").unwrap_err();
        assert!(near.starts_with(&["A10", "A100 40GB", "A100 80GB"]), "{near:?}");
        assert!(Card::find("RTX 4099").unwrap_err().contains(&"RTX 4090"));
        assert_eq!(Card::find("Radeon VII"), Err(Vec::new()));
        assert!(Card::find("").is_err());
    }

    #[test]
    fn no_two_cards_share_a_name_and_all_rates_are_ordered() {
        for (i, card) in CARDS.iter().enumerate() {
            assert!(CARDS[i + 1..].iter().all(|c| key(c.name) != key(card.name)), "{}", card.name);
            assert!(card.half > card.tf32 && card.tf32 >= card.single, "{}", card.name);
            assert!((8_000..200_000).contains(&card.mebibytes), "{}", card.name);
        }
    }
}
