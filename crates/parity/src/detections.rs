//! Detections of whole plans: what suppression finds in a plan's own predictions.

use crate::{Device, filled, load, pictures};
use detect::external::{self, DetectionTensors, LevelTensors};
use detect::nms::{COLUMNS, Detection, NmsConfig, suppress};
use graph::{CompileOptions, DType, Executor, GraphBuilder, PlanId, Region, Shape, StateSpec, TensorId, compile};
use model::{Branches, BuildOptions, Mode};
use std::sync::Arc;

const CASE: &str = "yolov9-cmicro-nc5";
const SIZE: [usize; 3] = [3, 96, 128];

/// A folded model with decoding and, where asked for, suppression.
pub struct Detector<D: Device> {
    pub executor: D::Executor,
    pub plan: PlanId,
    nc: usize,
    images: TensorId,
    /// An output where nothing is suppressed, or where it is asked for.
    predictions: TensorId,
    detections: Option<DetectionTensors>,
}

impl<D: Device> Detector<D> {
    /// Predictions stay readable only where nothing is suppressed.
    pub fn new(device: &D, case: &str, config: Option<NmsConfig>) -> Self {
        Self::made(device, case, config, false)
    }

    fn made(device: &D, case: &str, config: Option<NmsConfig>, readable: bool) -> Self {
        let [batch, h, w] = SIZE;
        let model = load(case);
        let mut b = GraphBuilder::new();
        let images = b.input("images", Shape::new(batch, h, w, 3), DType::U8);
        let x = b.normalize(images);
        let options = BuildOptions { mode: Mode::Folded, branches: Branches::Main };
        let heads = model.build(&mut b, x, options).expect("builds");
        let main = heads.branches.last().expect("a branch");
        let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
        let levels: Vec<_> = main.levels.iter().map(level).collect();
        let predictions = external::predictions(&mut b, &levels, &model.strides, model.nc);
        if readable || config.is_none() {
            b.output(predictions);
        }
        let detections = config.map(|config| external::suppress(&mut b, predictions, config, model.nc));
        let options = CompileOptions::inference(device.precision());
        let plan = Arc::new(compile(b.finish(), device.backend().as_ref(), &options).expect("a plan"));
        let layout = plan.params().clone();
        let mut executor = device.executor(StateSpec { layout: layout.clone(), optimizer: None, ema: false });
        let plan = executor.prepare(plan).expect("prepared");
        let mut weights = vec![0.0f32; layout.weight_elements()];
        let tensors = model::fold(&filled(&model, case)).expect("folds");
        tensors.scatter(&layout, &mut weights, &mut []).expect("all tensors");
        executor.write_region(Region::Weights, &weights).expect("weights");
        Self { executor, plan, nc: model.nc, images, predictions, detections }
    }

    /// Writes the pictures, which a run overwrites.
    pub fn upload(&mut self) {
        let [batch, h, w] = SIZE;
        self.executor.upload_u8(self.plan, self.images, &pictures("image", batch, h, w)).expect("pixels");
    }

    /// Runs on the pictures of the fixtures.
    pub fn run(&mut self) {
        self.upload();
        self.executor.run(self.plan).expect("a run");
    }

    /// (image, anchor, 4 + nc).
    pub fn predictions(&self) -> Vec<f32> {
        self.executor.download(self.plan, self.predictions).expect("an output")
    }

    /// Rows and counts as the plan leaves them.
    pub fn outputs(&self) -> [Vec<f32>; 2] {
        let tensors = self.detections.expect("asked for");
        [tensors.rows, tensors.found].map(|id| self.executor.download(self.plan, id).expect("an output"))
    }

    /// Detections of each image.
    pub fn detections(&self) -> Vec<Vec<Detection>> {
        let [rows, found] = self.outputs();
        DetectionTensors::read(&rows, &found)
    }
}

/// The detections of a plan are, bit for bit, those that [`suppress`] finds in its predictions, whether these are
/// outputs or not, and what is left of the rows is zero.
pub fn detections_are_those_of_the_predictions<D: Device>(device: &D) {
    let mut plain = Detector::new(device, CASE, None);
    plain.run();
    let (nc, predictions) = (plain.nc, plain.predictions());
    let mut scores: Vec<f32> = predictions.chunks(4 + nc).flat_map(|row| row[4..].iter().copied()).collect();
    scores.sort_by(f32::total_cmp);
    // Half of all scores pass, so that many boxes are suppressed.
    let base = NmsConfig { conf_threshold: scores[scores.len() / 2], iou_threshold: 0.6, ..NmsConfig::default() };
    for config in [
        base.clone(),
        NmsConfig { multi_label: true, ..base.clone() },
        NmsConfig { multi_label: true, agnostic: true, max_det: 7, ..base.clone() },
        NmsConfig { classes: Some(vec![1, 4]), max_det: 100_000, ..base.clone() },
        NmsConfig { conf_threshold: 1.0, ..base },
    ] {
        let mut readable = Detector::made(device, CASE, Some(config.clone()), true);
        readable.run();
        let predictions = readable.predictions();
        let per_image = predictions.len() / SIZE[0];
        let want: Vec<_> = predictions.chunks(per_image).map(|rows| suppress(&config, rows, 4 + nc, nc)).collect();
        let candidates = if config.multi_label { per_image / (4 + nc) * nc } else { per_image / (4 + nc) };
        let some = config.conf_threshold < 1.0;
        assert!(want.iter().all(|image| some != image.is_empty() && image.len() < candidates), "{config:?}");
        assert_eq!(readable.detections(), want, "{config:?}");
        let mut usual = Detector::new(device, CASE, Some(config.clone()));
        // A device may record what it launches in one run and repeat it in later ones.
        for run in 1..=3 {
            usual.run();
            assert_eq!(usual.detections(), want, "{config:?}, run {run}: the predictions are no output");
        }

        let [rows, found] = usual.outputs();
        let each = rows.len() / found.len();
        assert_eq!(each, config.max_det.min(candidates) * COLUMNS, "{config:?}");
        for (rows, &count) in rows.chunks(each).zip(&found) {
            assert!(rows[count as usize * COLUMNS..].iter().all(|&v| v == 0.0), "{config:?}");
        }
    }
}
