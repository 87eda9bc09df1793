//! Initial weights: each tensor's values depend only on the seed and its name.

use crate::error::Result;
use crate::model::Model;
use crate::state::{NamedTensors, StateEntry, StateKind};
use std::collections::HashMap;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The training state dict with random weights.
///
/// Convolution weights and biases are uniform in `+-1 / sqrt(fan_in)`, `fan_in = in / groups * kernel^2`.
/// Batch norms start as the identity. The last biases of the head are 1 for boxes and
/// `ln(5 / nc / (640 / stride)^2)` for classes: about five objects on a picture of 640 pixels.
///
/// # Errors
/// What [`Model::build`] refuses.
pub fn init(model: &Model, seed: u64) -> Result<NamedTensors> {
    let entries = model.training_state()?;
    let head_bias = head_biases(model);
    let mut fan_in = 1;
    let mut tensors = NamedTensors::zeros(&entries);
    for entry in &entries {
        if entry.dims.len() == 4 {
            fan_in = entry.dims[1..].iter().product();
        }
        let values = tensors.values_mut(&entry.name).expect("one tensor an entry");
        fill(entry, values, fan_in, &head_bias, seed);
    }
    Ok(tensors)
}

/// A convolution's bias follows its weight, so that `fan_in` is the one of the same convolution.
fn fill(entry: &StateEntry, values: &mut [f32], fan_in: usize, head_bias: &HashMap<String, f32>, seed: u64) {
    let name = entry.name.as_str();
    if entry.kind == StateKind::Fixed || entry.kind == StateKind::Counter {
        return;
    }
    if let Some(&bias) = head_bias.get(name) {
        values.fill(bias);
    } else if name.ends_with("bn.weight") || name.ends_with("running_var") {
        values.fill(1.0);
    } else if name.ends_with("bn.bias") || name.ends_with("running_mean") {
        values.fill(0.0);
    } else {
        let bound = 1.0 / (fan_in as f64).sqrt();
        let key = mix(fnv(name) ^ mix(seed));
        for (i, value) in values.iter_mut().enumerate() {
            *value = (signed_unit(key, i as u64) * bound) as f32;
        }
    }
}

fn head_biases(model: &Model) -> HashMap<String, f32> {
    let head = model.layers.len() - 1;
    let mut biases = HashMap::new();
    for tower in &model.head().towers {
        for (level, &stride) in tower.strides.iter().enumerate() {
            biases.insert(format!("model.{head}.{}.{level}.2.bias", tower.boxes), 1.0);
            let class = (5.0 / model.nc as f64 / (640.0 / stride as f64).powi(2)).ln();
            biases.insert(format!("model.{head}.{}.{level}.2.bias", tower.classes), class as f32);
        }
    }
    biases
}

/// FNV-1a.
fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |h, c| (h ^ u64::from(c)).wrapping_mul(0x0100_0000_01B3))
}

/// One step of splitmix64.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Number `i` of a stream: uniform in (-1, 1), symmetric about 0.
fn signed_unit(key: u64, i: u64) -> f64 {
    let bits = mix(key.wrapping_add(i.wrapping_mul(GOLDEN))) >> 11;
    (bits as f64 + 0.5) / (1u64 << 52) as f64 - 1.0
}
