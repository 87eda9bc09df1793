//! Fixture access for tests: the numeric expectations under `tests/parity` and the rule that fills
//! weights and pictures from a hash (section 1 of the README there).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Seed of every weight filled by the rule.
pub const FILL_SEED: u64 = 1_592_590_337;
/// Seed of every picture made by the rule.
pub const IMAGE_SEED: u64 = 443_416_577;
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Path of a file below `tests/parity`. A few large ones are not in the repository: ask [`has`] for them first.
///
/// Test binaries also run where they were not built, as on a machine with a GPU: there the current folder and those
/// above it are looked through.
pub fn fixture(name: &str) -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = std::env::current_dir().unwrap_or_default();
    let checkouts = std::iter::once(built.as_path()).chain(here.ancestors());
    let candidates = checkouts.flat_map(|c| ["tests/parity", "../shared/parity", "shared/parity"].map(|f| c.join(f)));
    let mut candidates = candidates.map(|folder| folder.join(name));
    candidates.find(|path| path.exists()).unwrap_or_else(|| built.join("tests/parity").join(name))
}

/// Whether a fixture is there; prints why a test is skipped where it is not.
pub fn has(name: &str) -> bool {
    let there = fixture(name).exists();
    if !there {
        eprintln!("skipped: the large fixture {name} is not in the repository and not beside this checkout");
    }
    there
}

/// The data folder beside a development checkout, or `None` (after printing why) where it is absent.
pub fn shared_data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {name} is not beside this checkout");
    None
}

/// Parses a JSON fixture.
pub fn json(name: &str) -> serde_json::Value {
    let path = fixture(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// One array of a safetensors fixture; integers and bytes are widened to f64 without loss.
#[derive(Clone, Debug)]
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    /// The values rounded to f32 (exact for arrays stored as f32).
    pub fn f32(&self) -> Vec<f32> {
        self.data.iter().map(|&v| v as f32).collect()
    }
}

/// Reads every array of a safetensors fixture.
pub fn arrays(name: &str) -> BTreeMap<String, Array> {
    use safetensors::Dtype;
    let path = fixture(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.tensors()
        .into_iter()
        .map(|(name, view)| {
            let raw = view.data();
            let data = match view.dtype() {
                Dtype::F32 => raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b) as f64).collect(),
                Dtype::F64 => raw.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
                Dtype::I32 => raw.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b) as f64).collect(),
                Dtype::I64 => raw.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f64).collect(),
                Dtype::U8 | Dtype::BOOL => raw.iter().map(|&b| b as f64).collect(),
                other => panic!("{name}: fixture type {other:?} is not read here"),
            };
            (name, Array { shape: view.shape().to_vec(), data })
        })
        .collect()
}

/// FNV-1a over the UTF-8 bytes of a name.
pub fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |h, c| (h ^ c as u64).wrapping_mul(0x100_0000_01B3))
}

/// One splitmix64 step.
pub fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn z(name: u64, seed: u64, i: u64) -> u64 {
    mix((name ^ seed).wrapping_add(i.wrapping_mul(GOLDEN)))
}

/// `v` of the rule for element `i` of the tensor `name`: in [-1, 1), exact in f32.
pub fn fill_v(name: &str, i: usize) -> f64 {
    let u = (z(fnv(name), FILL_SEED, i as u64) >> 40) as f64 / (1u64 << 24) as f64;
    2.0 * u - 1.0
}

