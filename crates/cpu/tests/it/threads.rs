//! The number of threads changes no bit.

use crate::common::{Packed, filled, load, pictures, step};
use graph::{CommitStep, Executor, GroupScalars, OptimizerKind, Region};

fn weights_after_two_steps(threads: usize) -> Vec<f32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
    pool.install(|| {
        let model = load("yolov9-t-nc80");
        let shape = [3, 96, 128];
        let mut step = step(&model, &filled(&model, "yolov9-t-nc80"), shape, OptimizerKind::AdamW);
        let rows = [[0.0, 1.0, 0.4, 0.5, 0.3, 0.4], [2.0, 70.0, 0.6, 0.3, 0.2, 0.5]];
        step.upload(&pictures("train", 3, 96, 128), &Packed::of(rows.as_flattened(), 3));
        for count in 1..=2 {
            step.run();
            let group = GroupScalars { lr: 1e-3, momentum: 0.9, weight_decay: 1e-4 };
            let commit = CommitStep {
                kind: OptimizerKind::AdamW,
                groups: [group; 3],
                beta2: 0.999,
                eps: 1e-8,
                clip: 10.0,
                step: count,
                ema_decay: Some(0.9),
            };
            assert!(step.executor.commit(&commit).expect("commits").applied);
        }
        let mut all = step.executor.read_region(Region::Weights).expect("kept");
        all.extend(step.executor.read_region(Region::EmaWeights).expect("kept"));
        all.extend(step.executor.read_region(Region::Buffers).expect("kept"));
        all
    })
}

#[test]
fn one_two_and_three_threads_give_the_same_weights() {
    let one = weights_after_two_steps(1);
    for threads in [2, 3] {
        assert!(one == weights_after_two_steps(threads), "{threads} threads");
    }
}
