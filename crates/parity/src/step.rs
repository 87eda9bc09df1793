//! A training step of a filled model on a device.

use crate::Device;
use detect::external::{LevelTensors, TargetTensors};
use graph::{
    Backend, CompileOptions, DType, Executor, GraphBuilder, Level, OptimizerKind, Plan, PlanId, Precision, Recompute,
    Region, Shape, StateSpec, TensorId, compile,
};
use model::{Branches, BuildOptions, Heads, Mode, Model, NamedTensors};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Targets packed by image.
#[derive(Clone, Default)]
pub struct Packed {
    pub offsets: Vec<u32>,
    pub classes: Vec<u32>,
    pub boxes: Vec<f32>,
}

impl Packed {
    /// Rows (image, class, cx, cy, w, h) in image order.
    pub fn of(rows: &[f32], batch: usize) -> Self {
        let mut packed = Self { offsets: vec![0; batch + 1], ..Self::default() };
        for row in rows.chunks(6) {
            packed.classes.push(row[1] as u32);
            packed.boxes.extend(&row[2..6]);
            packed.offsets[row[0] as usize + 1..].iter_mut().for_each(|o| *o += 1);
        }
        packed
    }
}

/// A compiled training step with the tensors that the host writes and reads.
pub struct CompiledStep {
    pub plan: Arc<Plan>,
    pub images: TensorId,
    pub targets: TargetTensors,
    pub loss: TensorId,
    pub heads: Heads,
}

/// Compiles the training step of a model; `heads` keeps the raw maps readable.
pub fn compile_step(
    model: &Model,
    shape: [usize; 3],
    recompute: Recompute,
    (backend, precision): (&dyn Backend, Precision),
    heads: bool,
) -> CompiledStep {
    let [batch, h, w] = shape;
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, h, w, 3), DType::U8);
    let x = b.normalize(images);
    let options = BuildOptions { mode: Mode::Training, branches: Branches::All };
    let built = model.build(&mut b, x, options).expect("a model that builds");
    let branches: Vec<Vec<LevelTensors>> = built.branches.iter().map(levels).collect();
    if heads {
        branches.iter().flatten().for_each(|l| [l.boxes, l.classes].into_iter().for_each(|t| b.output(t)));
    }
    let weights = if branches.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
    let config = detect::LossConfig::new(model.nc, weights);
    let (loss, targets) = detect::external::loss(&mut b, config, &branches, 64 * batch, (h, w));
    let options = CompileOptions { recompute, ..CompileOptions::training(precision, loss) };
    let plan = compile(b.finish(), backend, &options).expect("a plan");
    CompiledStep { plan: Arc::new(plan), images, targets, loss, heads: built }
}

fn levels(branch: &model::Branch) -> Vec<LevelTensors> {
    branch.levels.iter().map(|l| LevelTensors { boxes: l.boxes, classes: l.classes }).collect()
}

/// A training step on a device.
pub struct Step<D: Device> {
    pub device: D,
    pub executor: D::Executor,
    pub plan: PlanId,
    pub compiled: Arc<Plan>,
    pub images: TensorId,
    pub targets: TargetTensors,
    pub loss: TensorId,
    pub heads: Heads,
    batch: (Vec<u8>, Packed),
}

impl<D: Device> Step<D> {
    /// Compiles and prepares a step with filled weights, also in the average. `heads` keeps the raw maps readable.
    pub fn on(
        device: D,
        model: &Model,
        tensors: &NamedTensors,
        shape: [usize; 3],
        optimizer: OptimizerKind,
        heads: bool,
    ) -> Self {
        Self::at_level(device, model, tensors, shape, optimizer, heads, Recompute::Level(Level::KeepAll))
    }

    /// [`Self::on`] with a level of recomputation.
    pub fn at_level(
        device: D,
        model: &Model,
        tensors: &NamedTensors,
        shape: [usize; 3],
        optimizer: OptimizerKind,
        heads: bool,
        recompute: Recompute,
    ) -> Self {
        let backend = device.backend();
        let CompiledStep { plan: compiled, images, targets, loss, heads } =
            compile_step(model, shape, recompute, (backend.as_ref(), device.precision()), heads);
        let layout = compiled.params().clone();
        let mut executor = device.executor(StateSpec { layout, optimizer: Some(optimizer), ema: true });
        let plan = executor.prepare(compiled.clone()).expect("prepared");
        let mut weights = vec![0.0f32; compiled.params().weight_elements()];
        let mut buffers = vec![0.0f32; compiled.params().buffer_elements()];
        tensors.scatter(compiled.params(), &mut weights, &mut buffers).expect("all tensors");
        for (region, values) in [
            (Region::Weights, &weights),
            (Region::EmaWeights, &weights),
            (Region::Buffers, &buffers),
            (Region::EmaBuffers, &buffers),
        ] {
            executor.write_region(region, values).expect("kept");
        }
        Self { device, executor, plan, compiled, images, targets, loss, heads, batch: Default::default() }
    }

    /// Sets the batch of the runs that follow.
    pub fn upload(&mut self, pixels: &[u8], targets: &Packed) {
        self.batch = (pixels.to_vec(), targets.clone());
    }

    /// Writes the inputs, whose memory the last run has reused.
    pub fn write_inputs(&mut self) {
        let (e, t, (pixels, targets)) = (&mut self.executor, self.targets, &self.batch);
        e.upload_u8(self.plan, self.images, pixels).expect("pixels");
        e.upload_u32(self.plan, t.offsets, &targets.offsets).expect("offsets");
        e.upload_u32(self.plan, t.classes, &targets.classes).expect("classes");
        e.upload_f32(self.plan, t.boxes, &targets.boxes).expect("boxes");
    }

    /// Forward, loss, backward; returns the loss values.
    pub fn run(&mut self) -> Vec<f64> {
        self.write_inputs();
        self.executor.run(self.plan).expect("a run");
        self.elements(self.loss)
    }

    /// An output of the last run in logical order.
    pub fn elements(&self, tensor: TensorId) -> Vec<f64> {
        self.device.elements(&self.executor, self.plan, tensor)
    }

    /// Values of a region by parameter name, in file order.
    pub fn named(&self, weights: Region, buffers: Region) -> BTreeMap<String, Vec<f64>> {
        let (weights, buffers) =
            (self.device.region(&self.executor, weights), self.device.region(&self.executor, buffers));
        let flat = |slot: &graph::ParamSlot| if slot.param.group.index().is_some() { &weights } else { &buffers };
        let slots = self.compiled.params().slots().iter();
        slots.map(|slot| (slot.param.name.clone(), slot.gather(flat(slot)))).collect()
    }
}
