//! Training graphs of the models, with the real loss or with fixed gradients in its place.

use crate::BenchError;
use crate::external::FixedGradients;
use detect::LossConfig;
use detect::external::{LevelTensors, TargetTensors};
use graph::{Backend, CompileOptions, DType, GraphBuilder, Plan, Precision, Shape, TensorId};
use model::{BuildOptions, Heads, Model};
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
pub(crate) fn training(
    model: &Model,
    (batch, height, width): (usize, usize, usize),
    ending: Ending,
    readable: bool,
    (backend, precision): (&dyn Backend, Precision),
) -> Result<TrainingGraph, BenchError> {
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, height, width, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, BuildOptions::default())?;
    let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
    let branches: Vec<Vec<LevelTensors>> =
        heads.branches.iter().map(|b| b.levels.iter().map(level).collect()).collect();
    let maps = branches.iter().flatten().flat_map(|l| [l.boxes, l.classes]);
    if readable {
        maps.clone().for_each(|map| b.output(map));
    }
    let (loss, targets) = match ending {
        Ending::Loss { max_boxes } => {
            let weights = if branches.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
            let config = LossConfig { strides: model.strides.clone(), ..LossConfig::new(model.nc, weights) };
            let (loss, targets) = detect::external::loss(&mut b, config, &branches, max_boxes, (height, width));
            (loss, Some(targets))
        }
        Ending::FixedGradients => {
            b.set_scope("loss");
            let loss = b.external(Arc::new(FixedGradients), &maps.collect::<Vec<_>>())[0];
            b.output(loss);
            (loss, None)
        }
    };
    let plan = Arc::new(graph::compile(b.finish(), backend, &CompileOptions::training(precision, loss))?);
    Ok(TrainingGraph { plan, images, loss, targets, heads })
}
