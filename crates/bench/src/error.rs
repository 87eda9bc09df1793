//! What can go wrong.

/// A self-test or a bench that could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Text that names no device.
    #[error("--device {0}: no device is called that")]
    Device(String),
    /// A card that does not compute in a format.
    #[error("{card} does not compute in {numbers}")]
    Numbers { card: String, numbers: &'static str },
    #[error("single ops are timed on a card only")]
    ProfileOnCpu,
    #[error("cannot start {threads} threads: {reason}")]
    Threads { threads: usize, reason: String },
    #[error(transparent)]
    Data(#[from] data::DataError),
    #[error(transparent)]
    Cuda(#[from] cuda::CudaError),
    #[error(transparent)]
    Exec(#[from] graph::ExecError),
    #[error(transparent)]
    Graph(#[from] graph::GraphError),
    #[error(transparent)]
    Model(#[from] model::ModelError),
    #[error(transparent)]
    Write(#[from] files::WriteError),
    #[error("a report cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl From<plan::PlanError> for BenchError {
    fn from(error: plan::PlanError) -> Self {
        match error {
            plan::PlanError::Model(e) => e.into(),
            plan::PlanError::Graph(e) => e.into(),
            plan::PlanError::Cuda(e) => e.into(),
        }
    }
}

impl BenchError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Device(_) => "cpu, or the number of a GPU such as 0",
            Self::Numbers { .. } => "--precision f16 or f32",
            Self::Cuda(cuda::CudaError::NoCard { .. }) => {
                "`yolov9 env` shows what is there; --device cpu needs no card"
            }
            Self::Cuda(cuda::CudaError::Memory { .. }) | Self::Exec(graph::ExecError::Memory { .. }) => {
                "a smaller --batch or --img needs less memory"
            }
            Self::Threads { .. } => "fewer --workers",
            Self::Data(error) => return error.hint(),
            Self::Graph(graph::GraphError::Budget { needed, .. }) => {
                return Some(format!("--memory-budget {needed} is the least for this --batch and --img"));
            }
            Self::ProfileOnCpu => "leave --profile out, or run on a card",
            _ => return None,
        };
        Some(text.to_owned())
    }
}
