//! What cuDNN and cuBLASLt do with the shapes of these models, against the bound of each: the table that decides who
//! serves a shape. Needs a GPU; without one it says so and ends.
//!
//! `cargo bench -p yolov9-cuda --bench probe`. Bounds: FLOPs at 600 TFLOP/s or bytes at 3.6 TB/s (one H200), the
//! larger. Times are medians of 15 replays of a graph of ten calls each.

mod common;

use common::{bound, finish, random, time};
use cuda::conv::{Pass, Shape};
use cuda::cublaslt::{CublasLt, Formats};
use cuda::cudnn::{Convolution, Cudnn, Wanted, usable};
use cuda::libraries::{self, Library};
use cuda::{Buffer, Format, Gpu, Result};

const IMAGES: usize = 64;
const WORKSPACE: usize = 128 << 20;
/// Calls in one graph, and replays of it.
const CALLS: usize = 10;
const REPLAYS: usize = 15;

struct Bench {
    gpu: Gpu,
    cudnn: Cudnn,
    lt: CublasLt,
    /// Random values, from which every operand is taken.
    pool: Buffer,
    workspace: Buffer,
}

impl Bench {
    fn new() -> Result<Self> {
        let gpu = Gpu::open(0)?;
        let (pool, workspace) = (random(&gpu, 6 << 30)?, gpu.allocate(WORKSPACE)?);
        let (cudnn, lt) = (Cudnn::new(gpu.stream().clone())?, CublasLt::new(gpu.stream().clone())?);
        Ok(Self { gpu, cudnn, lt, pool, workspace })
    }

    /// Places of x, w, y (and float32 weights) in the pool, gigabytes apart.
    fn places(&self, bytes_in: usize) -> [u64; 3] {
        let base = self.pool.address();
        let (w, gap) = (base, 256u64 << 20);
        [base + gap, w, base + gap + (bytes_in as u64).next_multiple_of(1 << 20)]
    }

    /// Median milliseconds of one call.
    fn time(&self, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
        time(&self.gpu, CALLS, REPLAYS, |_| call())
    }

    /// The fastest of cuDNN's first picks, in ms, with its number; `None` where none may be used.
    fn cudnn(&self, shape: Shape, pass: Pass) -> Result<Option<(f64, i32)>> {
        let Ok(conv): Result<Convolution> = self.cudnn.convolution(shape, Format::Bf16, false) else {
            return Ok(None);
        };
        let Ok(all) = self.cudnn.algorithms(&conv, pass) else { return Ok(None) };
        let Ok(picks) = usable(all, WORKSPACE, "probe") else { return Ok(None) };
        let places = self.places(shape.in_pixels() * shape.input_pitch * 2);
        let workspace = self.workspace.address();
        let mut best: Option<(f64, i32)> = None;
        for pick in picks.into_iter().take(4) {
            // SAFETY: the pool is larger than any of the tensors together.
            let Ok(ms) = self.time(|| unsafe { self.cudnn.run(&conv, pass, pick, places, workspace, false) }) else {
                continue;
            };
            if best.is_none_or(|(b, _)| ms < b) {
                best = Some((ms, pick.id));
            }
        }
        Ok(best)
    }

    /// The fastest of the graph interface's first picks, in ms, with its engine.
    fn graph(&self, shape: &Shape, pass: Pass, formats: [Format; 3]) -> Result<Option<(f64, i64)>> {
        let wanted = Wanted { exact: false, workspace: WORKSPACE, engines: 12 };
        let Ok(plans) = self.cudnn.plans(shape, pass, formats, false, wanted) else { return Ok(None) };
        let places = self.places(shape.in_pixels() * shape.input_pitch * 2);
        let workspace = self.workspace.address();
        let mut best: Option<(f64, i64)> = None;
        for plan in &plans {
            // SAFETY: as above.
            let Ok(ms) = self.time(|| unsafe { self.cudnn.run_plan(plan, places, workspace) }) else { continue };
            if best.is_none_or(|(b, _)| ms < b) {
                best = Some((ms, plan.engine));
            }
        }
        Ok(best)
    }

    fn lt(&self, shape: &Shape, pass: Pass) -> Result<Option<(f64, usize)>> {
        let product = self.lt.product(shape, pass, Formats::all(Format::Bf16))?;
        let places = self.places(shape.in_pixels() * shape.input_pitch * 2);
        let workspace = self.workspace.address();
        let Ok(picks) = self.lt.algorithms(&product, WORKSPACE, 8) else { return Ok(None) };
        let mut best: Option<(f64, usize)> = None;
        for (i, pick) in picks.iter().enumerate() {
            // SAFETY: as above.
            let Ok(ms) = self.time(|| unsafe { self.lt.run(&product, pick, places, workspace, false) }) else {
                continue;
            };
            if best.is_none_or(|(b, _)| ms < b) {
                best = Some((ms, i));
            }
        }
        Ok(best)
    }

