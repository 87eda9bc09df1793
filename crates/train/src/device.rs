//! Which device runs, in which number formats, and its executor.

use crate::{Observer, Precision, TrainError};
use cuda::telemetry::Monitor;
use cuda::{CudaBackend, CudaError, CudaExecutor, CudaOptions, Engine, Gpu};
use graph::{Backend, Executor, Plan, StateSpec};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// What a plan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Training,
    /// Validation and detection.
    Inference,
}

/// A device that was chosen.
#[derive(Clone)]
pub(crate) enum Device {
    Cpu,
    Card(Card),
}

/// An NVIDIA GPU with everything loaded that runs plans on it.
#[derive(Clone)]
pub(crate) struct Card {
    engine: Rc<Engine>,
    ordinal: usize,
    training: Numbers,
    inference: Numbers,
}

/// The executor of a training run.
pub(crate) enum Running {
    Cpu(Box<dyn Executor>),
    /// One that also renders.
    Card(Box<CudaExecutor>),
}

impl Deref for Running {
    type Target = dyn Executor;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Cpu(executor) => executor.as_ref(),
            Self::Card(executor) => executor.as_ref(),
        }
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Cpu(executor) => executor.as_mut(),
            Self::Card(executor) => executor.as_mut(),
        }
    }
}

/// How a card stores feature maps and multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    precision: graph::Precision,
    tf32: bool,
    name: &'static str,
}

impl Numbers {
    /// What is asked for. Without a wish it is half precision: bf16 in training, whose range is that of float32, where
    /// the card has it; fp16 in inference, which rounds less.
    fn of(wish: Precision, purpose: Purpose, has_bf16: bool) -> Self {
        let (precision, tf32, name) = match wish {
            Precision::F32 => (graph::Precision::F32, false, "fp32"),
            Precision::Tf32 => (graph::Precision::F32, true, "tf32"),
            Precision::Bf16 => (graph::Precision::BF16, false, "bf16"),
            Precision::Auto if purpose == Purpose::Training && has_bf16 => (graph::Precision::BF16, false, "bf16"),
            Precision::Fp16 | Precision::Auto => (graph::Precision::F16, false, "fp16"),
        };
        Self { precision, tf32, name }
    }
}

impl Numbers {
    fn options(&self) -> CudaOptions {
        CudaOptions { precision: self.precision, tf32: self.tf32, tune: true, capture: true }
    }
}

/// What `--device` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Cpu,
    /// The first card where there is one.
    Best,
    Card(usize),
}

