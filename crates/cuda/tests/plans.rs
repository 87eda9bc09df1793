//! Plans for cards, on any machine: compiling them needs no card and no driver.

use cuda::{CudaBackend, CudaOptions};
use detect::external::LevelTensors;
use graph::{Category, CompileOptions, DType, GraphBuilder, Plan, Precision, Shape, compile};
use model::{BuildOptions, Model};
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
