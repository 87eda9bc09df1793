//! The memory-bound kernels against the card's memory: GB/s over the bytes that each must move, beside 4.8 TB/s (one
//! H200). Needs a GPU; without one it says so and ends.
//!
//! `cargo bench -p yolov9-cuda --bench kernels`, with a part of kernels' names behind `--` for those alone. Tensors are
//! 105 MB in bf16 and go through four copies of the operands, so that little is left in the cache from one launch to the
//! next; smaller ones stay there, as they do in a step. Times are medians of nine replays of a graph of eight calls.

#[path = "../common/mod.rs"]
mod common;
mod norms;

use common::{MEMORY, finish, random, time};
use cuda::kernels::{
    Activate, Add, AveragePool, Bias, Branch, Commit, CommitBuffers, CommitChunk, CommitScalars, Copy, Decode,
    DecodeLevel, Fill, MaxPool, Nms, NmsBuffers, Normalize, Predictions, RawReport, Resize,
};
use cuda::{Buffer, Format, Gpu, Result, View};
use detect::nms::NmsConfig;
use graph::ops::PoolAttrs;
use graph::{Activation, CommitStep, GroupScalars, OptimizerKind, ParamGroup};

/// Copies of the operands, calls in a graph, and replays of it.
const SETS: usize = 4;
const LAUNCHES: usize = 8;
const RUNS: usize = 9;
/// Bytes of one set.
const SET: usize = 1 << 30;

/// Places operands one after the other in a set.
struct Room {
    next: u64,
    end: u64,
}

impl Room {
    fn bytes(&mut self, bytes: usize) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(256) as u64;
        assert!(self.next <= self.end, "a set is too small");
        at
    }

    fn view(&mut self, format: Format, [n, h, w, c]: [usize; 4]) -> View {
        self.range(format, [n, h, w, c], c)
    }

    /// A channel range of a tensor of `pitch` channels.
    fn range(&mut self, format: Format, [n, h, w, c]: [usize; 4], pitch: usize) -> View {
        View { at: self.bytes(n * h * w * pitch * format.bytes()), format, n, h, w, c, pitch }
    }

    fn vector(&mut self, c: usize) -> u64 {
        self.bytes(4 * c)
    }

    fn branch(&mut self, shape: [usize; 4]) -> Branch {
        let x = self.view(Format::Bf16, shape);
        let [mean, var, gamma, beta] = [0; 4].map(|_| self.vector(shape[3]));
        Branch { x, mean, var, gamma, beta }
    }
}

struct Bench {
    gpu: Gpu,
    arena: Buffer,
    rows: Vec<serde_json::Value>,
    /// Part of the names of the kernels to run.
    filter: String,
}

impl Bench {
    fn new() -> Result<Self> {
        let gpu = Gpu::open(0)?;
        let arena = random(&gpu, SETS * SET)?;
        println!("{:44} {:>20} {:>8} {:>9} {:>7}", "kernel", "shape", "us", "GB/s", "of 4.8");
        let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
        Ok(Self { gpu, arena, rows: Vec::new(), filter })
    }

    /// Median time of a call with operands that `place` lays out in each set, and the bytes it must move.
    fn case<O>(
        &mut self,
        name: &str,
        shape: &str,
        place: impl Fn(&mut Room) -> (usize, O),
        launch: impl Fn(&O) -> Result<()>,
    ) -> Result<()> {
        if !name.contains(&self.filter) {
            return Ok(());
        }
        let sets: Vec<(usize, O)> = (0..SETS)
            .map(|s| {
                let next = self.arena.address() + (s * SET) as u64;
                place(&mut Room { next, end: next + SET as u64 })
            })
            .collect();
        let us = 1e3 * time(&self.gpu, LAUNCHES, RUNS, |i| launch(&sets[i % SETS].1))?;
        let bytes = sets[0].0;
        let rate = bytes as f64 / us * 1e-3;
        println!("{name:44} {shape:>20} {us:8.1} {rate:9.0} {:6.1}%", rate * 1e9 / MEMORY * 100.0);
        self.rows.push(serde_json::json!({
            "kernel": name, "shape": shape, "us": us, "bytes": bytes, "gb_per_s": rate, "of_bound": rate * 1e9 / MEMORY,
        }));
        Ok(())
    }
}

