//! Where a training step's time goes, by kind of op: `cargo bench -p yolov9-cpu --bench step`.
//!
//! MODEL, NC, IMG and BATCH choose the step (yolov9-t, 3, 320, 16); the fastest of REPEATS (5) runs counts.

use cpu::{CpuBackend, CpuExecutor};
use detect::external::LevelTensors;
use graph::{
    CompileOptions, DType, Executor, GraphBuilder, OptimizerKind, Precision, Region, Shape, StateSpec, compile, cost,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() {
    let (name, nc) = (setting("MODEL", "yolov9-t".to_owned()), setting("NC", 3));
    let (side, batch, repeats) = (setting("IMG", 320), setting("BATCH", 16), setting("REPEATS", 5));
    let model = model::Model::load(&name, Some(nc)).expect("a model of the zoo");
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, side, side, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, model::BuildOptions::default()).expect("a size that fits");
    let branches: Vec<Vec<LevelTensors>> = heads
        .branches
        .iter()
        .map(|b| b.levels.iter().map(|l| LevelTensors { boxes: l.boxes, classes: l.classes }).collect())
        .collect();
    let weights = if branches.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
    let config = detect::LossConfig::new(nc, weights);
    let (loss, targets) = detect::external::loss(&mut b, config, &branches, 64 * batch, (side, side));
    let options = CompileOptions::training(Precision::F32, loss);
    let plan = Arc::new(compile(b.finish(), &CpuBackend, &options).expect("a plan"));
    let layout = plan.params().clone();
    let mut executor =
        CpuExecutor::<f32>::new(StateSpec { layout: layout.clone(), optimizer: Some(OptimizerKind::Sgd), ema: true });
    let id = executor.prepare(plan.clone()).expect("prepared");
    let mut weights = vec![0.0f32; layout.weight_elements()];
    let mut buffers = vec![0.0f32; layout.buffer_elements()];
    model::init(&model, 0).and_then(|t| t.scatter(&layout, &mut weights, &mut buffers)).expect("initialised");
    executor.write_region(Region::Weights, &weights).expect("kept");

    let pixels: Vec<u8> = (0..batch * side * side * 3).map(|i| (testkit::mix(i as u64) >> 56) as u8).collect();
    let offsets: Vec<u32> = (0..=batch as u32).map(|i| 7 * i).collect();
    let classes: Vec<u32> = (0..7 * batch).map(|i| (i % nc) as u32).collect();
    let boxes: Vec<f32> = (0..7 * batch)
        .flat_map(|i| {
            let u = |k: u64| (testkit::mix(i as u64 * 4 + k) >> 40) as f32 / (1u64 << 24) as f32;
            [0.2 + 0.6 * u(0), 0.2 + 0.6 * u(1), 0.05 + 0.3 * u(2), 0.05 + 0.3 * u(3)]
        })
        .collect();
    let mut best: Option<Vec<Duration>> = None;
    for _ in 0..=repeats {
        executor.upload_u8(id, images, &pixels).expect("pixels");
        executor.upload_u32(id, targets.offsets, &offsets).expect("offsets");
        executor.upload_u32(id, targets.classes, &classes).expect("classes");
        executor.upload_f32(id, targets.boxes, &boxes).expect("boxes");
        let times = executor.run_timed(id).expect("a run");
        match &mut best {
            None => best = Some(times),
            Some(best) => best.iter_mut().zip(times).for_each(|(b, t)| *b = t.min(*b)),
        }
    }
    report(&plan, &best.expect("at least one run"), batch);
}

fn report(plan: &graph::Plan, times: &[Duration], batch: usize) {
    let mut rows: BTreeMap<String, (Duration, u64, u64, usize)> = BTreeMap::new();
    for (node, &time) in plan.graph().nodes().iter().zip(times) {
        let cost = cost(&node.op, plan.graph(), plan.precision());
        let row = rows.entry(node.op.name().to_owned()).or_default();
        *row = (row.0 + time, row.1 + cost.macs, row.2 + cost.bytes, row.3 + 1);
    }
    let total: Duration = times.iter().sum();
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r.1.0));
    println!("{:16} {:>5} {:>9} {:>6} {:>9} {:>7}", "op", "count", "ms", "%", "GFLOP/s", "GB/s");
    for (name, (time, macs, bytes, count)) in rows {
        let seconds = time.as_secs_f64();
        println!(
            "{name:16} {count:5} {:9.1} {:6.1} {:9.1} {:7.1}",
            1e3 * seconds,
            100.0 * seconds / total.as_secs_f64(),
            2e-9 * macs as f64 / seconds,
            1e-9 * bytes as f64 / seconds
        );
    }
    println!("step {:.1} ms, {:.2} images/s", 1e3 * total.as_secs_f64(), batch as f64 / total.as_secs_f64());
}
