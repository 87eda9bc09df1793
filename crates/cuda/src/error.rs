//! What can go wrong between this program and the card.

/// `Result` of this crate.
pub type Result<T> = std::result::Result<T, CudaError>;

/// A call that failed, or a library that is not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    #[error("{library} is not there: {looked}\n  hint: {hint}")]
    Missing { library: &'static str, looked: String, hint: String },
    #[error("there is no card {ordinal}: the driver shows {count}")]
    NoCard { ordinal: usize, count: usize },
    #[error("no memory for {bytes} bytes on the card, {free} are free")]
    Memory { bytes: u64, free: u64 },
    #[error("the pictures of a batch do not fit into {budget} bytes on the card")]
    Pool { budget: u64 },
    #[error("{bytes} bytes from {offset} on lie beyond a buffer of {have}")]
    Range { offset: usize, bytes: usize, have: usize },
    #[error("{kernel}: operands that do not fit: {what}")]
    Operands { kernel: &'static str, what: String },
    #[error("CUDA driver: {0}")]
    Driver(#[from] cudarc::driver::DriverError),
    #[error("NVML: {0}")]
    Nvml(#[from] nvml_wrapper::error::NvmlError),
    #[error("no thread for telemetry: {0}")]
    Thread(std::io::Error),
    #[error("NVRTC: result {code} from {call}")]
    Nvrtc { call: &'static str, code: u32 },
    #[error("{source_name} does not compile for {architecture}:\n{log}")]
    Compile { source_name: &'static str, architecture: String, log: String },
    #[error("cuDNN: {message} ({code}) from {call}")]
    Cudnn { call: &'static str, code: u32, message: String },
    #[error("cuBLASLt: status {code} from {call}")]
    CublasLt { call: &'static str, code: u32 },
    #[error("no convolution has these extents: {0}")]
    Extents(String),
    #[error("the loss cannot take this head: {0}")]
    Head(String),
    #[error("{what}: no algorithm of {library} serves it")]
    NoAlgorithm { library: &'static str, what: String },
    #[error("the driver recorded no launches")]
    Capture,
    #[error("no kernel computes in {0:?}")]
    Precision(graph::Precision),
}
