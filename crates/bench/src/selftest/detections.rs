//! Non-maximum suppression held against what the processor finds in the device's own predictions: which of two boxes
//! is the better one may hang on the last bit of their scores, so the predictions of another arithmetic say nothing.

use super::Row;
use super::cases::{LOSS_PICTURE, STRIDES, heads};
use super::compare::Worst;
use super::net::{Net, weights};
use crate::{BenchError, Numbers, Target};
use detect::external::{DetectionTensors, predictions, suppress};
use detect::nms::{Detection, NmsConfig};
use graph::{CompileOptions, DType, Region, StateSpec, compile};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// Name of [`run`].
pub(super) const NAME: &str = "non-maximum suppression";

/// Numbers of classes.
const CLASSES: [usize; 3] = [1, 20, 80];

fn configs() -> [NmsConfig; 3] {
    // Half of all scores pass.
    let base = NmsConfig { conf_threshold: 0.5, ..NmsConfig::default() };
    [
        base.clone(),
        NmsConfig { multi_label: true, iou_threshold: 0.7, ..base.clone() },
        NmsConfig { multi_label: true, agnostic: true, classes: Some(vec![0, 7]), max_det: 5, ..base },
    ]
}

/// Detections of each image.
type Found = Vec<Vec<Detection>>;

/// What the device finds in its predictions, and what the processor finds in them.
fn found(
    target: &Target,
    (nc, config): (usize, &NmsConfig),
    numbers: Numbers,
    seed: u64,
) -> Result<(Found, Found), BenchError> {
    let mut net = Net::new();
    let images = net.b.input("images", LOSS_PICTURE, DType::U8);
    let x = net.b.normalize(images);
    let levels = heads(&mut net, x, nc)?;
    let decoded = predictions(&mut net.b, &levels, &STRIDES, nc);
    net.b.output(decoded);
    let tensors = suppress(&mut net.b, decoded, config.clone(), nc);
    let options = CompileOptions::inference(target.precision());
    let plan = Arc::new(compile(net.b.finish(), target.backend().as_ref(), &options)?);

    let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(nc as u64));
    let pixels: Vec<u8> = (0..LOSS_PICTURE.elements()).map(|_| rng.random()).collect();
    let (weights, _) = weights(plan.params(), numbers, &mut rng);
    let spec = StateSpec { layout: plan.params().clone(), optimizer: None, ema: false };
    let mut running = target.executor(spec)?;
    let executor = running.as_dyn();
    let id = executor.prepare(plan)?;
    executor.write_region(Region::Weights, &weights)?;
    executor.upload_u8(id, images, &pixels)?;
    executor.run(id)?;
    let [decoded, rows, found] = [decoded, tensors.rows, tensors.found].map(|tensor| executor.download(id, tensor));
    let decoded = decoded?;
    let of_image = |rows: &[f32]| detect::nms::suppress(config, rows, 4 + nc, nc);
    let want = decoded.chunks((decoded.len() / LOSS_PICTURE.n).max(1)).map(of_image).collect();
    Ok((DetectionTensors::read(&rows?, &found?), want))
}

/// Detections must be the same bit for bit.
pub(super) fn run(target: &Target, numbers: Numbers, seed: u64) -> Result<Row, BenchError> {
    let mut worst = Worst::none();
    for nc in CLASSES {
        for config in configs() {
            let (got, want) = found(target, (nc, &config), numbers, seed)?;
            if got != want {
                let count = |found: &Found| found.iter().map(Vec::len).sum::<usize>();
                let tensor = format!("{} for {} detections with {nc} classes", count(&got), count(&want));
                worst = Worst { error: f64::INFINITY, tensor };
            }
        }
    }
    Ok(Row::new(NAME, numbers, worst, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_finds_boxes_and_suppresses_boxes() {
        for nc in CLASSES {
            for config in configs() {
                let (got, want) = found(&Target::Cpu, (nc, &config), Numbers::F32, 0).expect("runs");
                assert_eq!(got, want);
                let all = NmsConfig { iou_threshold: 1.0, max_det: usize::MAX, ..config.clone() };
                let (all, _) = found(&Target::Cpu, (nc, &all), Numbers::F32, 0).expect("runs");
                for (some, all) in got.iter().zip(&all) {
                    assert!(!some.is_empty() && some.len() < all.len(), "{config:?}: {} of {}", some.len(), all.len());
                }
            }
        }
    }
}
