//! Every convolution of a model's training step, by whom it is served, against its bound. Without a GPU, all but times.
//!
//! `cargo bench -p yolov9-cuda --bench convs`. MODELS (yolov9-t,yolov9-s,yolov9-m), BATCH (64) and IMG (640) choose the
//! steps, FORMAT (bf16) the precision; JSON names a file for all rows. Bounds: FLOPs at 600
//! TFLOP/s or bytes at 3.6 TB/s (one H200), the larger. Times are medians of 9 replays of a graph of ten calls.

mod common;

use common::{bound, finish, random, time};
use cuda::conv::{Convolutions, Pass, Places, Request, Shape, serve, workspace};
use cuda::{CudaBackend, CudaError, CudaOptions, Format, Gpu, libraries};
use graph::{Level, Precision, Recompute};
use model::{Model, ModelError};
use parity::compile_step;
use serde_json::{Value, json};
use std::collections::HashMap;

const NC: usize = 80;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// The unique requests of a model's training step, with how often each occurs, in order of first use.
fn requests(name: &str, batch: usize, side: usize, precision: Precision) -> Result<Vec<(Request, usize)>, ModelError> {
    let model = Model::load(name, Some(NC))?;
    let backend = CudaBackend::new(CudaOptions { precision, tf32: false, tune: true, capture: false });
    let step =
        compile_step(&model, [batch, side, side], Recompute::Level(Level::KeepAll), (&backend, precision), false);
    let mut found: Vec<(Request, usize)> = Vec::new();
    let mut index: HashMap<Request, usize> = HashMap::new();
    let graph = step.plan.graph();
    for request in graph.nodes().iter().filter_map(|node| backend.request(&node.op, graph, precision)) {
        let at = *index.entry(request).or_insert(found.len());
        if at == found.len() {
            found.push((request, 0));
        }
        found[at].1 += 1;
    }
    Ok(found)
}

/// Least milliseconds that a request takes.
fn least(request: &Request) -> f64 {
    bound(request.shape.flops(), request.bytes() as f64)
}

/// Memory for any of the requests: two operands, a result, and scratch.
struct Pool {
    operands: [cuda::Buffer; 2],
    result: cuda::Buffer,
    scratch: cuda::Buffer,
}

impl Pool {
    fn new(gpu: &Gpu, lists: &[(String, Vec<(Request, usize)>)]) -> cuda::Result<Self> {
        let requests: Vec<Request> = lists.iter().flat_map(|l| l.1.iter().map(|r| r.0)).collect();
        let largest = |r: &Request| {
            let s = &r.shape;
            (s.in_pixels() * s.input_pitch).max(s.out_pixels() * s.output_pitch).max(s.weights())
        };
        let elements = requests.iter().map(largest).max().unwrap_or(0);
        let space = requests.iter().map(workspace).max().unwrap_or(0);
        let operands = [random(gpu, elements * 4)?, random(gpu, elements * 4)?];
        let scratch = gpu.allocate(usize::try_from(space).unwrap_or(usize::MAX))?;
        Ok(Self { operands, result: gpu.allocate(elements * 4)?, scratch })
    }

    fn places(&self, pass: Pass) -> Places {
        let [a, b] = [self.operands[0].address(), self.operands[1].address()];
        let (result, workspace) = (self.result.address(), self.scratch.address());
        match pass {
            Pass::Forward => Places { x: a, w: b, y: result, workspace },
            Pass::Data => Places { x: result, w: b, y: a, workspace },
            Pass::Weight => Places { x: a, w: result, y: b, workspace },
        }
    }
}

/// Milliseconds of a request and the way that was chosen, by tuning.
fn measure(gpu: &Gpu, pool: &Pool, convolutions: &mut Convolutions, request: Request) -> cuda::Result<(f64, String)> {
    let id = convolutions.prepare(request, true)?;
    let places = pool.places(request.pass);
    // SAFETY: four bytes for each element of the largest tensor, and the largest workspace.
    let ms = time(gpu, 10, 9, |_| unsafe { convolutions.run(id, places) })?;
    Ok((ms, convolutions.choice(id).unwrap_or_default().to_owned()))
}

