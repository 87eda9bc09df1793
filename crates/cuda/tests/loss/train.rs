//! Losses and assignments of whole models at their first step against the reference's: the CPU runs the network, the card
//! the loss.

use crate::card::{self, Wanted};
use crate::problem::{BOX_PITCH, Maps, Problem};
use cpu::{CpuBackend, CpuExecutor};
use detect::external::LevelTensors;
use detect::{Levels, LossConfig};
use graph::{CompileOptions, DType, Executor, GraphBuilder, Precision, Region, Shape, StateSpec, compile};
use model::{Branches, BuildOptions, Mode};
use parity::{filled, load, pictures};
use std::sync::Arc;
use testkit::assert_close;

const CASES: [&str; 4] = ["yolov9-t-nc80", "yolov9-s-nc3", "gelan-t-nc80", "yolov9-cmicro-nc5"];
const BATCH: usize = 4;
const H: usize = 128;
const W: usize = 160;

/// A model's raw head maps in training mode and the fixture's boxes.
fn problem(case: &'static str, targets: &[f32]) -> Problem {
    let model = load(case);
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(BATCH, H, W, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, BuildOptions { mode: Mode::Training, branches: Branches::All });
    let heads = heads.expect("a model that builds");
    let tensors: Vec<Vec<LevelTensors>> = heads
        .branches
        .iter()
        .map(|b| b.levels.iter().map(|l| LevelTensors { boxes: l.boxes, classes: l.classes }).collect())
        .collect();
    tensors.iter().flatten().flat_map(|l| [l.boxes, l.classes]).for_each(|t| b.output(t));
    let plan = compile(b.finish(), &CpuBackend, &CompileOptions::inference(Precision::F32)).expect("a plan");
    let plan = Arc::new(plan);
    let layout = plan.params().clone();
    let mut executor = CpuExecutor::<f32>::new(StateSpec { layout: layout.clone(), optimizer: None, ema: false });
    let id = executor.prepare(plan.clone()).expect("prepared");
    let mut weights = vec![0.0f32; layout.weight_elements()];
    let mut buffers = vec![0.0f32; layout.buffer_elements()];
    filled(&model, case).scatter(&layout, &mut weights, &mut buffers).expect("all tensors");
    executor.write_region(Region::Weights, &weights).expect("weights");
    executor.write_region(Region::Buffers, &buffers).expect("buffers");
    executor.upload_u8(id, images, &pictures("train", BATCH, H, W)).expect("pixels");
    executor.run(id).expect("a run");

    let weights = if tensors.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
    let levels = &heads.branches[0].levels;
    let sizes = levels.iter().map(|l| (plan.shape(l.boxes).h, plan.shape(l.boxes).w, l.stride));
    let mut problem = Problem {
        name: case,
        config: LossConfig::new(model.nc, weights),
        batch: BATCH,
        input_hw: (H, W),
        levels: Levels::new(sizes).expect("levels"),
        heads: vec![],
        offsets: vec![0; BATCH + 1],
        classes: vec![],
        boxes: vec![],
    };
    for row in targets.chunks(6) {
        problem.classes.push(row[1] as u32);
        problem.boxes.push([row[2], row[3], row[4], row[5]]);
        problem.offsets[row[0] as usize + 1..].iter_mut().for_each(|o| *o += 1);
    }
    let pitched = |values: Vec<f32>, channels: usize, pitch: usize| {
        let rows = values.chunks(channels);
        rows.flat_map(|r| r.iter().copied().chain(std::iter::repeat_n(f32::NAN, pitch - channels))).collect()
    };
    let maps = |l: &LevelTensors| Maps {
        boxes: pitched(executor.download(id, l.boxes).expect("boxes"), 64, BOX_PITCH),
        classes: pitched(executor.download(id, l.classes).expect("classes"), model.nc, problem.class_pitch()),
    };
    problem.heads = tensors.iter().map(|levels| levels.iter().map(maps).collect()).collect();
    problem
}

#[test]
fn losses_and_assignments_of_whole_models_match_the_reference() {
    let Some((gpu, loss)) = card::open() else { return };
    for case in CASES {
        let facts = testkit::json(&format!("train/{case}.json"));
        let arrays = testkit::arrays(&format!("train/{case}.safetensors"));
        let problem = problem(case, &arrays["targets"].f32());
        let got = card::run(&gpu, &loss, &problem, Wanted::default());
        crate::agreement::check(&problem, Wanted::default(), &got);

        let want = &facts["losses"][0];
        let numbers = |key: String| -> Vec<f64> {
            want[key].as_array().expect("items").iter().map(|v| v.as_f64().expect("a number")).collect()
        };
        let values: Vec<f64> = got.values.iter().map(|&v| f64::from(v)).collect();
        let total = want["total"].as_f64().expect("a total");
        assert_close(&format!("{case} total"), &values[..1], &[total], 0.0, 1e-5);
        assert_close(&format!("{case} items"), &values[1..4], &numbers("items_box_cls_dfl".into()), 0.0, 1e-5);
        let branches: &[&str] = if problem.heads.len() == 2 { &["aux", "main"] } else { &["main"] };
        for (b, branch) in branches.iter().enumerate() {
            let what = format!("{case} {branch}");
            let own = &values[4 + 5 * b..9 + 5 * b];
            // A single branch is listed as the items alone.
            if want.get(format!("{branch}_box_cls_dfl")).is_some_and(|v| v.is_array()) {
                assert_close(&what, &own[..3], &numbers(format!("{branch}_box_cls_dfl")), 0.0, 1e-5);
            }
            let sum = want[format!("{branch}_target_score_sum")].as_f64().expect("a sum");
            assert_close(&what, &own[4..], &[sum], 0.0, 1e-5);
            let of = |name: &str| &arrays[&format!("{branch}_{name}")].data;
            let mut foreground = 0;
            for (at, &expected) in of("target_score").iter().enumerate() {
                let (owner, score) = (got.owner[b][at], f64::from(got.score[b][at]));
                assert_close(&format!("{what} anchor {at}"), &[score], &[expected], 1e-5, 1e-3);
                if expected > 0.0 {
                    foreground += 1;
                    let index = (problem.offsets[at / problem.levels.anchors()] + owner) as usize;
                    assert_eq!(f64::from(problem.classes[index]), of("target_label")[at], "{what} anchor {at}");
                }
            }
            assert!(foreground > 10, "{what}: {foreground} anchors compared");
        }
    }
}
