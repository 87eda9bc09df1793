//! Plans for cards, on any machine: compiling them needs no card and no driver.

use cuda::kernels::{Nms, Predictions};
use cuda::{CudaBackend, CudaOptions};
use detect::external::LevelTensors;
use detect::nms::NmsConfig;
use graph::{Category, CompileOptions, DType, GraphBuilder, Plan, Precision, Shape, compile};
use model::{Branches, BuildOptions, Mode, Model};
use std::time::Instant;

const NAMES: [&str; 10] =
    ["gelan-t", "gelan-s", "gelan-m", "gelan-c", "gelan-e", "yolov9-t", "yolov9-s", "yolov9-m", "yolov9-c", "yolov9-e"];

/// The training step of a model at 640 pixels.
fn plan(model: &Model, batch: usize, precision: Precision) -> Plan {
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, 640, 640, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, BuildOptions::default()).expect("builds");
    let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
    let branches: Vec<Vec<_>> = heads.branches.iter().map(|b| b.levels.iter().map(level).collect()).collect();
    let weights = if branches.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
    let config = detect::LossConfig::new(model.nc, weights);
    let (loss, _) = detect::external::loss(&mut b, config, &branches, 7 * batch, (640, 640));
    let backend = CudaBackend::new(CudaOptions { precision, tf32: false, tune: false, capture: false });
    compile(b.finish(), &backend, &CompileOptions::training(precision, loss)).expect("a plan")
}

#[test]
fn the_ten_models_compile_for_a_card_in_every_precision() {
    for name in NAMES {
        let model = Model::load(name, None).expect("a model of the zoo");
        let mut arenas = Vec::new();
        for precision in [Precision::BF16, Precision::F16, Precision::F32] {
            let start = Instant::now();
            let plan = plan(&model, 64, precision);
            let memory = plan.memory();
            let (seconds, gib) = (start.elapsed().as_secs_f64(), memory.arena as f64 / (1u64 << 30) as f64);
            println!("{name} {:?}: {seconds:.2} s, arena {gib:.2} GiB", precision.activation);
            arenas.push(memory.arena);
            // The largest scratch of one op is a part of the whole, and scratch of different ops shares memory.
            let scratch = plan.slots().iter().filter(|s| s.category == Category::Workspace).map(|s| s.bytes).max();
            assert!(scratch.is_some_and(|bytes| bytes > 0 && bytes < memory.arena / 2), "{name}: {scratch:?}");
        }
        assert_eq!(arenas[0], arenas[1], "{name}: both half precisions take the same memory");
        assert!(arenas[2] > arenas[0] * 3 / 2, "{name}: {arenas:?}");
    }
}

#[test]
fn weight_gradients_of_biased_convolutions_have_room_for_both_sums() {
    let model = Model::load("gelan-t", Some(3)).expect("a model of the zoo");
    let plan = plan(&model, 2, Precision::F32);
    for (at, node) in plan.graph().nodes().iter().enumerate() {
        if let graph::Op::ConvWeightGrad(op) = &node.op
            && op.bias.is_some()
        {
            let channels = plan.placement(op.dy).channels as u64;
            assert!(plan.workspace(at).1 >= 4 * channels, "{}", node.scope);
        }
    }
}

#[test]
fn suppression_has_the_scratch_of_its_kernels_and_rows_for_what_can_be_found() {
    let model = Model::load("gelan-t", Some(3)).expect("a model of the zoo");
    for (max_det, multi_label, most) in [(7, true, 7), (1 << 40, false, 84), (1 << 40, true, 252)] {
        let config = NmsConfig { max_det, multi_label, ..NmsConfig::default() };
        let mut b = GraphBuilder::new();
        let images = b.input("images", Shape::new(2, 64, 64, 3), DType::U8);
        let x = b.normalize(images);
        let options = BuildOptions { mode: Mode::Folded, branches: Branches::Main };
        let heads = model.build(&mut b, x, options).expect("builds");
        let level = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
        let levels: Vec<_> = heads.branches[0].levels.iter().map(level).collect();
        let predictions = detect::external::predictions(&mut b, &levels, &model.strides, model.nc);
        let found = detect::external::suppress(&mut b, predictions, config.clone(), model.nc);
        let precision = Precision::F16;
        let backend = CudaBackend::new(CudaOptions { precision, tf32: false, tune: false, capture: false });
        let plan = compile(b.finish(), &backend, &CompileOptions::inference(precision)).expect("a plan");
        // 64 + 16 + 4 anchors of three classes.
        assert_eq!(plan.shape(found.rows), Shape::new(2, 1, most, 6));
        let at = plan.graph().nodes().iter().position(|n| n.scope == "nms").expect("an op");
        let shape = Predictions { images: 2, rows: 84, pitch: 8, nc: 3 };
        let scratch = Nms::scratch(shape, &config) as u64;
        // Keys, and corners of what is kept.
        assert!(scratch >= 2 * (8 * 84 + 16 * most as u64) && scratch < 1 << 16, "{scratch}");
        assert_eq!(plan.workspace(at).1, scratch.next_multiple_of(256));
    }
}
