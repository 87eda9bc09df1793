//! What the tests of kernels share: seeded values, tensors on the card with poison around them, and errors.
#![allow(dead_code, reason = "each test file uses a part")]

use cuda::{Buffer, Format, Gpu, View};
use half::{bf16, f16};

pub const FORMATS: [Format; 3] = [Format::F32, Format::Bf16, Format::F16];

/// Logical channels that the tests go through: physical ones are the next multiple of 8.
pub const CHANNELS: [usize; 6] = [3, 20, 60, 66, 90, 180];

/// Pictures (n, h, w): one pixel, odd extents, one row, more than one block of pixels.
pub const PICTURES: [[usize; 3]; 5] = [[1, 1, 1], [1, 5, 7], [3, 13, 9], [2, 1, 33], [2, 41, 37]];

/// Those, and one of more pixels than the blocks of a sum have at once, and no multiple of them.
pub fn pictures() -> Vec<[usize; 3]> {
    PICTURES.into_iter().chain([[3, 83, 97]]).collect()
}

/// The first card, or `None` after saying why the test is skipped.
pub fn gpu() -> Option<Gpu> {
    if Gpu::count() == 0 {
        eprintln!("skipped: no NVIDIA GPU");
        return None;
    }
    Some(Gpu::open(0).unwrap())
}

/// Random numbers from a seed that is printed.
pub struct Random(u64);

impl Random {
    /// Seeded from the clock, or from `SEED` to repeat a failure.
    pub fn new() -> Self {
        let clock =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(clock);
        eprintln!("SEED={seed}");
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    pub fn flag(&mut self) -> bool {
        self.bits() & 1 == 1
    }

    /// In [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// In [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// About normal: mean 0, variance 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }
}

/// A value as a storage type holds it.
pub fn rounded(format: Format, v: f64) -> f64 {
    match format {
        Format::F32 => f64::from(v as f32),
        Format::Bf16 => f64::from(bf16::from_f32(v as f32)),
        Format::F16 => f64::from(f16::from_f32(v as f32)),
    }
}

/// A value's bytes in a storage type.
pub fn encode(format: Format, v: f64) -> Vec<u8> {
    match format {
        Format::F32 => (v as f32).to_le_bytes().to_vec(),
        Format::Bf16 => bf16::from_f32(v as f32).to_le_bytes().to_vec(),
        Format::F16 => f16::from_f32(v as f32).to_le_bytes().to_vec(),
    }
}

/// What such bytes hold.
pub fn decode(format: Format, b: &[u8]) -> f64 {
    match format {
        Format::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Format::Bf16 => f64::from(bf16::from_le_bytes([b[0], b[1]])),
        Format::F16 => f64::from(f16::from_le_bytes([b[0], b[1]])),
    }
}

/// What untouched memory holds: NaN in every type.
const POISON: u8 = 0xFF;

/// A tensor on the card: a channel range of a wider buffer where it is strided, poison around it.
pub struct Tensor {
    buffer: Buffer,
    pub view: View,
    /// Channels that are not padding.
    pub logical: usize,
    /// First channel of the range.
    start: usize,
}

impl Tensor {
    /// Poison everywhere.
    pub fn poison(gpu: &Gpu, format: Format, [n, h, w]: [usize; 3], logical: usize, strided: bool) -> Self {
        let c = logical.next_multiple_of(8);
        let (start, pitch) = if strided { (16, c + 40) } else { (0, c) };
        let bytes = n * h * w * pitch * format.bytes();
        let mut buffer = gpu.allocate(bytes).unwrap();
        buffer.write(0, &vec![POISON; bytes]).unwrap();
        let at = buffer.address() + (start * format.bytes()) as u64;
        let view = View { at, format, n, h, w, c, pitch };
        Self { buffer, view, logical, start }
    }

