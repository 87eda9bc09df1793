//! The loss on the card, for a problem in host memory.

use crate::problem::{BOX_PITCH, Problem};
use crate::reference::SENTINEL;
use cuda::kernels::loss::{DeviceTargets, Head, Kernel, Layout, LevelMaps, Loss};
use cuda::{Buffer, Format, Gpu, View};
use detect::external::LOSS_VALUES;

/// The first card with its loss; `None`, with the reason printed, where there is none.
pub fn open() -> Option<(Gpu, Loss)> {
    if Gpu::count() == 0 {
        eprintln!("skipped: no CUDA device");
        return None;
    }
    let gpu = Gpu::open(0).expect("a card that opens");
    let loss = Loss::load(&gpu).expect("kernels that load");
    Some((gpu, loss))
}

/// What is asked for beside the values.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub gradients: Option<Format>,
    pub loss_scale: Option<f32>,
    /// Physical channels of box gradients.
    pub box_channels: usize,
    /// Every byte of the scratch beforehand.
    pub poison: u8,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { gradients: Some(Format::F32), loss_scale: None, box_channels: 64, poison: 0xFF }
    }
}

/// A problem in device memory.
pub struct Placed<'a> {
    problem: &'a Problem,
    wanted: Wanted,
    levels: Vec<LevelMaps>,
    maps: Vec<[Buffer; 4]>,
    targets: [Buffer; 3],
    loss_scale: Option<Buffer>,
    values: Buffer,
    pub scratch: Buffer,
    pub layout: Layout,
    max_boxes: usize,
}

/// What the card computed; gradients as [`crate::reference::Expected`], owners as boxes within their image.
pub struct Computed {
    pub values: Vec<f32>,
    pub gradients: Vec<Vec<(Vec<f32>, Vec<f32>)>>,
    /// By branch, (batch, anchors).
    pub owner: Vec<Vec<u32>>,
    pub score: Vec<Vec<f32>>,
}

/// Allocates and fills with values, at least one byte.
pub fn filled<T: bytemuck::Pod>(gpu: &Gpu, values: &[T]) -> Buffer {
    let mut buffer = gpu.allocate(size_of_val(values).max(4)).expect("memory");
    buffer.write(0, values).expect("a write");
    buffer
}

fn encoded(gpu: &Gpu, format: Format, values: &[f32]) -> Buffer {
    match format {
        Format::F32 => filled(gpu, values),
        Format::F16 => filled(gpu, &values.iter().map(|&v| half::f16::from_f32(v).to_bits()).collect::<Vec<_>>()),
        Format::Bf16 => filled(gpu, &values.iter().map(|&v| half::bf16::from_f32(v).to_bits()).collect::<Vec<_>>()),
    }
}

fn decoded(buffer: &Buffer, format: Format) -> Vec<f32> {
    let halves = || buffer.read::<u16>(0, buffer.bytes() / 2).expect("a read").into_iter();
    match format {
        Format::F32 => buffer.read(0, buffer.bytes() / 4).expect("a read"),
        Format::F16 => halves().map(|v| half::f16::from_bits(v).to_f32()).collect(),
        Format::Bf16 => halves().map(|v| half::bf16::from_bits(v).to_f32()).collect(),
    }
}