/// Measures a list and prints it, the largest loss first.
fn table(
    gpu: &Gpu,
    pool: &Pool,
    convolutions: &mut Convolutions,
    title: &str,
    requests: &[(Request, usize)],
    rows: &mut Vec<Value>,
) -> cuda::Result<()> {
    let mut measured = Vec::new();
    for &(request, count) in requests {
        match measure(gpu, pool, convolutions, request) {
            Ok((ms, way)) => measured.push((request, count, ms, way)),
            Err(error) => println!("{request}: {error}"),
        }
    }
    let loss = |m: &(Request, usize, f64, String)| m.1 as f64 * (m.2 - least(&m.0));
    measured.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
    println!(
        "\n{title}\n{:<58} {:>5} {:<9} {:<30} {:>8} {:>8} {:>6} {:>8}",
        "", "count", "served by", "as", "ms", "bound", "times", "all, ms"
    );
    for (request, count, ms, way) in &measured {
        let (least, server) = (least(request), serve(request).name());
        let all = *count as f64 * ms;
        println!(
            "{:<58} {count:>5} {server:<9} {way:<30} {ms:>8.4} {least:>8.4} {:>6.2} {all:>8.3}",
            request.to_string(),
            ms / least
        );
        rows.push(json!({
            "list": title, "request": request.to_string(), "count": count, "served_by": server, "way": way, "ms": ms,
            "bound_ms": least,
        }));
    }
    let mut total = (0.0, 0.0);
    for pass in Pass::ALL {
        let of_pass = measured.iter().filter(|m| m.0.pass == pass);
        let sum = of_pass.fold((0.0, 0.0), |s, m| (s.0 + m.1 as f64 * m.2, s.1 + m.1 as f64 * least(&m.0)));
        total = (total.0 + sum.0, total.1 + sum.1);
        println!("{:<8} {:>8.2} ms, bound {:>8.2}", pass.name(), sum.0, sum.1);
    }
    println!("{:<8} {:>8.2} ms, bound {:>8.2}", "sum", total.0, total.1);
    Ok(())
}

/// Channel ranges against packed tensors, and channels padded further: what the table's reasons rest on.
fn reasons(batch: usize, format: Format) -> Vec<(Request, usize)> {
    let mut shapes = Vec::new();
    for (side, c, k) in [(160, 64, 3), (160, 64, 1), (80, 128, 3), (80, 128, 1), (80, 32, 3)] {
        let s = Shape::packed(batch, side, c, c, k, 1);
        shapes.extend([s, Shape { input_pitch: 4 * c, ..s }, Shape { output_pitch: 4 * c, ..s }]);
    }
    let pads = [(40, 184, 192), (80, 120, 128), (40, 240, 256), (80, 240, 256), (20, 360, 384), (40, 136, 160)];
    for (side, few, many) in pads {
        shapes.extend([few, many].map(|c| Shape::packed(batch, side, c, c, 3, 1)));
    }
    shapes.extend([240, 256].map(|c| Shape::packed(batch, 159, 128, c, 3, 2)));
    let all =
        |shape| Pass::ALL.map(|pass| (Request { add: pass == Pass::Weight, ..Request::new(shape, pass, format) }, 1));
    shapes.into_iter().flat_map(all).collect()
}

/// Requests without times, for machines without a card.
fn list(title: &str, requests: &[(Request, usize)]) {
    println!("\n{title}\n{:<58} {:>5} {:<9} {:>9} {:>8}", "", "count", "served by", "MiB", "bound");
    let mut total = 0.0;
    for (request, count) in requests {
        let (least, server) = (least(request), serve(request).name());
        let space = workspace(request) as f64 / f64::from(1 << 20);
        println!("{:<58} {count:>5} {server:<9} {space:>9.1} {least:>8.4}", request.to_string());
        total += *count as f64 * least;
    }
    println!("{} requests, bound {total:.2} ms", requests.iter().map(|r| r.1).sum::<usize>());
}

fn run() -> Result<(), CudaError> {
    let (format, precision) = match &*setting("FORMAT", "bf16".to_owned()) {
        "f16" => (Format::F16, Precision::F16),
        "f32" => (Format::F32, Precision::F32),
        _ => (Format::Bf16, Precision::BF16),
    };
    let (batch, side) = (setting("BATCH", 64), setting("IMG", 640));
    let mut lists = Vec::new();
    for name in setting("MODELS", "yolov9-t,yolov9-s,yolov9-m".to_owned()).split(',') {
        match requests(name, batch, side, precision) {
            Ok(requests) => lists.push((format!("{name}, batch {batch}, {side} px"), requests)),
            Err(error) => println!("{name}: {error}"),
        }
    }
    lists.push((format!("channel ranges and padding, batch {batch}"), reasons(batch, format)));
    if Gpu::count() == 0 {
        println!("skipped: no NVIDIA GPU");
        lists.iter().for_each(|(title, requests)| list(title, requests));
        return Ok(());
    }
    let gpu = Gpu::open(0)?;
    let mut convolutions = Convolutions::new(&gpu, None)?;
    println!("{}, {}", gpu.properties().name, format.name());
    for (library, version) in libraries::versions() {
        match version {
            Ok(v) => println!("{:<16} {:<10} {}", library.name(), v.version, v.path.unwrap_or_default().display()),
            Err(missing) => println!("{:<16} {missing}", library.name()),
        }
    }
    let (pool, mut rows) = (Pool::new(&gpu, &lists)?, Vec::new());
    for (title, requests) in &lists {
        table(&gpu, &pool, &mut convolutions, title, requests, &mut rows)?;
    }
    if let Ok(path) = std::env::var("JSON") {
        let text = format!("{:#}\n", json!({ "card": gpu.properties().name, "rows": rows }));
        if let Err(error) = std::fs::write(&path, text) {
            eprintln!("{path}: {error}");
        }
    }
    Ok(())
}

fn main() {
    finish(run());
}