impl Device {
    /// The device that `--device` means, computing as `--precision` says. Cards that are not there are warned about, not
    /// refused: commands are pasted from elsewhere.
    ///
    /// # Errors
    /// Text that names no device; a card that is there but cannot be used, where it was asked for by its number, or that
    /// does not compute in the format asked for.
    pub fn choose(text: &str, precision: Precision, observer: &mut dyn Observer) -> Result<Self, TrainError> {
        let wish = parse(text, observer)?;
        let cpu = |observer: &mut dyn Observer| {
            if !matches!(precision, Precision::Auto | Precision::F32) {
                observer.warn(&format!("--precision {precision}: the CPU computes in fp32"));
            }
            Ok(Self::Cpu)
        };
        let ordinal = match wish {
            Wish::Cpu => return cpu(observer),
            Wish::Best => 0,
            Wish::Card(ordinal) => ordinal,
        };
        let count = Gpu::count();
        if count == 0 {
            if let Wish::Card(_) = wish {
                observer.warn(&format!(
                    "--device {}: this machine shows no NVIDIA GPU, going on on the CPU (yolov9 env tells more)",
                    text.trim()
                ));
            }
            return cpu(observer);
        }
        if ordinal >= count {
            let hint = format!("numbers go from 0 to {}; yolov9 env lists the cards", count - 1);
            return Err(TrainError::Option {
                flag: "device",
                message: format!("there is no card {ordinal}"),
                hint: Some(hint),
            });
        }
        match Card::open(ordinal, precision) {
            Ok(card) => {
                card.announce(observer);
                Ok(Self::Card(card))
            }
            Err(problem) if wish == Wish::Best && !matches!(problem, TrainError::Option { .. }) => {
                let hint = problem.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                observer.warn(&format!("the GPU is not used, going on on the CPU: {problem}{hint}"));
                cpu(observer)
            }
            Err(problem) => Err(problem),
        }
    }

    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu)
    }

    pub fn precision(&self, purpose: Purpose) -> graph::Precision {
        match self {
            Self::Cpu => graph::Precision::F32,
            Self::Card(card) => card.numbers(purpose).precision,
        }
    }

    /// What compiling must know.
    pub fn backend(&self, purpose: Purpose) -> Box<dyn Backend> {
        match self {
            Self::Cpu => Box::new(cpu::CpuBackend),
            Self::Card(card) => Box::new(CudaBackend::new(card.options(purpose))),
        }
    }

    /// An executor over the given buffers.
    ///
    /// # Errors
    /// No memory on the card, or what its driver says.
    pub fn executor(&self, spec: &StateSpec, purpose: Purpose) -> Result<Box<dyn Executor>, TrainError> {
        Ok(match self.running(spec, purpose)? {
            Running::Cpu(executor) => executor,
            Running::Card(executor) => executor,
        })
    }

    /// The same, by its kind.
    ///
    /// # Errors
    /// As there.
    pub fn running(&self, spec: &StateSpec, purpose: Purpose) -> Result<Running, TrainError> {
        Ok(match self {
            Self::Cpu => Running::Cpu(Box::new(cpu::CpuExecutor::<f32>::new(spec.clone()))),
            Self::Card(card) => {
                Running::Card(Box::new(CudaExecutor::new(&card.engine, spec.clone(), card.options(purpose))?))
            }
        })
    }

    /// Bytes of an executor's flat buffers and of what commits need beside them, and of its batches on their way to a card.
    pub fn state_bytes(&self, spec: &StateSpec, plan: &Plan, purpose: Purpose) -> Result<[u64; 2], TrainError> {
        Ok(match self {
            Self::Cpu => [spec.regions().iter().map(|(_, elements)| 4 * *elements as u64).sum(), 0],
            Self::Card(card) => {
                let bytes = cuda::footprint(spec, [plan], &card.options(purpose))?;
                [bytes.state() - bytes.inputs, bytes.inputs]
            }
        })
    }

    /// Steps that the host may be ahead of the device.
    pub fn lag(&self) -> usize {
        match self {
            Self::Cpu => 0,
            Self::Card(_) => 1,
        }
    }

    /// Free bytes of the card's memory; `None` for the CPU, which computes in the host's.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free_memory(&self) -> Result<Option<u64>, TrainError> {
        match self {
            Self::Cpu => Ok(None),
            Self::Card(card) => Ok(Some(card.engine.gpu().memory()?.0)),
        }
    }

    /// Which way every convolution so far is computed, by card, library versions and shapes: with the same choices a
    /// card computes the same bits. Empty on the CPU, which has one way.
    pub fn choices(&self) -> BTreeMap<String, String> {
        match self {
            Self::Cpu => BTreeMap::new(),
            Self::Card(card) => card.engine.choices(),
        }
    }

    /// Samples of what the card is doing, from now on. `None` on the CPU, and where NVML is not there or does not know
    /// the card, which is told.
    pub fn monitor(&self, observer: &mut dyn Observer) -> Option<Monitor> {
        let Self::Card(card) = self else { return None };
        match card.engine.gpu().pci_bus_id().and_then(|place| Monitor::start(&place)) {
            Ok(monitor) => Some(monitor),
            Err(problem) => {
                let problem = TrainError::from(problem);
                let hint = problem.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
                observer.info(&format!("no telemetry of the GPU: {problem}{hint}"));
                None
            }
        }
    }

    /// Floating-point operations a second that the card can do at most in the format of training. `None` on the CPU and
    /// for cards whose rate is not known.
    pub fn peak_flops(&self) -> Option<f64> {
        let Self::Card(card) = self else { return None };
        let Numbers { precision, tf32, .. } = card.training;
        cuda::dense_peak(&card.engine.gpu().properties().name, precision, tf32)
    }

    /// Takes the choices of an earlier run, before plans are prepared.
    pub fn prefer(&self, choices: &BTreeMap<String, String>) {
        if let Self::Card(card) = self {
            card.engine.prefer(choices.clone());
        }
    }
}