    fn row(&self, what: &str, shape: Shape, with_lt: bool) -> Result<()> {
        let mut text = format!("| {what:<44} |");
        for pass in Pass::ALL {
            let bytes = 2 * (shape.in_pixels() * shape.inputs + shape.out_pixels() * shape.outputs + shape.weights());
            let bound = bound(shape.flops(), bytes as f64);
            let show = |found: Option<f64>| found.map_or("-".to_owned(), |ms| format!("{ms:.3}"));
            let cudnn = self.cudnn(shape, pass)?;
            text += &format!(" {:>6}", show(cudnn.map(|c| c.0)));
            let graph = self.graph(&shape, pass, [Format::Bf16; 3])?;
            text += &format!(" {:>6} {:>3}", show(graph.map(|g| g.0)), graph.map_or(-1, |g| g.1));
            if pass == Pass::Weight {
                let single = self.graph(&shape, pass, [Format::Bf16, Format::F32, Format::Bf16])?;
                text += &format!(" {:>6}", show(single.map(|g| g.0)));
            }
            if with_lt {
                text += &format!(" {:>6}", show(self.lt(&shape, pass)?.map(|l| l.0)));
            }
            text += &format!(" {bound:>6.3} |");
        }
        println!("{text}");
        Ok(())
    }
}

fn probe() -> Result<()> {
    let bench = Bench::new()?;
    println!("{}, cuDNN {}", bench.gpu.properties().name, Cudnn::version()?);
    for library in Library::ALL {
        println!(
            "{:<16} {}",
            library.name(),
            libraries::mapped(library).map_or("-".into(), |p| p.display().to_string())
        );
    }
    println!(
        "\nmilliseconds: cuDNN legacy, graph interface and its engine, (weight gradient in float32,) (cuBLASLt,) bound; forward | data gradient | weight gradient"
    );
    let ranges = |s: Shape, input: usize, output: usize| Shape { input_pitch: input, output_pitch: output, ..s };
    println!("\nchannel ranges, batch {IMAGES}");
    for (side, c, k) in [(160, 64, 3), (160, 64, 1), (80, 128, 3), (80, 128, 1), (40, 128, 3), (80, 32, 3)] {
        let s = Shape::packed(IMAGES, side, c, c, k, 1);
        bench.row(&format!("{k}x{k} {c}->{c} @{side} packed"), s, k == 1)?;
        bench.row(&format!("{k}x{k} {c}->{c} @{side} x in {}", 4 * c), ranges(s, 4 * c, c), k == 1)?;
        bench.row(&format!("{k}x{k} {c}->{c} @{side} y in {}", 4 * c), ranges(s, c, 4 * c), k == 1)?;
        bench.row(&format!("{k}x{k} {c}->{c} @{side} both in {}", 4 * c), ranges(s, 4 * c, 4 * c), k == 1)?;
    }
    println!("\npointwise, batch {IMAGES}");
    for (side, c_in, c_out) in [
        (160, 32, 64),
        (160, 64, 64),
        (160, 128, 64),
        (80, 64, 64),
        (80, 128, 128),
        (80, 256, 128),
        (40, 192, 192),
        (40, 256, 256),
        (40, 512, 256),
        (20, 256, 256),
        (20, 512, 512),
        (20, 1024, 512),
        (80, 32, 32),
        (40, 48, 48),
        (80, 128, 80),
        (80, 64, 64),
    ] {
        bench.row(&format!("1x1 {c_in}->{c_out} @{side}"), Shape::packed(IMAGES, side, c_in, c_out, 1, 1), true)?;
    }
    println!("\nchannels that are no multiples of 16, raw and padded, batch {IMAGES}");
    for (side, raw, padded) in
        [(80, 60, 64), (40, 90, 96), (40, 180, 184), (40, 180, 192), (20, 180, 192), (80, 120, 128)]
    {
        for k in [3, 1] {
            for c in [raw, padded] {
                bench.row(&format!("{k}x{k} {c}->{c} @{side}"), Shape::packed(IMAGES, side, c, c, k, 1), k == 1)?;
            }
            if raw % 8 != 0 {
                let pitch = raw.next_multiple_of(8);
                let s = Shape::packed(IMAGES, side, raw, raw, k, 1);
                bench.row(&format!("{k}x{k} {raw}->{raw} @{side} pitch {pitch}"), ranges(s, pitch, pitch), k == 1)?;
            }
        }
    }
    println!("\nfew channels and odd ones, batch {IMAGES}");
    for (side, c, stride) in [
        (160, 16, 1),
        (80, 16, 1),
        (80, 24, 1),
        (40, 24, 1),
        (160, 32, 1),
        (80, 32, 1),
        (80, 48, 1),
        (40, 48, 1),
        (80, 64, 1),
        (40, 64, 1),
        (20, 64, 1),
        (160, 64, 1),
        (80, 128, 1),
        (40, 128, 1),
        (20, 128, 1),
        (40, 192, 1),
        (20, 256, 1),
    ] {
        bench.row(&format!("3x3 {c}->{c} @{side}"), Shape::packed(IMAGES, side, c, c, 3, stride), false)?;
    }
    for (side, c_in, c_out) in
        [(640, 4, 32), (640, 8, 32), (640, 4, 64), (320, 32, 64), (320, 16, 32), (159, 64, 128), (79, 128, 192)]
    {
        let s = Shape::packed(IMAGES, side, c_in, c_out, 3, 2);
        bench.row(&format!("3x3 stride 2 {c_in}->{c_out} @{side}"), s, false)?;
    }
    bench.row("3x3 stride 2 3->32 @640", Shape::packed(IMAGES, 640, 3, 32, 3, 2), false)?;
    for side in [80, 40, 20] {
        let s = Shape { groups: 4, ..Shape::packed(IMAGES, side, 64, 64, 3, 1) };
        bench.row(&format!("3x3 64->64 in 4 groups @{side}"), s, false)?;
        let s = Shape { kernel: 1, pad: 0, ..s };
        bench.row(&format!("1x1 64->64 in 4 groups @{side}"), s, false)?;
    }
    Ok(())
}

fn main() {
    finish(probe());
}