/// Values of one tensor by the fill rule, row-major in the reference's own layout (convolution
/// weights are (out, in/groups, kh, kw)). `gain` is the tensor's entry in the gains table.
pub fn fill(name: &str, shape: &[usize], gain: Option<f64>, class_bias: impl Fn(&str) -> Option<f64>) -> Vec<f32> {
    let count: usize = shape.iter().product();
    let v = |i| fill_v(name, i);
    let at: Box<dyn Fn(usize) -> f64> = if name.contains(".dfl") {
        Box::new(|i| i as f64)
    } else if name.ends_with("running_mean") {
        Box::new(|i| 0.1 * v(i))
    } else if name.ends_with("running_var") {
        Box::new(|i| 1.0 + 0.3 * v(i))
    } else if name.ends_with("num_batches_tracked") {
        Box::new(|_| 0.0)
    } else if name.ends_with("bn.weight") {
        if is_residual_end(name) { Box::new(|i| 0.15 + 0.03 * v(i)) } else { Box::new(|i| 0.5 + 0.1 * v(i)) }
    } else if name.ends_with("bn.bias") {
        Box::new(|i| 0.1 * v(i))
    } else if name.ends_with("bias") {
        let base = class_bias(name).unwrap_or(0.0);
        Box::new(move |i| base + 0.1 * v(i))
    } else {
        let fan_in: usize = shape[1..].iter().product();
        let scale = (3.0 / fan_in as f64).sqrt() * gain.unwrap_or_else(|| panic!("{name} has no gain"));
        Box::new(move |i| v(i) * scale)
    };
    (0..count).map(|i| at(i) as f32).collect()
}

/// True for names that match `\.m\.[0-9]+\.cv2\.bn\.weight$`, the end of a residual branch.
fn is_residual_end(name: &str) -> bool {
    let Some(head) = name.strip_suffix(".cv2.bn.weight") else { return false };
    let Some((head, number)) = head.rsplit_once('.') else { return false };
    !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && head.ends_with(".m")
}

/// Pictures by the rule: u8, (batch, 3, height, width), channels R, G, B.
pub fn pictures(name: &str, batch: usize, height: usize, width: usize) -> Vec<u8> {
    let (block, fine) = (fnv(&format!("{name}.block")), fnv(&format!("{name}.fine")));
    let (bh, bw) = (height.div_ceil(16), width.div_ceil(16));
    let mut out = Vec::with_capacity(batch * 3 * height * width);
    for plane in 0..batch * 3 {
        for y in 0..height {
            for x in 0..width {
                let b = z(block, IMAGE_SEED, ((plane * bh + y / 16) * bw + x / 16) as u64) >> 56;
                let f = z(fine, IMAGE_SEED, ((plane * height + y) * width + x) as u64) >> 56;
                out.push(((3 * b + f) / 4) as u8);
            }
        }
    }
    out
}

/// Fails with both values, the index and the bound when `|got - want| > abs + rel * |want|` anywhere.
pub fn assert_close(what: &str, got: &[f64], want: &[f64], abs: f64, rel: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let mut worst = (0.0, 0);
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let excess = if g == w { 0.0 } else { (g - w).abs() / (abs + rel * w.abs()) };
        if excess.is_nan() || excess > worst.0 {
            worst = (excess, i);
        }
    }
    let (excess, i) = worst;
    assert!(excess <= 1.0, "{what}[{i}]: got {}, want {} ({excess:.2} times the bound)", got[i], want[i]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_rule_has_the_published_check_values() {
        assert_eq!(fnv(""), 14695981039346656037);
        assert_eq!(fnv("a"), 12638187200555641996);
        assert_eq!(mix(0), 16294208416658607535);
        let first = fill("model.0.conv.weight", &[16, 3, 3, 3], Some(2.3), |_| None);
        assert_eq!(first[0].to_bits(), 0x3deca967);
        assert_eq!(first[431].to_bits(), 0x3ee34fa1);
        let var = fill("model.0.bn.running_var", &[16], None, |_| None);
        assert_eq!(var[15].to_bits(), 0x3f899a35);
    }

    #[test]
    fn picture_rule_has_the_published_check_values() {
        let p = pictures("image", 2, 128, 160);
        let at = |b: usize, c: usize, y: usize, x: usize| p[((b * 3 + c) * 128 + y) * 160 + x];
        assert_eq!((at(0, 0, 0, 0), at(0, 1, 17, 31), at(1, 2, 127, 159), at(1, 0, 64, 80)), (233, 130, 53, 97));
        assert_eq!(p.iter().map(|&v| v as u64).sum::<u64>(), 15689153);
    }
}
