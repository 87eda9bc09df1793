//! Which device runs, and its executor.

use crate::{Observer, TrainError};
use graph::{Backend, Executor, StateSpec};

/// A device that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
}

impl Device {
    /// The device that `--device` means. Cards that are not there are warned about, not refused: commands are
    /// pasted from elsewhere.
    ///
    /// # Errors
    /// Text that names no device.
    pub fn choose(text: &str, observer: &mut dyn Observer) -> Result<Self, TrainError> {
        let wish = text.trim().to_ascii_lowercase();
        let wish = wish.strip_prefix("cuda").map_or(wish.as_str(), |rest| rest.trim_start_matches(':'));
        let numbers = wish.split(',').all(|n| n.trim().parse::<u32>().is_ok());
        match wish {
            "cpu" => {}
            "" if text.trim().is_empty() => {}
            _ if numbers || wish.is_empty() => {
                observer.warn(&format!("--device {text}: no GPU is used by this program yet, going on on the CPU"));
            }
            _ => return Err(TrainError::option("device", format!("'{text}' is no device"), Some("cpu, 0, or 0,1"))),
        }
        Ok(Self::Cpu)
    }

    /// What compiling must know.
    pub fn backend(self) -> Box<dyn Backend> {
        match self {
            Self::Cpu => Box::new(cpu::CpuBackend),
        }
    }

    /// An executor over the given buffers.
    pub fn executor(self, spec: &StateSpec) -> Box<dyn Executor> {
        match self {
            Self::Cpu => Box::new(cpu::CpuExecutor::<f32>::new(spec.clone())),
        }
    }
}