    /// Values by `f` in the logical channels, zero in the padding. Returns them, physical channels and packed.
    pub fn filled(
        gpu: &Gpu,
        format: Format,
        picture: [usize; 3],
        logical: usize,
        strided: bool,
        mut f: impl FnMut() -> f64,
    ) -> (Self, Vec<f64>) {
        let mut tensor = Self::poison(gpu, format, picture, logical, strided);
        let c = tensor.view.c;
        let count = tensor.view.pixels() * c;
        let values: Vec<f64> = (0..count).map(|i| if i % c < logical { rounded(format, f()) } else { 0.0 }).collect();
        tensor.write(&values);
        (tensor, values)
    }

    /// Overwrites the range, physical channels and packed.
    pub fn write(&mut self, values: &[f64]) {
        let View { format, c, pitch, .. } = self.view;
        let mut bytes: Vec<u8> = self.buffer.read(0, self.buffer.bytes()).unwrap();
        for (i, &v) in values.iter().enumerate() {
            let at = (i / c * pitch + self.start + i % c) * format.bytes();
            bytes[at..at + format.bytes()].copy_from_slice(&encode(format, v));
        }
        self.buffer.write(0, &bytes).unwrap();
    }

    /// The range, physical channels and packed. Fails where poison around it was touched or padding is not zero.
    pub fn read(&self) -> Vec<f64> {
        let View { format, c, pitch, .. } = self.view;
        let bytes: Vec<u8> = self.buffer.read(0, self.buffer.bytes()).unwrap();
        let mut values = Vec::new();
        for (i, element) in bytes.chunks_exact(format.bytes()).enumerate() {
            let (pixel, channel) = (i / pitch, i % pitch);
            if channel < self.start || channel >= self.start + c {
                assert!(element.iter().all(|&b| b == POISON), "pixel {pixel}, element {channel} beside the range");
                continue;
            }
            let value = decode(format, element);
            let padding = channel - self.start >= self.logical;
            assert!(!padding || value == 0.0, "padding of pixel {pixel} is {value}");
            values.push(value);
        }
        values
    }
}

/// A float32 vector on the card.
pub struct Vector(pub Buffer);

impl Vector {
    pub fn new(gpu: &Gpu, values: &[f64]) -> Self {
        let values: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        let mut buffer = gpu.allocate(values.len() * 4).unwrap();
        buffer.write(0, &values).unwrap();
        Self(buffer)
    }

    pub fn poison(gpu: &Gpu, len: usize) -> Self {
        Self::new(gpu, &vec![f64::NAN; len])
    }

    pub fn at(&self) -> u64 {
        self.0.address()
    }

    pub fn read(&self) -> Vec<f64> {
        self.0.read::<f32>(0, self.0.bytes() / 4).unwrap().into_iter().map(f64::from).collect()
    }
}

/// Poisoned scratch.
pub fn scratch(gpu: &Gpu, bytes: usize) -> Buffer {
    let mut buffer = gpu.allocate(bytes).unwrap();
    buffer.write(0, &vec![POISON; bytes]).unwrap();
    buffer
}

/// Values that a storage type holds, float32 vectors included.
pub fn values(len: usize, logical: usize, mut f: impl FnMut() -> f64) -> Vec<f64> {
    (0..len).map(|i| if i < logical { f64::from(f() as f32) } else { 0.0 }).collect()
}

/// Relative error in the Euclidean norm.
pub fn error(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let difference: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    let norm: f64 = want.iter().map(|&w| square(w)).sum();
    if difference == 0.0 { 0.0 } else { (difference / norm.max(1e-30)).sqrt() }
}

/// Bound of a result that is rounded once to its type: half a unit in the last place of a half type, at its worst.
pub fn bound(format: Format) -> f64 {
    match format {
        Format::F32 => 4e-6,
        Format::Bf16 => 4.1e-3,
        Format::F16 => 5.1e-4,
    }
}

/// Fails where the error is above the bound, or is not a number.
#[track_caller]
pub fn assert_near(what: &str, got: &[f64], want: &[f64], bound: f64) {
    let e = error(got, want);
    assert!(e <= bound, "{what}: relative error {e:.3e} above {bound:.1e}");
}