impl<'a> Placed<'a> {
    pub fn new(gpu: &Gpu, problem: &'a Problem, wanted: Wanted) -> Self {
        let (mut maps, mut levels) = (vec![], vec![]);
        for head in &problem.heads {
            for (size, logits) in problem.levels.as_slice().iter().zip(head) {
                let format = wanted.gradients.unwrap_or(Format::F32);
                let [boxes, classes] = [&logits.boxes, &logits.classes].map(|v| filled(gpu, v));
                let [of_boxes, of_classes] =
                    [&logits.boxes, &logits.classes].map(|v| encoded(gpu, format, &vec![SENTINEL; v.len()]));
                let (n, h, w, pitch) = (problem.batch, size.h, size.w, problem.class_pitch());
                let view = |b: &Buffer, format, c, pitch| View { at: b.address(), format, n, h, w, c, pitch };
                let channels = problem.class_channels();
                levels.push(LevelMaps {
                    boxes: view(&boxes, Format::F32, 64, BOX_PITCH),
                    classes: view(&classes, Format::F32, channels, pitch),
                    gradients: wanted.gradients.map(|f| {
                        (view(&of_boxes, f, wanted.box_channels, BOX_PITCH), view(&of_classes, f, channels, pitch))
                    }),
                });
                maps.push([boxes, classes, of_boxes, of_classes]);
            }
        }
        // Memory for more boxes than there are.
        let max_boxes = problem.boxes.len() + 5;
        let mut classes = problem.classes.clone();
        classes.resize(max_boxes, u32::MAX);
        let mut boxes = problem.boxes.clone();
        boxes.resize(max_boxes, [f32::NAN; 4]);
        let layout = Layout::new(
            problem.heads.len(),
            problem.config.strides.len(),
            problem.batch,
            problem.levels.anchors(),
            max_boxes,
        );
        Self {
            problem,
            wanted,
            levels,
            maps,
            targets: [filled(gpu, &problem.offsets), filled(gpu, &classes), filled(gpu, boxes.as_flattened())],
            loss_scale: wanted.loss_scale.map(|s| filled(gpu, &[s])),
            values: filled(gpu, &[SENTINEL; LOSS_VALUES]),
            scratch: filled(gpu, &vec![wanted.poison; layout.bytes as usize]),
            layout,
            max_boxes,
        }
    }

    pub fn head(&self) -> Head<'_> {
        let [offsets, classes, boxes] = self.targets.each_ref().map(Buffer::address);
        Head {
            config: &self.problem.config,
            batch: self.problem.batch,
            input_hw: self.problem.input_hw,
            levels: &self.levels,
            targets: DeviceTargets { offsets, classes, boxes, max_boxes: self.max_boxes },
            loss_scale: self.loss_scale.as_ref().map(Buffer::address),
            values: self.values.address(),
            scratch: self.scratch.address(),
        }
    }

    /// Runs the whole loss.
    pub fn run(&self, loss: &Loss) {
        // SAFETY: the head describes buffers of this problem, which live on.
        unsafe { loss.run(&self.head()) }.expect("a run");
    }

    /// Runs some of its steps.
    pub fn launch(&self, loss: &Loss, kernels: &[Kernel]) {
        for &kernel in kernels {
            // SAFETY: as above.
            unsafe { loss.launch(kernel, &self.head()) }.expect("a launch");
        }
    }

    pub fn read(&self) -> Computed {
        let (slots, levels) = (self.problem.batch * self.problem.levels.anchors(), self.problem.levels.as_slice());
        let branches = self.problem.heads.len();
        let format = self.wanted.gradients.unwrap_or(Format::F32);
        let mut computed = Computed {
            values: self.values.read(0, LOSS_VALUES).expect("values"),
            gradients: vec![],
            owner: vec![],
            score: vec![],
        };
        for branch in 0..branches {
            let of_level = &self.maps[branch * levels.len()..][..levels.len()];
            computed
                .gradients
                .push(of_level.iter().map(|m| (decoded(&m[2], format), decoded(&m[3], format))).collect());
            let owners: Vec<u32> =
                self.scratch.read(self.layout.owner as usize + 4 * branch * slots, slots).expect("owners");
            let scores: Vec<f32> =
                self.scratch.read(self.layout.score as usize + 4 * branch * slots, slots).expect("scores");
            let (mut owner, mut score) = (vec![], vec![]);
            for image in 0..self.problem.batch {
                for level in levels {
                    for cell in 0..level.cells() {
                        let slot = self.problem.batch * level.first + image * level.cells() + cell;
                        let own = (owners[slot] as usize) < self.max_boxes;
                        let start = self.problem.offsets[image];
                        owner.push(if own { owners[slot].wrapping_sub(start) } else { u32::MAX });
                        score.push(if own { scores[slot] } else { 0.0 });
                    }
                }
            }
            computed.owner.push(owner);
            computed.score.push(score);
        }
        computed
    }
}

/// Places, runs and reads.
pub fn run(gpu: &Gpu, loss: &Loss, problem: &Problem, wanted: Wanted) -> Computed {
    let placed = Placed::new(gpu, problem, wanted);
    placed.run(loss);
    placed.read()
}