fn main() {
    finish(benches());
}

fn benches() -> Result<()> {
    let mut bench = Bench::new()?;
    println!("{}", bench.gpu.properties().name);
    for shape in [[64, 160, 160, 32], [64, 80, 80, 128], [64, 40, 40, 512]] {
        norms::norms(&mut bench, shape)?;
        maps(&mut bench, shape)?;
    }
    // Most of the batch norms of yolov9-s at batch 64.
    for shape in [[64, 80, 80, 64], [64, 40, 40, 192], [64, 80, 80, 32], [64, 40, 40, 48], [64, 20, 20, 64]] {
        norms::norms(&mut bench, shape)?;
    }
    pools(&mut bench)?;
    pictures(&mut bench)?;
    commits(&mut bench)?;
    detections(&mut bench)?;
    println!("{}", serde_json::json!({ "card": bench.gpu.properties().name, "kernels": bench.rows }));
    Ok(())
}

fn text(shape: [usize; 4]) -> String {
    shape.map(|e| e.to_string()).join("x")
}

fn maps(bench: &mut Bench, shape: [usize; 4]) -> Result<()> {
    let (name, c) = (text(shape), shape[3]);
    let pixels = shape[0] * shape[1] * shape[2];
    let bytes = pixels * c * 2;
    let pair = |room: &mut Room| (room.view(Format::Bf16, shape), room.view(Format::Bf16, shape));
    let activate = Activate::load(&bench.gpu)?;
    bench.case(
        "activate, SiLU",
        &name,
        |room| (2 * bytes, pair(room)),
        |&(x, y)| {
            // SAFETY: operands lie one after the other in a set.
            unsafe { activate.run(x, Activation::Silu, y) }
        },
    )?;
    bench.case(
        "activate_grad, SiLU",
        &name,
        |room| (3 * bytes, (pair(room), room.view(Format::Bf16, shape))),
        // SAFETY: as above.
        |&((x, dy), dx)| unsafe { activate.gradient(x, dy, Activation::Silu, dx, false) },
    )?;
    let copy = Copy::load(&bench.gpu)?;
    bench.case(
        "copy",
        &name,
        |room| (2 * bytes, pair(room)),
        |&(x, y)| {
            // SAFETY: as above.
            unsafe { copy.run(x, y, false) }
        },
    )?;
    bench.case(
        "copy out of half of the channels",
        &name,
        |room| (2 * bytes, (room.range(Format::Bf16, shape, 2 * c), room.view(Format::Bf16, shape))),
        // SAFETY: as above.
        |&(x, y)| unsafe { copy.run(x, y, false) },
    )?;
    bench.case(
        "copy, accumulating",
        &name,
        |room| (3 * bytes, pair(room)),
        |&(x, y)| {
            // SAFETY: as above.
            unsafe { copy.run(x, y, true) }
        },
    )?;
    bench.case(
        "copy, bf16 added to float32",
        &name,
        |room| (5 * bytes, (room.view(Format::Bf16, shape), room.view(Format::F32, shape))),
        // SAFETY: as above.
        |&(x, y)| unsafe { copy.run(x, y, true) },
    )?;
    let add = Add::load(&bench.gpu)?;
    for count in [2, 4] {
        bench.case(
            &format!("add of {count}"),
            &name,
            |room| {
                let xs: Vec<View> = (0..count).map(|_| room.view(Format::Bf16, shape)).collect();
                (bytes * (count + 1), (xs, room.view(Format::Bf16, shape)))
            },
            // SAFETY: as above.
            |(xs, y)| unsafe { add.run(xs, *y) },
        )?;
    }
    let fill = Fill::load(&bench.gpu)?;
    // SAFETY: as above.
    bench.case("fill", &name, |room| (bytes, room.view(Format::Bf16, shape)), |&y| unsafe { fill.zero(y) })?;
    let bias = Bias::load(&bench.gpu)?;
    bench.case(
        "bias, float32",
        &name,
        |room| (4 * bytes, (room.view(Format::F32, shape), room.vector(c))),
        // SAFETY: as above.
        |&(y, b)| unsafe { bias.run(y, b, Activation::Identity) },
    )?;
    bench.case(
        "bias_grad",
        &name,
        |room| {
            let dy = room.view(Format::Bf16, shape);
            (bytes, (dy, room.vector(c), room.bytes(Bias::scratch(pixels, c))))
        },
        // SAFETY: as above.
        |&(dy, gradient, scratch)| unsafe { bias.gradient(dy, gradient, scratch) },
    )
}

