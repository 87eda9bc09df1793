//! Random tensors, tolerances, and activations in float64.

use cpu::element::Element;
use cpu::kernels::*;

/// A small generator (SplitMix64), so that the cases are the same everywhere.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    }
    pub fn values(&mut self, n: usize) -> Vec<f64> {
        // Through f32, so that both element types start from the same numbers.
        (0..n).map(|_| f64::from(self.value() as f32)).collect()
    }
}

pub const SEED: u64 = 20_240_917;
pub const CHANNELS: [usize; 7] = [3, 19, 20, 60, 66, 90, 180];
/// What the elements between channels and pitch hold: they must stay.
pub const GUARD: f64 = 77.0;

pub fn elements<T: Element>(v: &[f64]) -> Vec<T> {
    v.iter().map(|v| T::of_f64(*v)).collect()
}

/// A tensor with guard elements around each pixel's channels.
pub struct Tensor<T> {
    pub data: Vec<T>,
    pub shape: [usize; 4],
    pub pitch: usize,
    pub first: usize,
}

impl<T: Element> Tensor<T> {
    pub fn new(values: &[f64], shape: [usize; 4], first: usize, after: usize) -> Self {
        let pitch = first + shape[3] + after;
        let mut data = vec![T::of_f64(GUARD); shape[0] * shape[1] * shape[2] * pitch];
        for (p, row) in data.chunks_exact_mut(pitch).enumerate() {
            for c in 0..shape[3] {
                row[first + c] = T::of_f64(values[p * shape[3] + c]);
            }
        }
        Self { data, shape, pitch, first }
    }
    pub fn random_layout(values: &[f64], shape: [usize; 4], rng: &mut Rng) -> Self {
        let (first, after) = (rng.pick(&[0, 0, 3, 8]), rng.pick(&[0, 0, 1, 5]));
        Self::new(values, shape, first, after)
    }
    pub fn view(&self) -> View<'_, T> {
        View::new(&self.data[self.first..], self.shape, self.pitch)
    }
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(&mut self.data[self.first..], self.shape, self.pitch)
    }
    /// The values, after a look at the guards.
    pub fn values(&self) -> Vec<f64> {
        let mut out = Vec::new();
        for row in self.data.chunks_exact(self.pitch) {
            for (c, v) in row.iter().enumerate() {
                if (self.first..self.first + self.shape[3]).contains(&c) {
                    out.push(v.as_f64());
                } else {
                    assert_eq!(v.as_f64(), GUARD, "an element outside of the channels was written");
                }
            }
        }
        out
    }
}

pub fn tolerance<T: Element>() -> f64 {
    if size_of::<T>() == 4 { 2e-5 } else { 1e-12 }
}

#[track_caller]
pub fn assert_near<T: Element>(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance::<T>() * scale, "{what}: element {i} is {g}, want {w} (scale {scale})");
    }
}

pub fn pools() -> [rayon::ThreadPool; 2] {
    [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool of threads"))
}

/// Runs `f` on one and on two threads, and asks for the same bits.
pub fn on_both<R: PartialEq + Send + std::fmt::Debug>(f: impl Fn() -> R + Sync) -> R {
    let [one, two] = pools().map(|p| p.install(&f));
    assert!(one == two, "one and two threads differ");
    one
}

pub fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

pub fn act_f64(act: Activation, z: f64) -> f64 {
    match act {
        Activation::Identity => z,
        Activation::Silu => z / (1.0 + (-z).exp()),
        Activation::Relu => z.max(0.0),
        Activation::LeakyRelu(s) => {
            if z > 0.0 {
                z
            } else {
                z * f64::from(s)
            }
        }
    }
}

pub fn act_grad_f64(act: Activation, z: f64) -> f64 {
    match act {
        Activation::Identity => 1.0,
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-z).exp());
            s * (1.0 + z * (1.0 - s))
        }
        Activation::Relu => {
            if z > 0.0 {
                1.0
            } else {
                0.0
            }
        }
        Activation::LeakyRelu(s) => {
            if z > 0.0 {
                1.0
            } else {
                f64::from(s)
            }
        }
    }
}

pub const ACTS: [Activation; 4] =
    [Activation::Identity, Activation::Silu, Activation::Relu, Activation::LeakyRelu(0.1)];
