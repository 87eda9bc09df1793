//! Writes the gradients of a recorded training batch as the card computes them, for `benches/pytorch/gradients.py
//! --compare` to judge beside PyTorch's. Needs a GPU; without one it says so and ends.
//!
//! `CASE=yolov9-cmicro-nc5 PRECISION=bf16 OUT=ours.safetensors cargo bench -p yolov9-cuda --bench gradients`: one forward
//! and backward pass of the filled model. The loss runs on the host with the recorded assignment, so that no anchor
//! changes its box by rounding. The file holds every trained parameter's gradient of the total loss in float32, named
//! and laid out as in PyTorch.
//!
//! `WEIGHTS` names a folder of safetensors files: the model is filled from each in turn instead, and `OUT` is a folder of
//! files of the same names (`benches/pytorch/gradient_ratios.py`).
//!
//! `PRECISION` is bf16, f16 or f32. `SCALE` multiplies the loss on its way back; f16 starts at 65536 by itself and
//! halves until every gradient is finite. `TF32=1` and `TUNE=1` set what [`CudaOptions`] calls so.

use cuda::external::assigned_host_loss;
use cuda::{CudaBackend, CudaError, CudaExecutor, CudaOptions, Engine, Gpu};
use detect::FixedAssignment;
use detect::external::DetectionLoss;
use graph::{Backend, Executor, OptimizerKind, Precision, Region, StateSpec};
use model::NamedTensors;
use model::weights::{WeightsMeta, save};
use parity::{Device, Step, load, recorded_assignment, recorded_step};
use std::env::var;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// A card with a loss on the host: fixed assignment, gradients times `scale`.
struct Card {
    engine: Rc<Engine>,
    options: CudaOptions,
    fixed: Arc<[FixedAssignment]>,
    scale: f32,
}

impl Device for Card {
    type Executor = CudaExecutor;

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(CudaBackend::new(self.options))
    }

    fn precision(&self) -> Precision {
        self.options.precision
    }

    fn executor(&self, spec: StateSpec) -> CudaExecutor {
        let mut executor = CudaExecutor::new(&self.engine, spec, self.options).expect("an executor");
        let (loss, scale) = (assigned_host_loss(self.fixed.clone()), self.scale);
        let scaled = Arc::new(move |op: &_, io: &mut _| {
            loss(op, io);
            scale_gradients(io, scale);
        });
        executor.register_host(DetectionLoss::NAME, scaled);
        executor
    }
}

fn scale_gradients(io: &mut cuda::external::HostOperands, scale: f32) {
    io.gradients.iter_mut().flatten().flat_map(|g| g.floats_mut()).for_each(|v| *v *= scale);
}

/// Gradients of all trained parameters in file order, divided by the scale.
fn gradients(step: &Step<Card>) -> Result<NamedTensors, Box<dyn Error>> {
    let flat = step.executor.read_region(Region::Gradients)?;
    let mut tensors = NamedTensors::new();
    for slot in step.compiled.params().slots() {
        let param = &slot.param;
        if param.trained && param.group.index().is_some() {
            let values = slot.gather(&flat).into_iter().map(|v| v / step.device.scale).collect();
            tensors.insert(param.name.clone(), param.shape.dims(), values)?;
        }
    }
    Ok(tensors)
}

fn precision(name: &str) -> Result<Precision, String> {
    match name {
        "bf16" => Ok(Precision::BF16),
        "f16" => Ok(Precision::F16),
        "f32" => Ok(Precision::F32),
        _ => Err(format!("no precision {name}; there are bf16, f16 and f32")),
    }
}

/// What is run: a case, from other weights than its own where there are some.
struct Run {
    case: String,
    options: CudaOptions,
    /// Of the loss; halved until all gradients are finite unless it was asked for.
    scale: f32,
    fixed_scale: bool,
    fixed: Arc<[FixedAssignment]>,
}

impl Run {
    /// Writes the gradients of one batch to `out`.
    fn write(&self, engine: &Rc<Engine>, weights: Option<&Path>, out: &Path) -> Result<(), Box<dyn Error>> {
        let (case, model, mut scale) = (&self.case, load(&self.case), self.scale);
        let given = weights.map(|path| Ok::<_, Box<dyn Error>>(model::weights::load(path)?.tensors)).transpose()?;
        let (losses, found) = loop {
            let card = Card { engine: Rc::clone(engine), options: self.options, fixed: self.fixed.clone(), scale };
            let mut step = recorded_step(card, case, OptimizerKind::Sgd);
            if let Some(tensors) = &given {
                let layout = step.compiled.params().clone();
                let mut values = vec![0.0; layout.weight_elements()];
                tensors.scatter(&layout, &mut values, &mut vec![0.0; layout.buffer_elements()])?;
                step.executor.write_region(Region::Weights, &values)?;
            }
            let losses = step.run();
            let found = gradients(&step)?;
            let finite = found.iter().all(|(_, t)| t.values.iter().all(|v| v.is_finite()));
            if finite || self.fixed_scale || scale <= 1.0 {
                break (losses, found);
            }
            scale /= 2.0;
        };
        let all = || found.iter().flat_map(|(_, t)| &t.values);
        let norm = all().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let lost = all().filter(|v| !v.is_finite()).count();
        let names = (0..model.nc).map(|class| class.to_string()).collect();
        save(out, &found, &WeightsMeta::of(&model, names, false))?;
        println!("{case}: loss {:.9} (box {:.6} cls {:.6} dfl {:.6})", losses[0], losses[1], losses[2], losses[3]);
        println!(
            "gradient norm {norm:.6}, {lost} not finite, scale {scale}, {} tensors in {}",
            found.len(),
            out.display()
        );
        Ok(())
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let setting = |name: &str, default: &str| var(name).unwrap_or_else(|_| default.to_owned());
    let (case, named) = (setting("CASE", "yolov9-cmicro-nc5"), setting("PRECISION", "bf16"));
    let out = PathBuf::from(setting("OUT", &format!("gradients-{case}-{named}.safetensors")));
    let options = CudaOptions {
        precision: precision(&named)?,
        tf32: setting("TF32", "0") == "1",
        tune: setting("TUNE", "0") == "1",
        capture: false,
    };
    let given: Option<f32> = var("SCALE").ok().map(|s| s.parse()).transpose()?;
    let scale = given.unwrap_or(if named == "f16" { 65536.0 } else { 1.0 });

    let gpu = Gpu::open(0)?;
    let engine = Engine::new(&gpu)?;
    println!("{}, {named}", gpu.properties().name);
    let fixed = recorded_assignment(&case).into();
    let run = Run { case, options, scale, fixed_scale: given.is_some(), fixed };
    let Ok(folder) = var("WEIGHTS") else { return run.write(&engine, None, &out) };
    std::fs::create_dir_all(&out)?;
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut files: Vec<PathBuf> =
        entries.into_iter().map(|e| e.path()).filter(|p| p.extension() == Some("safetensors".as_ref())).collect();
    files.sort();
    files.iter().try_for_each(|path| run.write(&engine, Some(path), &out.join(path.file_name().unwrap_or_default())))
}

fn main() {
    match run() {
        Ok(()) => {}
        Err(error) if matches!(error.downcast_ref(), Some(CudaError::Missing { .. })) => println!("skipped: {error}"),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}