fn pools(bench: &mut Bench) -> Result<()> {
    let max_pool = MaxPool::load(&bench.gpu)?;
    let five = PoolAttrs { kernel: 5, stride: 1, pad: 2 };
    for shape in [[64, 20, 20, 256], [256, 20, 20, 512], [64, 40, 40, 512]] {
        let (name, pixels) = (text(shape), shape[0] * shape[1] * shape[2]);
        let bytes = pixels * shape[3] * 2;
        bench.case(
            "max_pool 5x5",
            &name,
            |room| (2 * bytes, (room.view(Format::Bf16, shape), room.view(Format::Bf16, shape))),
            // SAFETY: operands lie one after the other in a set.
            |&(x, y)| unsafe { max_pool.run(x, y, five) },
        )?;
        bench.case(
            "max_pool 5x5, gradient",
            &name,
            |room| {
                let [x, dy, dx] = [0; 3].map(|_| room.view(Format::Bf16, shape));
                (3 * bytes, (x, dy, dx, room.bytes(MaxPool::scratch(pixels, shape[3], five))))
            },
            // SAFETY: as above.
            |&(x, dy, dx, scratch)| unsafe { max_pool.gradient(x, dy, dx, five, false, scratch) },
        )?;
    }
    let average_pool = AveragePool::load(&bench.gpu)?;
    let two = PoolAttrs { kernel: 2, stride: 1, pad: 0 };
    for large in [[64, 160, 160, 32], [64, 80, 80, 128], [64, 40, 40, 512]] {
        let [n, h, w, c] = large;
        let small = [n, h - 1, w - 1, c];
        let bytes = n * c * 2 * (h * w + (h - 1) * (w - 1));
        let place = |room: &mut Room| (bytes, (room.view(Format::Bf16, large), room.view(Format::Bf16, small)));
        // SAFETY: as above.
        bench.case("average_pool 2x2", &text(large), place, |&(x, y)| unsafe { average_pool.run(x, y, two) })?;
        bench.case("average_pool 2x2, gradient", &text(large), place, |&(dx, dy)| {
            // SAFETY: as above.
            unsafe { average_pool.gradient(dy, dx, two, false) }
        })?;
    }
    let resize = Resize::load(&bench.gpu)?;
    for small in [[64, 40, 40, 256], [64, 80, 80, 128]] {
        let [n, h, w, c] = small;
        let large = [n, 2 * h, 2 * w, c];
        let bytes = n * h * w * c * 2 * 5;
        let place = |room: &mut Room| (bytes, (room.view(Format::Bf16, small), room.view(Format::Bf16, large)));
        // SAFETY: as above.
        bench.case("resize to twice the size", &text(small), place, |&(x, y)| unsafe { resize.run(x, y) })?;
        bench.case("resize to twice the size, gradient", &text(small), place, |&(dx, dy)| {
            // SAFETY: as above.
            unsafe { resize.gradient(dy, dx, false) }
        })?;
    }
    Ok(())
}

fn pictures(bench: &mut Bench) -> Result<()> {
    let normalize = Normalize::load(&bench.gpu)?;
    let shape = [64, 640, 640, 8];
    let pixels = 64 * 640 * 640;
    bench.case(
        "normalize",
        "64x640x640x3",
        |room| (pixels * (3 + 16), (room.bytes(pixels * 3), room.view(Format::Bf16, shape))),
        // SAFETY: operands lie one after the other in a set.
        |&(x, y)| unsafe { normalize.run(x, 3, y) },
    )
}

