//! Training graphs of the models, with the real loss or with fixed gradients in its place.

use crate::BenchError;
use crate::external::FixedGradients;
use detect::external::TargetTensors;
use graph::{Backend, CompileOptions, Plan, Precision, Recompute, TensorId};
use model::{BuildOptions, Heads, Model};
use plan::graphs::{Forward, InputShape, loss_config, record};
use std::sync::Arc;

/// What gives the heads their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Loss { max_boxes: usize },
    FixedGradients,
}

/// A compiled training step with the tensors that the host writes and reads.
pub(crate) struct TrainingGraph {
    pub plan: Arc<Plan>,
    pub images: TensorId,
    /// First value: the loss, or 0.
    pub loss: TensorId,
    pub targets: Option<TargetTensors>,
    pub heads: Heads,
}

/// Compiles the training step of a model for `batch` pictures of `height` x `width`. `readable` keeps the raw head maps.
///
/// # Errors
/// A size that does not fit the model, or a budget that no level keeps.
pub(crate) fn training(
    model: &Model,
    (batch, height, width): (usize, usize, usize),
    ending: Ending,
    readable: bool,
    (backend, precision, recompute): (&dyn Backend, Precision, Recompute),
) -> Result<TrainingGraph, BenchError> {
    let forward = record(model, InputShape { images: batch, height, width }, BuildOptions::default())?;
    let branches = forward.levels();
    let Forward { builder: mut b, image: images, heads } = forward;
    let maps = branches.iter().flatten().flat_map(|l| [l.boxes, l.classes]);
    if readable {
        maps.clone().for_each(|map| b.output(map));
    }
    let (loss, targets) = match ending {
        Ending::Loss { max_boxes } => {
            let (loss, targets) =
                detect::external::loss(&mut b, loss_config(model), &branches, max_boxes, (height, width));
            (loss, Some(targets))
        }
        Ending::FixedGradients => {
            b.set_scope("loss");
            let loss = b.external(Arc::new(FixedGradients), &maps.collect::<Vec<_>>())[0];
            b.output(loss);
            (loss, None)
        }
    };
    let options = CompileOptions { recompute, ..CompileOptions::training(precision, loss) };
    let plan = Arc::new(graph::compile(b.finish(), backend, &options)?);
    Ok(TrainingGraph { plan, images, loss, targets, heads })
}
