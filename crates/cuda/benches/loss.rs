//! The detection loss of yolov9-s on COCO shapes by kernel, against the bytes it cannot avoid. Needs a GPU; without one
//! it says so and ends.
//!
//! `cargo bench -p yolov9-cuda --bench loss`. Batch 64, 640 px, 80 classes, 7 boxes an image, two branches. Times are
//! medians of 15 replays of a graph of ten calls each; a kernel's is what it adds to those before it. Bound: bytes at
//! 4.8 TB/s (one H200).

mod common;

use common::{MEMORY, finish, time};
use cuda::kernels::loss::{DeviceTargets, Head, Kernel, Layout, LevelMaps, Loss};
use cuda::{Buffer, Format, Gpu, Result, View};
use detect::LossConfig;
use detect::external::LOSS_VALUES;

const BATCH: usize = 64;
const SIDE: usize = 640;
const CLASSES: usize = 80;
const BOXES: usize = 7;
/// Calls in one graph, and replays of it.
const CALLS: usize = 10;
const REPLAYS: usize = 15;

/// Uniform numbers in [0, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        (testkit::mix(self.0) >> 40) as f32 / (1u64 << 24) as f32
    }
}

fn filled<T: bytemuck::Pod>(gpu: &Gpu, values: &[T]) -> Result<Buffer> {
    let mut buffer = gpu.allocate(size_of_val(values))?;
    buffer.write(0, values)?;
    Ok(buffer)
}

/// Logits of a branch as early in training: classes near their bias, boxes near their expectation.
fn logits(gpu: &Gpu, random: &mut Random, pixels: usize, channels: usize, bias: f32) -> Result<Buffer> {
    let values: Vec<f32> = (0..pixels * channels).map(|_| bias + 2.0 * random.next() - 1.0).collect();
    filled(gpu, &values)
}

fn bench(gpu: &Gpu, format: Option<Format>) -> Result<()> {
    let loss = Loss::load(gpu)?;
    let config = LossConfig::new(CLASSES, vec![0.25, 1.0]);
    let mut random = Random(1);
    let (mut buffers, mut levels) = (Vec::new(), Vec::new());
    for _ in 0..config.branch_weights.len() {
        for &stride in &config.strides {
            let side = SIDE / stride;
            let pixels = BATCH * side * side;
            let classes_bias = (5.0 / CLASSES as f32 / (side * side) as f32).ln();
            let boxes = logits(gpu, &mut random, pixels, 64, 1.0)?;
            let classes = logits(gpu, &mut random, pixels, CLASSES, classes_bias)?;
            let bytes = format.map_or(0, Format::bytes);
            let [of_boxes, of_classes] = [64, CLASSES].map(|c| gpu.allocate(pixels * c * bytes));
            let (of_boxes, of_classes) = (of_boxes?, of_classes?);
            let view =
                |b: &Buffer, format, c| View { at: b.address(), format, n: BATCH, h: side, w: side, c, pitch: c };
            levels.push(LevelMaps {
                boxes: view(&boxes, Format::F32, 64),
                classes: view(&classes, Format::F32, CLASSES),
                gradients: format.map(|f| (view(&of_boxes, f, 64), view(&of_classes, f, CLASSES))),
            });
            buffers.extend([boxes, classes, of_boxes, of_classes]);
        }
    }
    // Sides as in COCO: many small boxes, few large ones.
    let count = BATCH * BOXES;
    let rows: Vec<[f32; 4]> = (0..count)
        .map(|_| [random.next(), random.next(), 0.02 + random.next().powi(3), 0.02 + random.next().powi(3)])
        .collect();
    let classes: Vec<u32> = (0..count).map(|_| (random.next() * CLASSES as f32) as u32 % CLASSES as u32).collect();
    let offsets: Vec<u32> = (0..=BATCH).map(|i| (i * BOXES) as u32).collect();
    let targets = [filled(gpu, &offsets)?, filled(gpu, &classes)?, filled(gpu, rows.as_flattened())?];
    let anchors = levels[..config.strides.len()].iter().map(|l| l.boxes.h * l.boxes.w).sum();
    let layout = Layout::new(config.branch_weights.len(), config.strides.len(), BATCH, anchors, count);
    let (scratch, values) = (gpu.allocate(layout.bytes as usize)?, gpu.allocate(4 * LOSS_VALUES)?);
    let head = Head {
        config: &config,
        batch: BATCH,
        input_hw: (SIDE, SIDE),
        levels: &levels,
        targets: DeviceTargets {
            offsets: targets[0].address(),
            classes: targets[1].address(),
            boxes: targets[2].address(),
            max_boxes: count,
        },
        loss_scale: None,
        values: values.address(),
        scratch: scratch.address(),
    };
    let pixels = (config.branch_weights.len() * BATCH * anchors) as f64;
    let written = format.map_or(0, Format::bytes) as f64;
    println!("\ngradients {}, scratch {} MB", format.map_or("none", Format::name), layout.bytes / 1_000_000);
    let row = |name: &str, ms: f64, bytes: f64| {
        println!("| {name:<8} | {ms:>7.3} ms | {:>7.1} MB | bound {:>6.3} ms |", bytes / 1e6, 1e3 * bytes / MEMORY);
    };
    let mut before = 0.0;
    for (i, kernel) in Kernel::ALL.into_iter().enumerate() {
        // A step changes what it works on, so each is timed as what it adds to those before.
        let ms = time(gpu, CALLS, REPLAYS, |_| {
            // SAFETY: the head describes buffers that live on.
            Kernel::ALL[..=i].iter().try_for_each(|&k| unsafe { loss.launch(k, &head) })
        })?;
        let bytes = match kernel {
            Kernel::Prepare => pixels * (4.0 * 64.0 + 20.0),
            Kernel::Settle | Kernel::Score => pixels * 4.0,
            Kernel::Terms => pixels * (4.0 * CLASSES as f64 + written * (64 + CLASSES) as f64 + 4.0),
            Kernel::Claim | Kernel::Finish => 0.0,
        };
        row(&format!("{kernel:?}"), ms - before, bytes);
        before = ms;
    }
    row("all", before, pixels * (4.0 + written) * (64 + CLASSES) as f64);
    println!("loss {:?}", &values.read::<f32>(0, 9)?);
    Ok(())
}

fn benches() -> Result<()> {
    let gpu = Gpu::open(0)?;
    println!("{}", gpu.properties().name);
    for format in [Some(Format::Bf16), Some(Format::F16), Some(Format::F32), None] {
        bench(&gpu, format)?;
    }
    Ok(())
}

fn main() {
    finish(benches());
}
