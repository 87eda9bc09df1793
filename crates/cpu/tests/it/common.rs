//! Models filled by the fixture rule, as plans on the CPU.

use cpu::{CpuBackend, CpuExecutor, Element, Runs};
use detect::external::{LevelTensors, TargetTensors};
use graph::{
    CompileOptions, DType, Executor, GraphBuilder, Level, OptimizerKind, Plan, PlanId, Precision, Recompute, Region,
    Shape, StateSpec, TensorId, compile,
};
use model::{Branches, BuildOptions, Heads, Mode, Model, NamedTensors, Source};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A model named as in the fixtures, such as `yolov9-t-nc80`.
pub fn load(case: &str) -> Model {
    let (name, nc) = case.rsplit_once("-nc").expect("cases end in -ncN");
    let nc = nc.parse().expect("a number of classes");
    let yaml = testkit::fixture(&format!("models/{name}.yaml"));
    match std::fs::read_to_string(&yaml) {
        Ok(text) => Model::from_yaml(name, Source::Text(name.into()), text, Some(nc)),
        Err(_) => Model::load(name, Some(nc)),
    }
    .unwrap_or_else(|e| panic!("{case}: {e}"))
}

/// Every tensor of a model by the fill rule.
pub fn filled(model: &Model, case: &str) -> NamedTensors {
    let gains = testkit::json(&format!("models/{case}.gains.json"));
    let last = model.layers.len() - 1;
    let class_bias = |name: &str| {
        let rest = name.strip_prefix(&format!("model.{last}.cv"))?.strip_suffix(".2.bias")?;
        let (tower, level) = rest.split_once('.')?;
        let stride = 8.0 * f64::from(1 << level.parse::<u32>().ok()?);
        ["3", "5"].contains(&tower).then(|| (5.0 / model.nc as f64 / (640.0 / stride).powi(2)).ln())
    };
    let mut tensors = NamedTensors::new();
    for entry in model.training_state().expect("a state") {
        let values = testkit::fill(&entry.name, &entry.dims, gains[&entry.name].as_f64(), class_bias);
        tensors.insert(entry.name, entry.dims, values).expect("as declared");
    }
    tensors
}

/// Pictures of the rule as u8 NHWC.
pub fn pictures(name: &str, batch: usize, h: usize, w: usize) -> Vec<u8> {
    let planes = testkit::pictures(name, batch, h, w);
    let mut out = Vec::with_capacity(planes.len());
    for b in 0..batch {
        for pixel in 0..h * w {
            out.extend((0..3).map(|c| planes[(b * 3 + c) * h * w + pixel]));
        }
    }
    out
}

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

/// A training step on the CPU.
pub struct Step<T: Runs> {
    pub executor: CpuExecutor<T>,
    pub plan: PlanId,
    pub compiled: Arc<Plan>,
    pub images: TensorId,
    pub targets: TargetTensors,
    pub loss: TensorId,
    pub heads: Heads,
    batch: (Vec<u8>, Packed),
}

/// Compiles the training step of a model; `heads` keeps the raw maps readable.
pub fn compile_step(
    model: &Model,
    shape: [usize; 3],
    recompute: Recompute,
    precision: Precision,
    heads: bool,
) -> (Plan, TensorId, TargetTensors, TensorId, Heads) {
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
    let plan = compile(b.finish(), &CpuBackend, &options).expect("a plan");
    (plan, images, targets, loss, built)
}

fn levels(branch: &model::Branch) -> Vec<LevelTensors> {
    branch.levels.iter().map(|l| LevelTensors { boxes: l.boxes, classes: l.classes }).collect()
}

impl<T: Runs + From<f32>> Step<T> {
    /// Compiles and prepares a step with filled weights, also in the average where one is kept.
    pub fn new(
        model: &Model,
        tensors: &NamedTensors,
        shape: [usize; 3],
        optimizer: OptimizerKind,
        heads: bool,
    ) -> Self {
        Self::with(model, tensors, shape, optimizer, heads, Recompute::Level(Level::KeepAll))
    }

    pub fn with(
        model: &Model,
        tensors: &NamedTensors,
        shape: [usize; 3],
        optimizer: OptimizerKind,
        heads: bool,
        recompute: Recompute,
    ) -> Self {
        let (plan, images, targets, loss, heads) =
            compile_step(model, shape, recompute, CpuExecutor::<T>::precision(), heads);
        let compiled = Arc::new(plan);
        let layout = compiled.params().clone();
        let mut executor = CpuExecutor::<T>::new(StateSpec { layout, optimizer: Some(optimizer), ema: true });
        let plan = executor.prepare(compiled.clone()).expect("prepared");
        let mut weights = vec![T::zero(); compiled.params().weight_elements()];
        let mut buffers = vec![T::zero(); compiled.params().buffer_elements()];
        tensors.scatter(compiled.params(), &mut weights, &mut buffers).expect("all tensors");
        for (region, values) in [
            (Region::Weights, &weights),
            (Region::EmaWeights, &weights),
            (Region::Buffers, &buffers),
            (Region::EmaBuffers, &buffers),
        ] {
            executor.region_mut(region).expect("kept").copy_from_slice(values);
        }
        Self { executor, plan, compiled, images, targets, loss, heads, batch: Default::default() }
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
        self.executor.download_elements(self.plan, self.loss).into_iter().map(Element::as_f64).collect()
    }

    /// Values of a region by parameter name, in file order.
    pub fn named(&self, weights: Region, buffers: Region) -> BTreeMap<String, Vec<f64>> {
        let layout = self.compiled.params();
        let region = |r| self.executor.region(r).expect("kept");
        layout
            .slots()
            .iter()
            .map(|slot| {
                let flat = if slot.param.group.index().is_some() { region(weights) } else { region(buffers) };
                (slot.param.name.clone(), slot.gather(flat).into_iter().map(Element::as_f64).collect())
            })
            .collect()
    }
}
