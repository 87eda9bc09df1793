//! Our own convolution kernels against their bounds. Needs a GPU; without one it says so and ends.
//!
//! `cargo bench -p yolov9-cuda --bench own_conv`. bf16, batch 64. Bounds: FLOPs at 600 TFLOP/s or bytes at 3.6 TB/s (one
//! H200), the larger. Times are medians of 15 replays of a graph of calls, which go round enough sets of buffers that
//! none finds its operands in the second-level cache.

use cuda::cudnn::Pass;
use cuda::kernels::own_conv::{OwnConv, Request, workspace};
use cuda::{Buffer, Format, Gpu, Result};
use cudarc::driver::sys;

const IMAGES: usize = 64;
const FLOPS: f64 = 600e12;
const BYTES: f64 = 3.6e12;
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

/// Elements of x, w and y, packed, and bytes of each.
fn extents(r: &Request) -> ([usize; 3], [usize; 3]) {
    let out = |extent: usize| (extent + 2 * r.pad - r.kernel) / r.stride + 1;
    let x = r.images * r.height * r.width * if r.bytes { 3 } else { r.inputs };
    let w = r.outputs * r.kernel * r.kernel * r.inputs / r.groups;
    let y = r.images * out(r.height) * out(r.width) * r.outputs;
    let size = |pass| if r.pass == pass { r.output.bytes() } else { r.operands.bytes() };
    let x_bytes = if r.bytes { x } else { x * size(Pass::Data) };
    ([x, w, y], [x_bytes, w * size(Pass::Weight), y * size(Pass::Forward)])
}

impl Bench {
    fn new() -> Result<Self> {
        let gpu = Gpu::open(0)?;
        let bytes = 6usize << 30;
        let mut pool = gpu.allocate(bytes)?;
        // Values below one in any format: the same 16 MB again and again, at odd distances from each other's use.
        let values: Vec<u16> = (0..8u64 << 20)
            .map(|i| {
                let bits = testkit::mix(i);
                half::bf16::from_f32((bits >> 40) as f32 / (1u64 << 23) as f32 - 1.0).to_bits()
            })
            .collect();
        for at in (0..bytes).step_by(16 << 20) {
            pool.write(at, &values)?;
        }
        let space = gpu.allocate(64 << 20)?;
        Ok(Self { own: OwnConv::new(&gpu), gpu, pool, space })
    }

    /// Median milliseconds of one call.
    fn time(&self, r: &Request) -> Result<f64> {
        let pass = self.own.prepare(r)?;
        let (_, bytes) = extents(r);
        let sizes = bytes.map(|b| (b + 4096).next_multiple_of(4096));
        let one: usize = sizes.iter().sum();
        let sets = ROUND.div_ceil(one).clamp(2, CALLS).min(self.pool.bytes() / one).max(1);
        assert!(one * sets <= self.pool.bytes() && workspace(r) <= self.space.bytes() as u64);
        let call = |i: usize| {
            let x = self.pool.address() + ((i % sets) * one) as u64;
            let w = x + sizes[0] as u64;
            // SAFETY: the pool holds the sets, the workspace what was asserted.
            unsafe { pass.run([x, w, w + sizes[1] as u64], self.space.address()) }
        };
        let stream = self.gpu.stream();
        call(0)?;
        self.gpu.synchronize()?;
        stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let outcome = (0..CALLS).try_for_each(call);
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags)?;
        outcome?;
        let graph = graph.expect("calls were captured");
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let (start, end) = (stream.context().new_event(flags)?, stream.context().new_event(flags)?);
        let mut times = Vec::new();
        for i in 0..REPLAYS + 2 {
            start.record(stream)?;
            graph.launch()?;
            end.record(stream)?;
            end.synchronize()?;
            if i >= 2 {
                times.push(f64::from(start.elapsed_ms(&end)?) / CALLS as f64);
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn row(&self, what: &str, base: Request) -> Result<()> {
        let mut text = format!("| {what:<36} |");
        for pass in Pass::ALL {
            let output = match pass {
                Pass::Weight => Format::F32,
                Pass::Forward => base.output,
                Pass::Data => base.operands,
            };
            let r = Request { pass, output, add: pass == Pass::Weight, ..base };
            if !cuda::kernels::own_conv::serves(&r) {
                text += "      -      -     - |";
                continue;
            }
            let (elements, bytes) = extents(&r);
            let flops = 2.0 * elements[2] as f64 * (elements[1] / r.outputs) as f64;
            // A stem's padding is no work.
            let flops = if r.stride == 2 { flops * 3.0 / 8.0 } else { flops };
            let bound = 1e3 * (flops / FLOPS).max(bytes.iter().sum::<usize>() as f64 / BYTES);
            let ms = self.time(&r)?;
            text += &format!(" {ms:>6.4} {bound:>6.4} {:>5.2} |", ms / bound);
        }
        println!("{text}");
        Ok(())
    }
}

fn request(side: usize, inputs: usize, outputs: usize, kernel: usize, stride: usize, groups: usize) -> Request {
    Request {
        images: IMAGES,
        height: side,
        width: side,
        inputs,
        outputs,
        kernel,
        stride,
        pad: kernel / 2,
        groups,
        input_pitch: inputs,
        output_pitch: outputs,
        pass: Pass::Forward,
        operands: Format::Bf16,
        output: Format::Bf16,
        add: false,
        bytes: false,
    }
}

fn bench() -> Result<()> {
    let bench = Bench::new()?;
    println!("{}, batch {IMAGES}, bf16: ms, bound, ratio of each pass", bench.gpu.properties().name);
    println!("| {:<36} | {:^20} | {:^20} | {:^20} |", "", "forward", "data gradient", "weight gradient");
    for outputs in [16, 32, 64] {
        let stem = request(640, 8, outputs, 3, 2, 1);
        bench.row(&format!("stem 3->{outputs} @640"), stem)?;
        bench.row(&format!("stem 3->{outputs} @640 from bytes"), Request { bytes: true, input_pitch: 3, ..stem })?;
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
    if Gpu::count() == 0 {
        println!("skipped: no NVIDIA GPU");
        return;
    }
    if let Err(error) = bench() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
