//! Convolutions of cuDNN in NHWC: its older interface of descriptors and algorithms, which takes packed tensors, and
//! its graph interface, which takes any pitch.

mod api;
mod graph;
mod legacy;

pub use graph::{Formats, Plan, Wanted};
pub use legacy::{Algorithm, Convolution, usable};

pub use crate::conv::{Pass, Shape};

use crate::Format;
use crate::error::Result;
use crate::libraries::{self, Library};
use api::Api;
use cudarc::cudnn::sys;
use cudarc::driver::CudaStream;
use std::sync::Arc;

impl Format {
    fn sys(self) -> sys::cudnnDataType_t {
        match self {
            Self::F32 => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            Self::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
            Self::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        }
    }
}

/// cuDNN on one stream.
pub struct Cudnn {
    api: &'static Api,
    handle: sys::cudnnHandle_t,
    stream: Arc<CudaStream>,
}

// SAFETY: a handle may be used from any thread, by one at a time.
unsafe impl Send for Cudnn {}

impl Cudnn {
    /// Loads the library and makes a handle.
    ///
    /// # Errors
    /// A missing library, or what cuDNN says.
    pub fn new(stream: Arc<CudaStream>) -> Result<Self> {
        let api = Api::get()?;
        stream.context().bind_to_thread()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        api.check("cudnnCreate", unsafe { (api.cudnnCreate)(&mut handle) })?;
        let made = Self { api, handle, stream };
        // SAFETY: the handle was just made, and the stream lives as long as it.
        api.check("cudnnSetStream", unsafe { (api.cudnnSetStream)(handle, made.stream.cu_stream().cast()) })?;
        Ok(made)
    }

    /// Such as `9.14.0`.
    ///
    /// # Errors
    /// A missing library.
    pub fn version() -> Result<String> {
        libraries::version(Library::Cudnn)
    }

    /// Describes a convolution for the older interface. With `tf32`, float32 operands may be rounded to TF32.
    ///
    /// # Errors
    /// Extents that cuDNN does not take.
    pub fn convolution(&self, shape: Shape, format: Format, tf32: bool) -> Result<Convolution> {
        Convolution::new(self.api, shape, format, tf32)
    }

    /// Ways to compute a pass that the older interface's heuristics name, the likely fastest first.
    ///
    /// # Errors
    /// What cuDNN says.
    pub fn algorithms(&self, conv: &Convolution, pass: Pass) -> Result<Vec<Algorithm>> {
        conv.algorithms(self.handle, pass)
    }

    /// Computes a pass: `y` from `x` and `w`, `x` (its gradient) from `w` and `y`, or `w` (its gradient) from `x` and
    /// `y`. With `add`, the result is added to what is there.
    ///
    /// # Errors
    /// What cuDNN says.
    ///
    /// # Safety
    /// The pointers are device memory of the extents described, the workspace of the bytes that the algorithm needs.
    pub unsafe fn run(
        &self,
        conv: &Convolution,
        pass: Pass,
        algorithm: Algorithm,
        places: [u64; 3],
        workspace: u64,
        add: bool,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { conv.run(self.handle, pass, algorithm, places, workspace, add) }
    }

    /// Engines of the graph interface for a pass, as its heuristics order them. Takes any pitch.
    ///
    /// # Errors
    /// What cuDNN says; none that serves it.
    pub fn plans(&self, shape: &Shape, pass: Pass, formats: Formats, add: bool, wanted: Wanted) -> Result<Vec<Plan>> {
        graph::plans(self.api, self.handle, shape, pass, formats, add, wanted)
    }

    /// Runs an engine; pointers as in [`Self::run`].
    ///
    /// # Errors
    /// What cuDNN says.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub unsafe fn run_plan(&self, plan: &Plan, places: [u64; 3], workspace: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { plan.run(self.handle, places, workspace) }
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.api.cudnnDestroy)(self.handle) };
    }
}