fn commits(bench: &mut Bench) -> Result<()> {
    let commit = Commit::load(&bench.gpu)?;
    // Parameters of 2^15 elements: more than the models' average, less than their largest.
    let (slot, slots) = (1usize << 15, 800);
    let elements = slot * slots;
    let table = CommitChunk::of((0..slots).map(|i| (i * slot, slot, ParamGroup::Weight, true)));
    let mut chunks = bench.gpu.allocate(size_of_val(&table[..]))?;
    chunks.write(0, &table)?;
    let group = GroupScalars { lr: 1e-4, momentum: 0.937, weight_decay: 5e-4 };
    for (name, kind, each) in [
        ("commit, SGD, average, bf16 copy", OptimizerKind::Sgd, 4 + 34),
        ("commit, AdamW, average, bf16 copy", OptimizerKind::AdamW, 4 + 50),
    ] {
        let step = CommitStep {
            kind,
            groups: [group; 3],
            beta2: 0.999,
            eps: 1e-8,
            clip: 10.0,
            step: 100,
            ema_decay: Some(0.999),
        };
        let mut scalars = bench.gpu.allocate(size_of::<CommitScalars>())?;
        scalars.write(0, &[CommitScalars::new(&step)])?;
        let (chunks, scalars) = (chunks.address(), scalars.address());
        let count = table.len();
        bench.case(
            name,
            &format!("{elements}"),
            |room| {
                let [weights, gradients, average, a, b, c] = [0; 6].map(|_| room.bytes(elements * 4));
                let buffers = CommitBuffers {
                    chunks,
                    chunk_count: count,
                    scalars,
                    report: room.bytes(size_of::<RawReport>()),
                    scratch: room.bytes(Commit::scratch(count)),
                    weights,
                    gradients,
                    average,
                    state: [a, b, c],
                    half_copy: Some((room.bytes(elements * 2), Format::Bf16)),
                    ..CommitBuffers::default()
                };
                (elements * each, buffers)
            },
            // SAFETY: as above.
            |buffers| unsafe { commit.run(kind, buffers) },
        )?;
    }
    Ok(())
}

fn detections(bench: &mut Bench) -> Result<()> {
    let (images, nc, pitch) = (64, 80, 88);
    let anchors = 80 * 80 + 40 * 40 + 20 * 20;
    let decode = Decode::load(&bench.gpu)?;
    bench.case(
        "decode",
        "64 x 8400, 80 classes",
        |room| {
            let levels = [(80, 8), (40, 16), (20, 32)].map(|(side, stride)| DecodeLevel {
                boxes: room.view(Format::F32, [images, side, side, 64]),
                classes: room.view(Format::F32, [images, side, side, nc]),
                stride,
            });
            (images * anchors * 4 * (64 + nc + 4 + nc), (levels, room.bytes(images * anchors * pitch * 4)))
        },
        // SAFETY: operands lie one after the other in a set.
        |(levels, out)| unsafe { decode.run(levels, nc, *out, pitch) },
    )?;
    // A few thousand candidates an image at the threshold of validation, around a few dozen places.
    let mut seed = 11u32;
    let mut unit = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / 16_777_216.0
    };
    let mut rows = vec![0.0f32; images * anchors * pitch];
    for row in rows.chunks_exact_mut(pitch) {
        let place = (unit() * 40.0).floor();
        row[0] = place * 16.0 + unit() * 8.0;
        row[1] = (place * 7.0) % 40.0 * 16.0 + unit() * 8.0;
        row[2] = 20.0 + unit() * 40.0;
        row[3] = 20.0 + unit() * 40.0;
        row[4..4 + nc].iter_mut().for_each(|score| *score = unit().powi(900));
    }
    let mut predictions = bench.gpu.allocate(rows.len() * 4)?;
    predictions.write(0, &rows)?;
    let nms = Nms::load(&bench.gpu)?;
    let shape = Predictions { images, rows: anchors, pitch, nc };
    for (name, conf_threshold, multi_label) in [("nms, validation", 0.001, true), ("nms, detection", 0.25, false)] {
        let config =
            NmsConfig { conf_threshold, iou_threshold: 0.7, multi_label, max_det: 300, ..NmsConfig::default() };
        let at = predictions.address();
        bench.case(
            name,
            "64 x 8400, 80 classes",
            |room| {
                let buffers = NmsBuffers {
                    predictions: at,
                    wanted: None,
                    scratch: room.bytes(Nms::scratch(shape, &config)),
                    detections: room.bytes(images * config.max_det * 32),
                    detections_pitch: 8,
                    found: room.bytes(images * 4),
                };
                (images * anchors * (4 + nc) * 4, buffers)
            },
            // SAFETY: as above.
            |buffers| unsafe { nms.run(shape, &config, buffers) },
        )?;
    }
    Ok(())
}
