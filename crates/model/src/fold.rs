//! Folding: batch norms into their convolutions, the two branches of a RepConvN into one 3x3.
//!
//! With `s = gamma / sqrt(var + eps)`: `W' = W * s`, `b' = beta - mean * s`; a RepConvN's 1x1 is added to the
//! centre of its 3x3, and their biases add up. Computed in f64, rounded once.

use crate::blocks::BN_EPS;
use crate::error::{ModelError, Result};
use crate::state::{NamedTensor, NamedTensors};

/// The folded tensors of a training state dict, in the order and with the names of a
/// [`crate::Mode::Folded`] build. Convolutions without batch norm and the fixed bins pass through.
///
/// # Errors
/// [`ModelError::Tensor`] where a batch norm lacks a tensor or shapes do not fit together.
pub fn fold(tensors: &NamedTensors) -> Result<NamedTensors> {
    let mut folded = NamedTensors::new();
    for (name, tensor) in tensors.iter() {
        if is_bn(tensors, name) {
            continue;
        }
        let stem = name.strip_suffix(".conv.weight").filter(|s| tensors.get(&format!("{s}.bn.weight")).is_some());
        let Some(stem) = stem else {
            folded.insert(name, tensor.dims.clone(), tensor.values.clone())?;
            continue;
        };
        if let Some(block) = stem.strip_suffix(".conv2").filter(|b| is_rep_conv(tensors, b)) {
            // Already merged with its conv1, unless a foreign file lists it first.
            if folded.get(&format!("{block}.conv.weight")).is_some() {
                continue;
            }
        }
        let block = [".conv1", ".conv2"].iter().find_map(|s| stem.strip_suffix(s)).filter(|b| is_rep_conv(tensors, b));
        let (stem, result) = match block {
            Some(block) => (block, merge(tensors, block)?),
            None => (stem, fold_one(tensors, stem)?),
        };
        let weight = result.weight.iter().map(|&v| v as f32).collect();
        folded.insert(format!("{stem}.conv.weight"), result.dims.clone(), weight)?;
        let bias: Vec<f32> = result.bias.iter().map(|&v| v as f32).collect();
        folded.insert(format!("{stem}.conv.bias"), vec![bias.len()], bias)?;
    }
    Ok(folded)
}

/// Tensors that end in their convolution.
fn is_bn(tensors: &NamedTensors, name: &str) -> bool {
    let Some((stem, last)) = name.rsplit_once('.') else { return false };
    let known = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"].contains(&last);
    known && stem.strip_suffix(".bn").is_some_and(|s| tensors.get(&format!("{s}.conv.weight")).is_some())
}

fn is_rep_conv(tensors: &NamedTensors, block: &str) -> bool {
    ["conv1", "conv2"].iter().all(|c| tensors.get(&format!("{block}.{c}.bn.weight")).is_some())
}

/// A convolution in f64.
struct Wide {
    dims: Vec<usize>,
    weight: Vec<f64>,
    bias: Vec<f64>,
}

fn fold_one(tensors: &NamedTensors, stem: &str) -> Result<Wide> {
    let get = |part: &str| {
        let name = format!("{stem}.{part}");
        let missing = || ModelError::Tensor { name: name.clone(), message: "missing, needed for folding".into() };
        tensors.get(&name).ok_or_else(missing)
    };
    let conv = get("conv.weight")?;
    let [out, inputs, height, width] = conv.dims[..] else {
        let message = format!("shape {:?} is no convolution's", conv.dims);
        return Err(ModelError::Tensor { name: format!("{stem}.conv.weight"), message });
    };
    let vector = |part: &str| -> Result<&NamedTensor> {
        let tensor = get(part)?;
        if tensor.dims == [out] {
            return Ok(tensor);
        }
        let message = format!("shape {:?} does not fit a convolution to {out} channels", tensor.dims);
        Err(ModelError::Tensor { name: format!("{stem}.{part}"), message })
    };
    let (gamma, beta) = (vector("bn.weight")?, vector("bn.bias")?);
    let (mean, var) = (vector("bn.running_mean")?, vector("bn.running_var")?);
    // Not a number passes: weights with one are warned about where they are read.
    if let Some(&below) = var.values.iter().find(|&&v| f64::from(v) + BN_EPS <= 0.0) {
        let message = format!("holds {below}, and a variance is not negative");
        return Err(ModelError::Tensor { name: format!("{stem}.bn.running_var"), message });
    }
    let row = inputs * height * width;
    let mut weight = Vec::with_capacity(conv.values.len());
    let mut bias = Vec::with_capacity(out);
    for o in 0..out {
        let scale = f64::from(gamma.values[o]) / (f64::from(var.values[o]) + BN_EPS).sqrt();
        weight.extend(conv.values[o * row..][..row].iter().map(|&w| f64::from(w) * scale));
        bias.push(f64::from(beta.values[o]) - f64::from(mean.values[o]) * scale);
    }
    Ok(Wide { dims: conv.dims.clone(), weight, bias })
}

fn merge(tensors: &NamedTensors, block: &str) -> Result<Wide> {
    let mut square = fold_one(tensors, &format!("{block}.conv1"))?;
    let point = fold_one(tensors, &format!("{block}.conv2"))?;
    let fits = square.dims[..2] == point.dims[..2] && square.dims[2..] == [3, 3] && point.dims[2..] == [1, 1];
    if !fits {
        let message = format!("branches {:?} and {:?} are not a 3x3 and a 1x1", square.dims, point.dims);
        return Err(ModelError::Tensor { name: block.to_owned(), message });
    }
    for (window, &centre) in square.weight.chunks_exact_mut(9).zip(&point.weight) {
        window[4] += centre;
    }
    square.bias.iter_mut().zip(&point.bias).for_each(|(a, b)| *a += b);
    Ok(square)
}
