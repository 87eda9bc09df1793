//! Where plans run: the processor, or a card in one of its number formats.

use crate::BenchError;
use crate::external;
use cpu::{CpuBackend, CpuExecutor};
use cuda::{CardBytes, CudaBackend, CudaExecutor, CudaOptions, Engine, Gpu};
use graph::{Backend, Executor, Plan, Precision, StateSpec};
use half::{bf16, f16};
use std::rc::Rc;
use std::str::FromStr;

/// How feature maps and operands of convolutions are stored and multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Numbers {
    F32,
    /// Stored as float32, multiplied with 10 bits after the point.
    Tf32,
    Bf16,
    F16,
}

impl Numbers {
    pub const ALL: [Numbers; 4] = [Self::F32, Self::Tf32, Self::Bf16, Self::F16];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// What plans are compiled for.
    pub fn precision(self) -> Precision {
        match self {
            Self::F32 | Self::Tf32 => Precision::F32,
            Self::Bf16 => Precision::BF16,
            Self::F16 => Precision::F16,
        }
    }

    /// The nearest value that convolutions take without rounding it.
    pub fn round(self, v: f32) -> f32 {
        match self {
            Self::F32 => v,
            // Half precision has the ten bits of TF32, and less range, which weights do not need.
            Self::Tf32 | Self::F16 => f16::from_f32(v).to_f32(),
            Self::Bf16 => bf16::from_f32(v).to_f32(),
        }
    }
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|n| n.name() == text.trim().to_ascii_lowercase());
        found.ok_or_else(|| format!("'{text}' is none of f32, tf32, bf16, f16"))
    }
}

/// A device and its number format.
#[derive(Clone)]
pub enum Target {
    /// The processor in float32.
    Cpu,
    Cuda {
        engine: Rc<Engine>,
        options: CudaOptions,
    },
}

impl Target {
    /// The device that `--device` means: `cpu`, or a card by its number. A card tunes its convolutions where asked.
    ///
    /// # Errors
    /// Text that names no device, no such card, or one that does not compute in this format.
    pub fn open(device: &str, numbers: Numbers, tune: bool) -> Result<Self, BenchError> {
        let text = device.trim().to_ascii_lowercase();
        if text == "cpu" {
            return Self::Cpu.with(numbers);
        }
        let number = text.strip_prefix("cuda").map_or(text.as_str(), |rest| rest.trim_start_matches(':'));
        let ordinal = match number {
            "" => 0,
            _ => number.parse().map_err(|_| BenchError::Device(device.to_owned()))?,
        };
        let engine = Engine::new(&Gpu::open(ordinal)?)?;
        let options = CudaOptions { precision: numbers.precision(), tf32: false, tune, capture: true };
        Self::Cuda { engine, options }.with(numbers)
    }

    /// The same device with another number format. Kernels and libraries are shared.
    ///
    /// # Errors
    /// A device that does not compute in this format.
    pub fn with(&self, numbers: Numbers) -> Result<Self, BenchError> {
        let can = match self {
            Self::Cpu => numbers == Numbers::F32,
            Self::Cuda { engine, .. } => numbers != Numbers::Bf16 || engine.gpu().properties().has_bf16(),
        };
        if !can {
            return Err(BenchError::Numbers { card: self.name(), numbers: numbers.name() });
        }
        Ok(match self {
            Self::Cpu => Self::Cpu,
            Self::Cuda { engine, options } => {
                let (precision, tf32) = (numbers.precision(), numbers == Numbers::Tf32);
                Self::Cuda { engine: Rc::clone(engine), options: CudaOptions { precision, tf32, ..*options } }
            }
        })
    }

    /// The same device, with or without recording the launches of plans.
    pub fn captured(self, capture: bool) -> Self {
        match self {
            Self::Cpu => Self::Cpu,
            Self::Cuda { engine, options } => Self::Cuda { engine, options: CudaOptions { capture, ..options } },
        }
    }

    /// How many ops of a recorded plan may run side by side.
    pub fn streams(&self) -> usize {
        match self {
            Self::Cpu => 1,
            Self::Cuda { engine, .. } => engine.streams(),
        }
    }

    /// Sets [`Self::streams`] for all that share the card's engine. The processor runs ops one after the other.
    pub fn set_streams(&self, streams: usize) {
        if let Self::Cuda { engine, .. } = self {
            engine.set_streams(streams);
        }
    }

    /// Such as `NVIDIA H200`.
    pub fn name(&self) -> String {
        match self {
            Self::Cpu => "the processor".to_owned(),
            Self::Cuda { engine, .. } => engine.gpu().properties().name.clone(),
        }
    }

    pub fn precision(&self) -> Precision {
        match self {
            Self::Cpu => Precision::F32,
            Self::Cuda { options, .. } => options.precision,
        }
    }

    pub fn backend(&self) -> Box<dyn Backend> {
        match self {
            Self::Cpu => Box::new(CpuBackend),
            Self::Cuda { options, .. } => Box::new(CudaBackend::new(*options)),
        }
    }

    /// What an executor takes of a card once it has prepared a plan; `None` for the processor.
    ///
    /// # Errors
    /// None for the formats that this has.
    pub(crate) fn footprint(&self, spec: &StateSpec, plan: &Plan) -> Result<Option<CardBytes>, BenchError> {
        Ok(match self {
            Self::Cpu => None,
            Self::Cuda { options, .. } => Some(cuda::footprint(spec, [plan], options)?),
        })
    }

    /// An executor over the given buffers that knows the ops of this crate.
    ///
    /// # Errors
    /// A missing library, no memory on the card, or what the driver says.
    pub(crate) fn executor(&self, spec: StateSpec) -> Result<Running, BenchError> {
        Ok(match self {
            Self::Cpu => {
                let mut executor = CpuExecutor::new(spec);
                external::register_cpu(&mut executor);
                Running::Cpu(Box::new(executor))
            }
            Self::Cuda { engine, options } => {
                let mut executor = CudaExecutor::new(engine, spec, *options)?;
                external::register_cuda(&mut executor);
                Running::Cuda(Box::new(executor))
            }
        })
    }
}

/// An executor whose kind is known.
pub(crate) enum Running {
    Cpu(Box<CpuExecutor<f32>>),
    Cuda(Box<CudaExecutor>),
}

impl Running {
    pub fn as_dyn(&mut self) -> &mut dyn Executor {
        match self {
            Self::Cpu(executor) => executor.as_mut(),
            Self::Cuda(executor) => executor.as_mut(),
        }
    }
}
