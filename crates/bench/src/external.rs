//! Ops that stand in for a loss.

use cpu::element::Element;
use cpu::external::ExternalIo;
use cpu::{CpuExecutor, Runs};
use cuda::CudaExecutor;
use cuda::external::HostOperands;
use graph::ops::External;
use graph::{ExternalSpec, Kind, ScratchSpec, Shape};
use std::any::Any;
use std::sync::Arc;

/// Half the sum of `r * y^2` over every element of every input, with fixed `r`: every op before it gets a gradient.
#[derive(Debug)]
pub(crate) struct WeightedSquares;

/// Gradients that depend on nothing but their position, as if a loss had given them; the value is 0.
#[derive(Debug)]
pub(crate) struct FixedGradients;

macro_rules! stands_in_for_a_loss {
    ($($spec:ident: $name:literal),*) => {$(
        impl ExternalSpec for $spec {
            fn name(&self) -> &'static str {
                $name
            }

            fn outputs(&self, _: &[Shape]) -> Vec<(&'static str, Shape, Kind)> {
                vec![("loss", Shape::vector(1), Kind::Statistic)]
            }

            fn scratch(&self, _: &[Shape]) -> ScratchSpec {
                ScratchSpec::default()
            }

            fn differentiates(&self, _: usize) -> bool {
                true
            }

            fn as_any(&self) -> &dyn Any {
                self
            }
        }
    )*};
}

stands_in_for_a_loss!(WeightedSquares: "weighted_squares", FixedGradients: "fixed_gradients");

/// An odd number of 128ths between -1 and 1 for an element: exact in every format, never zero, and of many values, so
/// that the roundings of what it is multiplied with do not add up.
fn coefficient(input: usize, pixel: usize, channel: usize) -> f64 {
    let mut z = ((input as u64) << 48) ^ ((channel as u64) << 32) ^ pixel as u64;
    // The finaliser of splitmix64.
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    let odd = 2 * (z >> 57) as i64 - 127;
    odd as f64 / 128.0
}

/// Size of the gradients of [`FixedGradients`], about that of a detection loss.
const SMALL: f64 = 1.0 / 1024.0;

/// A tensor as both ops see it: pixels, logical channels, pitch, physical channels.
#[derive(Clone, Copy)]
struct Extent {
    pixels: usize,
    logical: usize,
    pitch: usize,
    channels: usize,
}

/// Sums up one input and writes its gradient, zero in the padding.
fn squares<T: Element>(input: usize, x: Extent, values: &[T], gradient: Option<(Extent, &mut [T])>) -> f64 {
    let each = (0..x.pixels).flat_map(|p| (0..x.logical).map(move |c| (p, c)));
    let term = |(p, c): (usize, usize)| coefficient(input, p, c) * values[p * x.pitch + c].as_f64();
    let sum = each.map(|(p, c)| 0.5 * term((p, c)) * values[p * x.pitch + c].as_f64()).sum();
    if let Some((g, gradient)) = gradient {
        fill(g, gradient, |p, c| term((p, c)));
    }
    sum
}

fn fill<T: Element>(g: Extent, gradient: &mut [T], value: impl Fn(usize, usize) -> f64) {
    for p in 0..g.pixels {
        for c in 0..g.channels {
            gradient[p * g.pitch + c] = if c < g.logical { T::of_f64(value(p, c)) } else { T::zero() };
        }
    }
}

fn extent<T: Element>(io: &ExternalIo<'_, '_, T>, id: graph::TensorId) -> Extent {
    let (shape, (pitch, channels)) = (io.shape(id), io.pitch(id));
    Extent { pixels: shape.pixels(), logical: shape.c, pitch, channels }
}

fn weighted_squares<T: Element>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    let mut loss = 0.0;
    for (i, (&x, gradient)) in op.inputs.iter().zip(&op.gradients).enumerate() {
        let gradient = gradient.map(|g| (extent(io, g), io.elements_mut(g)));
        loss += squares(i, extent(io, x), io.elements(x), gradient);
    }
    io.elements_mut(op.outputs[0])[0] = T::of_f64(loss);
}

fn fixed_gradients<T: Element>(op: &External, io: &mut ExternalIo<'_, '_, T>) {
    for (i, gradient) in op.gradients.iter().enumerate() {
        if let &Some(g) = gradient {
            fill(extent(io, g), io.elements_mut(g), |p, c| SMALL * coefficient(i, p, c));
        }
    }
    io.elements_mut(op.outputs[0])[0] = T::zero();
}

/// Adds the ops to an executor of the CPU.
pub(crate) fn register_cpu<T: Runs>(executor: &mut CpuExecutor<T>) {
    executor.register(WeightedSquares.name(), weighted_squares);
    executor.register(FixedGradients.name(), fixed_gradients);
}

fn host_extent(tensor: &cuda::external::HostTensor) -> Extent {
    let (pitch, channels) = (tensor.pitch, tensor.pitch);
    Extent { pixels: tensor.shape.pixels(), logical: tensor.shape.c, pitch, channels }
}

/// Adds the ops to an executor of a card: squares on the host, fixed gradients copied on the card.
pub(crate) fn register_cuda(executor: &mut CudaExecutor) {
    let weighted = |_: &External, io: &mut HostOperands| {
        let mut loss = 0.0;
        for (i, (x, gradient)) in io.inputs.iter().zip(&mut io.gradients).enumerate() {
            let gradient = gradient.as_mut().map(|g| (host_extent(g), g.floats_mut()));
            loss += squares(i, host_extent(x), x.floats(), gradient);
        }
        io.outputs[0].floats_mut()[0] = loss as f32;
    };
    let fixed = |_: &External, io: &mut HostOperands| {
        for (i, gradient) in io.gradients.iter_mut().enumerate() {
            if let Some(g) = gradient {
                fill(host_extent(g), g.floats_mut(), |p, c| SMALL * coefficient(i, p, c));
            }
        }
    };
    executor.register_host(WeightedSquares.name(), Arc::new(weighted));
    executor.register_constant(FixedGradients.name(), Arc::new(fixed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_odd_128ths_of_both_signs() {
        let all: Vec<f64> = (0..1000).map(|i| coefficient(i % 3, i, i / 7)).collect();
        assert!(all.iter().all(|v| (v * 128.0).fract() == 0.0 && (v * 128.0) % 2.0 != 0.0 && v.abs() < 1.0));
        assert!(all.iter().all(|&v| f64::from(half::bf16::from_f64(v).to_f32()) == v));
        let mean = all.iter().sum::<f64>() / 1000.0;
        assert!(mean.abs() < 0.06 && all.iter().any(|v| *v < 0.0), "mean {mean}");
    }
}
