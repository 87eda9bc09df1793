//! Our own convolution kernels against their bounds. Needs a GPU; without one it says so and ends.
//!
//! `cargo bench -p yolov9-cuda --bench own_conv`. bf16, batch 64. Bounds: FLOPs at 600 TFLOP/s or bytes at 3.6 TB/s (one
//! H200), the larger. Times are medians of 15 replays of a graph of calls, which go round enough sets of buffers that
//! none finds its operands in the second-level cache.

mod common;

use common::{bound, finish, random, time};
use cuda::conv::{Pass, Request, Shape};
use cuda::kernels::own_conv::{OwnConv, serves, workspace};
use cuda::{Buffer, Format, Gpu, Result};

const IMAGES: usize = 64;
const REPLAYS: usize = 15;
/// Calls in one graph.
const CALLS: usize = 24;
/// Bytes that one round of buffers has at least: five times the largest cache.
const ROUND: usize = 300 << 20;

struct Bench {
    gpu: Gpu,
    own: OwnConv,
    /// Random values, from which every operand is taken.
    pool: Buffer,
    space: Buffer,
}

/// Bytes of x, w and y.
fn extents(r: &Request) -> [usize; 3] {
    let s = &r.shape;
    let size = |pass| if r.pass == pass { r.result().bytes() } else { r.format.bytes() };
    let x = s.in_pixels() * s.input_pitch * if r.bytes { 1 } else { size(Pass::Data) };
    [x, s.weights() * size(Pass::Weight), s.out_pixels() * s.output_pitch * size(Pass::Forward)]
}

impl Bench {
    fn new() -> Result<Self> {
        let gpu = Gpu::open(0)?;
        let (pool, space) = (random(&gpu, 6 << 30)?, gpu.allocate(64 << 20)?);
        Ok(Self { own: OwnConv::new(&gpu), gpu, pool, space })
    }

    /// Median milliseconds of one call.
    fn time(&self, r: &Request) -> Result<f64> {
        let pass = self.own.prepare(r)?;
        let sizes = extents(r).map(|b| (b + 4096).next_multiple_of(4096));
        let one: usize = sizes.iter().sum();
        let sets = ROUND.div_ceil(one).clamp(2, CALLS).min(self.pool.bytes() / one).max(1);
        assert!(one * sets <= self.pool.bytes() && workspace(r) <= self.space.bytes() as u64);
        time(&self.gpu, CALLS, REPLAYS, |i| {
            let x = self.pool.address() + ((i % sets) * one) as u64;
            let w = x + sizes[0] as u64;
            // SAFETY: the pool holds the sets, the workspace what was asserted.
            unsafe { pass.run([x, w, w + sizes[1] as u64], self.space.address()) }
        })
    }

    fn row(&self, what: &str, base: Request) -> Result<()> {
        let mut text = format!("| {what:<36} |");
        for pass in Pass::ALL {
            let r = Request { pass, add: pass == Pass::Weight, ..base };
            if !serves(&r) {
                text += "      -      -     - |";
                continue;
            }
            // A stem's padding is no work.
            let work = if r.shape.inputs == 8 { 3.0 / 8.0 } else { 1.0 };
            let bound = bound(r.shape.flops() * work, r.bytes() as f64);
            let ms = self.time(&r)?;
            text += &format!(" {ms:>6.4} {bound:>6.4} {:>5.2} |", ms / bound);
        }
        println!("{text}");
        Ok(())
    }
}

fn request(side: usize, inputs: usize, outputs: usize, kernel: usize, stride: usize, groups: usize) -> Request {
    let shape = Shape { groups, ..Shape::packed(IMAGES, side, inputs, outputs, kernel, stride) };
    Request::new(shape, Pass::Forward, Format::Bf16)
}

fn bench() -> Result<()> {
    let bench = Bench::new()?;
    println!("{}, batch {IMAGES}, bf16: ms, bound, ratio of each pass", bench.gpu.properties().name);
    println!("| {:<36} | {:^20} | {:^20} | {:^20} |", "", "forward", "data gradient", "weight gradient");
    for outputs in [16, 32, 64] {
        let stem = request(640, 8, outputs, 3, 2, 1);
        bench.row(&format!("stem 3->{outputs} @640"), stem)?;
        let bytes = Request { bytes: true, shape: stem.shape.over_bytes(), ..stem };
        bench.row(&format!("stem 3->{outputs} @640 from bytes"), bytes)?;
    }
    for (side, inputs, outputs) in [(320, 16, 32), (320, 32, 64), (159, 32, 64)] {
        bench.row(&format!("3x3 {inputs}->{outputs} stride 2 @{side}"), request(side, inputs, outputs, 3, 2, 1))?;
    }
    for side in [80, 40, 20] {
        bench.row(&format!("3x3 64->64 in 4 groups @{side}"), request(side, 64, 64, 3, 1, 4))?;
        let point = request(side, 64, 64, 1, 1, 4);
        bench.row(&format!("1x1 64->64 in 4 groups @{side}"), point)?;
        bench.row(&format!("1x1 64->64 in 4 groups @{side}, f32"), Request { output: Format::F32, ..point })?;
    }
    for (side, channels) in [(160, 16), (80, 16), (80, 24), (40, 24), (160, 32), (80, 32), (20, 32), (80, 48), (40, 48)]
    {
        bench.row(&format!("3x3 {channels}->{channels} @{side}"), request(side, channels, channels, 3, 1, 1))?;
    }
    Ok(())
}

fn main() {
    finish(bench());
}
