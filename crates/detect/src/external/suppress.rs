//! Non-maximum suppression as an op, so that only what is found leaves the device.

use std::any::Any;
use std::sync::Arc;

use graph::{ExternalSpec, GraphBuilder, Kind, ScratchSpec, Shape, TensorId};

use crate::nms::{COLUMNS, Detection, NmsConfig, most_detections, scratch_words};

/// The detections of a batch, as outputs of a graph.
#[derive(Clone, Copy, Debug)]
pub struct DetectionTensors {
    /// (N, 1, [`most_detections`], [`COLUMNS`]): best first, zeros after those that were found.
    pub rows: TensorId,
    /// N numbers of detections, in float32 as all outputs are.
    pub found: TensorId,
}

impl DetectionTensors {
    /// The detections of each image, from both tensors in logical order.
    pub fn read(rows: &[f32], found: &[f32]) -> Vec<Vec<Detection>> {
        let rows = rows.as_chunks::<COLUMNS>().0;
        let detection = |&[x0, y0, x1, y1, score, class]: &[f32; COLUMNS]| Detection {
            corners: [x0, y0, x1, y1],
            score,
            class: class as u32,
        };
        let each = rows.len() / found.len().max(1);
        let of_image = |(image, &count): (usize, &f32)| {
            rows[image * each..][..each].iter().take(count as usize).map(detection).collect()
        };
        found.iter().enumerate().map(of_image).collect()
    }
}

/// Declares the suppression of predictions of `nc` classes, as [`super::predictions`] has them.
pub fn suppress(b: &mut GraphBuilder, predictions: TensorId, config: NmsConfig, nc: usize) -> DetectionTensors {
    b.set_scope("nms");
    let outputs = b.external(Arc::new(Suppress { config, nc }), &[predictions]);
    outputs.iter().for_each(|&output| b.output(output));
    DetectionTensors { rows: outputs[0], found: outputs[1] }
}

/// [`crate::nms::suppress`] of each image. Input: predictions (N, 1, anchors, 4 + nc).
#[derive(Clone, Debug)]
pub struct Suppress {
    pub config: NmsConfig,
    pub nc: usize,
}

impl Suppress {
    pub const NAME: &'static str = "nms";

    /// Words of scratch of one image.
    pub fn words(&self, anchors: usize) -> usize {
        scratch_words(&self.config, anchors, self.nc)
    }
}

impl ExternalSpec for Suppress {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn outputs(&self, inputs: &[Shape]) -> Vec<(&'static str, Shape, Kind)> {
        let Shape { n: images, w: anchors, .. } = inputs[0];
        let rows = Shape::new(images, 1, most_detections(&self.config, anchors, self.nc), COLUMNS);
        vec![("detections", rows, Kind::Statistic), ("found", Shape::vector(images), Kind::Statistic)]
    }

    fn scratch(&self, inputs: &[Shape]) -> ScratchSpec {
        ScratchSpec { statistics: 0, words: inputs[0].n * self.words(inputs[0].w) }
    }

    fn differentiates(&self, _input: usize) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
