//! Bytes that an executor takes of a card, by its flat buffers and plans alone: known before there is a card.
//!
//! The executor allocates by the same functions, and a test on a card holds both together. What the driver and NVIDIA's
//! libraries take for themselves is not in here: [`CONTEXT_BYTES`] and [`LIBRARY_BYTES`] allow for it.

use crate::commit::CommitSizes;
use crate::error::{CudaError, Result};
use crate::executor::CudaOptions;
use crate::inputs;
use crate::regions::{operand_bytes, region_bytes};
use graph::{Plan, Region, StateSpec};

/// Allowed for a context: the driver's own, and room for kernels' stacks. An estimate. Free memory that the driver reports once the card
/// is open is without it.
pub const CONTEXT_BYTES: u64 = 640 << 20;
/// Allowed for what CUDA graphs take, and code that libraries load when they first run: about twice what was seen.
pub const LIBRARY_BYTES: u64 = 512 << 20;

/// Bytes of one executor, and of the arena that it shares with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardBytes {
    /// Flat float32 buffers: weights, gradients, optimiser state, averages, running statistics.
    pub regions: Vec<(Region, u64)>,
    /// The weights once more in the format of convolution operands; 0 where that is float32.
    pub operands: u64,
    /// Tables, scalars and scratch of commits.
    pub commit: u64,
    /// Batches on their way.
    pub inputs: u64,
    /// The largest of its plans.
    pub arena: u64,
}

impl CardBytes {
    /// Everything but the arena.
    pub fn state(&self) -> u64 {
        self.regions.iter().map(|r| r.1).sum::<u64>() + self.operands + self.commit + self.inputs
    }

    /// With the arena.
    pub fn total(&self) -> u64 {
        self.state() + self.arena
    }

    /// Bytes of one flat buffer; 0 where there is none.
    pub fn region(&self, region: Region) -> u64 {
        self.regions.iter().find(|r| r.0 == region).map_or(0, |r| r.1)
    }
}

/// What an executor over `spec` takes once it has prepared `plans`.
///
/// # Errors
/// A precision that no kernel takes.
pub fn footprint<'a>(
    spec: &StateSpec,
    plans: impl IntoIterator<Item = &'a Plan>,
    options: &CudaOptions,
) -> Result<CardBytes> {
    let format = options.format().ok_or(CudaError::Precision(options.precision))?;
    let (mut batch, mut arena) = (0, 0);
    for plan in plans {
        batch = batch.max(inputs::places(plan).1);
        arena = arena.max(plan.memory().arena);
    }
    Ok(CardBytes {
        regions: region_bytes(spec),
        operands: operand_bytes(spec, format),
        commit: CommitSizes::of(spec, format).total(),
        inputs: inputs::SLOTS as u64 * batch as u64,
        arena,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CudaBackend;
    use graph::{CompileOptions, DType, GraphBuilder, OptimizerKind, Precision, Recompute, Shape};
    use model::{BuildOptions, Model};

    #[test]
    fn half_precision_keeps_the_weights_twice_and_the_largest_plan_counts() {
        let model = Model::load("gelan-t", Some(3)).unwrap();
        let of = |precision, images| {
            let options = CudaOptions { precision, tf32: false, tune: false, capture: true };
            let mut b = GraphBuilder::new();
            let pictures = b.input("images", Shape::new(images, 64, 64, 3), DType::U8);
            let x = b.normalize(pictures);
            model.build(&mut b, x, BuildOptions::default()).unwrap();
            let recompute = Recompute::Level(graph::Level::KeepAll);
            let compile = CompileOptions { recompute, ..CompileOptions::inference(precision) };
            (graph::compile(b.finish(), &CudaBackend::new(options), &compile).unwrap(), options)
        };
        let ((small, options), (large, _)) = (of(Precision::BF16, 1), of(Precision::BF16, 2));
        let spec = StateSpec { layout: large.params().clone(), optimizer: Some(OptimizerKind::Sgd), ema: true };
        let bytes = footprint(&spec, [&small, &large], &options).unwrap();
        assert_eq!(bytes.arena, large.memory().arena);
        assert_eq!(bytes.inputs, 2 * 2 * 64 * 64 * 3);
        assert_eq!(bytes.operands, 2 * spec.layout.weight_elements() as u64);
        assert_eq!(bytes.region(Region::Gradients), 4 * spec.layout.weight_elements() as u64);
        assert_eq!(bytes.region(Region::State(1)), 0);
        assert_eq!(bytes.total(), bytes.state() + bytes.arena);

        let (single, options) = of(Precision::F32, 2);
        let plain = footprint(&spec, [&single], &options).unwrap();
        assert_eq!((plain.operands, plain.commit), (0, bytes.commit));
        assert!(footprint(&spec, [], &CudaOptions { precision: Precision::F64, ..options }).is_err());
    }
}