impl Precision {
    /// How a card with bf16 trains and validates.
    pub fn formats(self) -> plan::memory::Formats {
        let options = |purpose| Numbers::of(self, purpose, true).options();
        plan::memory::Formats { training: options(Purpose::Training), inference: options(Purpose::Inference) }
    }
}

impl Card {
    fn open(ordinal: usize, wish: Precision) -> Result<Self, TrainError> {
        let engine = Engine::new(&Gpu::open(ordinal)?)?;
        let has_bf16 = engine.gpu().properties().has_bf16();
        if wish == Precision::Bf16 && !has_bf16 {
            let message = format!("{} does not compute in bf16", engine.gpu().properties().name);
            return Err(TrainError::option("precision", message, Some("--precision fp16, or auto")));
        }
        let of = |purpose| Numbers::of(wish, purpose, has_bf16);
        let (training, inference) = (of(Purpose::Training), of(Purpose::Inference));
        Ok(Self { engine, ordinal, training, inference })
    }

    fn announce(&self, observer: &mut dyn Observer) {
        let gpu = self.engine.gpu();
        let gibi = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let memory = gpu.memory().map_or_else(
            |_| String::new(),
            |(free, total)| format!(", {:.1} of {:.1} GiB free", gibi(free), gibi(total)),
        );
        let (ordinal, name) = (self.ordinal, &gpu.properties().name);
        let numbers = match self.training.name == self.inference.name {
            true => self.training.name.to_owned(),
            false => format!("{} in training, {} in inference", self.training.name, self.inference.name),
        };
        observer.info(&format!("GPU {ordinal}: {name}{memory}; {numbers}"));
    }

    fn numbers(&self, purpose: Purpose) -> &Numbers {
        match purpose {
            Purpose::Training => &self.training,
            Purpose::Inference => &self.inference,
        }
    }

    fn options(&self, purpose: Purpose) -> CudaOptions {
        self.numbers(purpose).options()
    }
}

impl From<CudaError> for TrainError {
    fn from(error: CudaError) -> Self {
        Self::Card(Box::new(error))
    }
}

fn parse(text: &str, observer: &mut dyn Observer) -> Result<Wish, TrainError> {
    let text = text.trim().to_ascii_lowercase();
    let number = text.strip_prefix("cuda").map(|rest| rest.trim_start_matches(':'));
    match (text.as_str(), number) {
        ("cpu", _) => return Ok(Wish::Cpu),
        ("" | "auto", _) => return Ok(Wish::Best),
        (_, Some("")) => return Ok(Wish::Card(0)),
        _ => {}
    }
    let numbers: Result<Vec<usize>, _> =
        number.unwrap_or(&text).split(',').map(|n| n.trim().parse::<usize>()).collect();
    match numbers.as_deref() {
        Ok([only]) => Ok(Wish::Card(*only)),
        Ok([first, ..]) => {
            observer.warn(&format!("--device {text}: one card trains a model, {first} is used"));
            Ok(Wish::Card(*first))
        }
        _ => Err(TrainError::option("device", format!("'{text}' is no device"), Some("auto, cpu, 0, or cuda:0"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    #[test]
    fn devices_are_named_as_elsewhere() {
        for (text, wish) in [
            ("", Wish::Best),
            (" auto ", Wish::Best),
            ("CPU", Wish::Cpu),
            ("0", Wish::Card(0)),
            ("cuda", Wish::Card(0)),
            ("cuda:1", Wish::Card(1)),
            ("2,3", Wish::Card(2)),
        ] {
            assert_eq!(parse(text, &mut Silent).unwrap(), wish, "{text}");
        }
        for text in ["gpu", "0,x", "-1", "cuda:x", "1.5"] {
            assert!(parse(text, &mut Silent).is_err(), "{text}");
        }
    }

    #[test]
    fn half_precision_is_the_usual_format_of_a_card() {
        let of = |wish, purpose, has_bf16| Numbers::of(wish, purpose, has_bf16).name;
        assert_eq!(of(Precision::Auto, Purpose::Training, true), "bf16");
        assert_eq!(of(Precision::Auto, Purpose::Training, false), "fp16");
        assert_eq!(of(Precision::Auto, Purpose::Inference, true), "fp16");
        assert_eq!(of(Precision::F32, Purpose::Inference, true), "fp32");
        assert!(Numbers::of(Precision::Tf32, Purpose::Training, true).tf32);
    }
}
