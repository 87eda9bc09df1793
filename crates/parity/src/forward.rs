//! Predictions and raw head maps of the filled models against the reference's.

use crate::tensors::assert_agrees;
use crate::{Device, Packed, Step, filled, load, pictures};
use detect::external::LevelTensors;
use graph::{CompileOptions, DType, Executor, GraphBuilder, OptimizerKind, Region, Shape, StateSpec, compile};
use model::{Branches, BuildOptions, Mode, Model, NamedTensors};
use std::sync::Arc;
use testkit::{Array, assert_close};

const SIZE: [usize; 3] = [2, 128, 160];

/// Folded predictions, (image, 4 + nc, anchor) as the fixtures hold them, one entry a branch.
fn predictions<D: Device>(device: &D, case: &str, branches: Branches) -> Vec<(&'static str, Vec<f64>)> {
    let model = load(case);
    predict(device, &model, &model::fold(&filled(&model, case)).expect("folds"), branches)
}

/// Folded predictions of given tensors, (image, 4 + nc, anchor), one entry a branch.
pub fn predict<D: Device>(
    device: &D,
    model: &Model,
    tensors: &NamedTensors,
    branches: Branches,
) -> Vec<(&'static str, Vec<f64>)> {
    let [batch, h, w] = SIZE;
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, h, w, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, BuildOptions { mode: Mode::Folded, branches }).expect("builds");
    let outputs: Vec<_> = heads
        .branches
        .iter()
        .map(|branch| {
            let levels: Vec<_> =
                branch.levels.iter().map(|l| LevelTensors { boxes: l.boxes, classes: l.classes }).collect();
            let strides: Vec<_> = branch.levels.iter().map(|l| l.stride).collect();
            (branch.name, detect::external::decode(&mut b, &levels, &strides, model.nc))
        })
        .collect();
    let options = CompileOptions::inference(device.precision());
    let plan = Arc::new(compile(b.finish(), device.backend().as_ref(), &options).expect("a plan"));
    let layout = plan.params().clone();
    let mut executor = device.executor(StateSpec { layout: layout.clone(), optimizer: None, ema: false });
    let id = executor.prepare(plan).expect("prepared");
    let mut weights = vec![0.0f32; layout.weight_elements()];
    tensors.scatter(&layout, &mut weights, &mut []).expect("all tensors");
    executor.write_region(Region::Weights, &weights).expect("weights");
    executor.upload_u8(id, images, &pictures("image", batch, h, w)).expect("pixels");
    executor.run(id).expect("a run");
    outputs
        .into_iter()
        .map(|(name, tensor)| {
            let rows = device.elements(&executor, id, tensor);
            let (columns, anchors) = (4 + model.nc, rows.len() / batch / (4 + model.nc));
            let mut out = vec![0.0; rows.len()];
            for (i, &v) in rows.iter().enumerate() {
                let (image, anchor, column) = (i / columns / anchors, i / columns % anchors, i % columns);
                out[(image * columns + column) * anchors + anchor] = v;
            }
            (name, out)
        })
        .collect()
}

fn check<D: Device>(device: &D, case: &str, box_px: f64) {
    let expected = testkit::arrays(&format!("models/{case}.safetensors"));
    for (name, got) in predictions(device, case, Branches::All) {
        compare(&format!("{case} {name}"), &got, &expected[&format!("pred_{name}")], box_px);
    }
}

/// Holds predictions against a fixture's.
pub fn compare(what: &str, got: &[f64], want: &Array, box_px: f64) {
    let (columns, anchors) = (want.shape[1], want.shape[2]);
    // Of each image: box rows, then score rows.
    let part = |values: &[f64], scores: bool| -> Vec<f64> {
        let images = values.chunks(columns * anchors).map(|image| image.split_at(4 * anchors));
        images.flat_map(|(boxes, rest)| if scores { rest } else { boxes }).copied().collect()
    };
    assert_agrees(&format!("{what} boxes"), &part(got, false), &part(&want.data, false));
    assert_agrees(&format!("{what} scores"), &part(got, true), &part(&want.data, true));
    for image in 0..2 {
        let at = image * columns * anchors;
        let boxes = at..at + 4 * anchors;
        let scores = at + 4 * anchors..at + columns * anchors;
        assert_close(&format!("{what} boxes"), &got[boxes.clone()], &want.data[boxes], box_px, 0.0);
        assert_close(&format!("{what} scores"), &got[scores.clone()], &want.data[scores], 2e-4, 1e-3);
    }
}

