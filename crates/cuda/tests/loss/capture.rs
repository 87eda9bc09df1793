//! The loss inside of a CUDA graph.

use crate::card::{self, Placed, Wanted};
use crate::problem::{Problem, Random, scattered};
use cudarc::driver::sys;
use detect::LossConfig;

#[test]
fn a_captured_loss_gives_the_bits_of_a_launched_one() {
    let mut random = Random(30);
    let boxes = vec![scattered(&mut random, 20, 0.02, 0.5), vec![]];
    let problem = Problem::new("captured", LossConfig::new(80, vec![0.25, 1.0]), (160, 160), boxes, 31);
    let Some((gpu, loss)) = card::open() else { return };
    let placed = Placed::new(&gpu, &problem, Wanted::default());
    placed.run(&loss);
    let launched = placed.read();
    let again = Placed::new(&gpu, &problem, Wanted { poison: 0x11, ..Wanted::default() });
    let stream = gpu.stream();
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).expect("a capture");
    again.run(&loss);
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("a graph").expect("launches were captured");
    for _ in 0..3 {
        graph.launch().expect("a replay");
    }
    let replayed = again.read();
    let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&launched.values), bits(&replayed.values));
    for (a, b) in launched.gradients.iter().flatten().zip(replayed.gradients.iter().flatten()) {
        assert!(bits(&a.0) == bits(&b.0) && bits(&a.1) == bits(&b.1), "gradients differ");
    }
}