/// Boxes within 0.05 pixels (0.1 for the micro model), scores within 2e-4 + 1e-3, both as a whole within 1e-3.
pub fn predictions_of_every_model_agree<D: Device>(device: &D) {
    for case in ["yolov9-t-nc80", "yolov9-s-nc80", "yolov9-s-nc3", "gelan-t-nc80", "gelan-s-nc80"] {
        if testkit::has(&format!("models/{case}.safetensors")) {
            check(device, case, 0.05);
        }
    }
    check(device, "yolov9-cmicro-nc5", 0.1);
}

/// Leaving the auxiliary branch out changes no bit of the main one.
pub fn main_branch_alone_predicts_the_same_bits<D: Device>(device: &D) {
    for case in ["yolov9-t-nc80", "yolov9-cmicro-nc5"] {
        let both = predictions(device, case, Branches::All);
        let main = predictions(device, case, Branches::Main);
        assert_eq!(main.len(), 1);
        assert_eq!(both.last(), main.first(), "{case}");
    }
}

/// Raw maps with batch statistics within 1.5e-3 and as a whole within 1e-3, their mean and spread within 1e-4.
pub fn training_mode_head_maps_agree<D: Device + Clone>(device: &D) {
    let [batch, h, w] = SIZE;
    for case in ["yolov9-t-nc80", "yolov9-s-nc80", "yolov9-s-nc3", "gelan-t-nc80", "gelan-s-nc80", "yolov9-cmicro-nc5"]
    {
        if !testkit::has(&format!("models/{case}.safetensors")) {
            continue;
        }
        let model = load(case);
        let mut step = Step::on(device.clone(), &model, &filled(&model, case), SIZE, OptimizerKind::Sgd, true);
        let targets = Packed::of(&[], batch);
        step.upload(&pictures("image", batch, h, w), &targets);
        step.run();
        let expected = testkit::arrays(&format!("models/{case}.safetensors"));
        let statistics = &testkit::json(&format!("models/{case}.json"))["train_heads"];
        let heads = step.heads.clone();
        for branch in &heads.branches {
            for (l, level) in branch.levels.iter().enumerate() {
                let got = first256(&step, level.boxes, level.classes);
                let want = &expected[&format!("train_{}_{l}_first256", branch.name)].data;
                let what = format!("{case} {} level {l}", branch.name);
                assert_agrees(&what, &got, want);
                assert_close(&what, &got, want, 1.5e-3, 0.0);
                let whole = &statistics[format!("{}_{l}", branch.name)];
                let maps = [level.boxes, level.classes].map(|t| step.elements(t));
                let number = |key: &str| whole[key].as_f64().expect("a number");
                for (suffix, values) in [("_box", maps[0].clone()), ("", maps.concat())] {
                    let (mean, std) = mean_and_std(&values);
                    let want = [number(&format!("mean{suffix}")), number(&format!("std{suffix}"))];
                    let what = format!("{case} {} level {l}, mean and spread{suffix}", branch.name);
                    assert_close(&what, &[mean, std], &want, 1e-4, 1e-4);
                }
            }
        }
    }
}

/// Over all values, the spread with one degree of freedom less.
fn mean_and_std(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (mean, (squares / (count - 1.0)).sqrt())
}

/// The first 256 values of a head map as (B, 64 + nc, h, w).
pub fn first256<D: Device>(step: &Step<D>, boxes: graph::TensorId, classes: graph::TensorId) -> Vec<f64> {
    let (b, c) = (step.compiled.shape(boxes), step.compiled.shape(classes));
    let maps = [boxes, classes].map(|t| step.elements(t));
    let pixels = b.h * b.w;
    (0..256)
        .map(|i| {
            let (channel, pixel) = (i / pixels, i % pixels);
            assert!(channel < b.c + c.c, "the first image holds more than 256 values");
            let (map, channels, channel) =
                if channel < b.c { (&maps[0], b.c, channel) } else { (&maps[1], c.c, channel - b.c) };
            map[pixel * channels + channel]
        })
        .collect()
}
