//! Convolutions of cuDNN in NHWC, over channel ranges: a tensor's pitch may be larger than its channels.

mod graph;

pub use graph::{Formats, Plan};

use crate::Format;
use crate::error::{CudaError, Result};
use crate::libraries::{Library, load};
use cudarc::cudnn::{result, sys};
use cudarc::driver::CudaStream;
use std::ffi::c_void;
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

/// A convolution's extents. Weights are (out, kernel, kernel, in / groups), packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub images: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
    pub groups: usize,
    /// Elements from one input pixel to the next; `inputs` where packed.
    pub input_pitch: usize,
    pub output_pitch: usize,
}

impl Shape {
    /// A square kernel padded by half of it, packed on both sides.
    pub fn packed(images: usize, side: usize, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Self {
        let (height, width, groups) = (side, side, 1);
        let (input_pitch, output_pitch) = (inputs, outputs);
        Self { images, height, width, inputs, outputs, kernel, stride, groups, input_pitch, output_pitch }
    }

    pub fn out_height(&self) -> usize {
        (self.height + 2 * (self.kernel / 2) - self.kernel) / self.stride + 1
    }

    pub fn out_width(&self) -> usize {
        (self.width + 2 * (self.kernel / 2) - self.kernel) / self.stride + 1
    }

    /// Output pixels of all images.
    pub fn out_pixels(&self) -> usize {
        self.images * self.out_height() * self.out_width()
    }

    pub fn in_pixels(&self) -> usize {
        self.images * self.height * self.width
    }

    pub fn weights(&self) -> usize {
        self.outputs * self.kernel * self.kernel * self.inputs / self.groups
    }

    /// Floating-point operations of one pass: forward, data gradient and weight gradient do the same.
    pub fn flops(&self) -> f64 {
        2.0 * self.out_pixels() as f64 * self.weights() as f64
    }
}

/// Direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    Forward,
    Data,
    Weight,
}

impl Pass {
    pub const ALL: [Pass; 3] = [Self::Forward, Self::Data, Self::Weight];
}

/// One way to compute a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// cuDNN's number of it.
    pub id: i32,
    /// Bytes of workspace.
    pub workspace: usize,
    pub deterministic: bool,
}

/// cuDNN on one stream.
pub struct Cudnn {
    handle: sys::cudnnHandle_t,
    stream: Arc<CudaStream>,
}

impl Cudnn {
    /// Loads the library and makes a handle.
    ///
    /// # Errors
    /// A missing library, or what cuDNN says.
    pub fn new(stream: Arc<CudaStream>) -> Result<Self> {
        load(Library::Cudnn)?;
        stream.context().bind_to_thread()?;
        let handle = result::create_handle()?;
        // SAFETY: the handle was just made, and the stream lives as long as `self`.
        unsafe { result::set_stream(handle, stream.cu_stream().cast()) }?;
        Ok(Self { handle, stream })
    }

    /// `90100` is 9.1.0.
    pub fn version() -> Result<usize> {
        load(Library::Cudnn)?;
        Ok(result::get_version())
    }

    /// Describes a convolution.
    ///
    /// # Errors
    /// Extents that cuDNN does not take.
    pub fn convolution(&self, shape: Shape, format: Format) -> Result<Convolution> {
        Convolution::new(shape, format)
    }

    /// Ways to compute a pass that cuDNN's heuristics name, the likely fastest first.
    ///
    /// # Errors
    /// What cuDNN says.
    pub fn algorithms(&self, conv: &Convolution, pass: Pass) -> Result<Vec<Algorithm>> {
        const MOST: usize = 16;
        let mut count = 0;
        macro_rules! ask {
            ($perf:ty, $get:path, $($desc:expr),*) => {{
                let mut found = std::mem::MaybeUninit::<[$perf; MOST]>::uninit();
                // SAFETY: the descriptors live in `conv`, and the array has room for the number asked for.
                let found = unsafe {
                    $get(self.handle, $($desc),*, MOST as i32, &mut count, found.as_mut_ptr().cast()).result()?;
                    std::slice::from_raw_parts(found.as_ptr().cast::<$perf>(), count as usize).to_vec()
                };
                let ok = found.iter().filter(|p| p.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS);
                ok.map(|p| Algorithm {
                    id: p.algo as i32,
                    workspace: p.memory,
                    deterministic: p.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC,
                }).collect::<Vec<_>>()
            }};
        }
        Ok(match pass {
            Pass::Forward => ask!(
                sys::cudnnConvolutionFwdAlgoPerf_t,
                sys::cudnnGetConvolutionForwardAlgorithm_v7,
                conv.x,
                conv.w,
                conv.conv,
                conv.y
            ),
            Pass::Data => ask!(
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                sys::cudnnGetConvolutionBackwardDataAlgorithm_v7,
                conv.w,
                conv.y,
                conv.conv,
                conv.x
            ),
            Pass::Weight => ask!(
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                sys::cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                conv.x,
                conv.y,
                conv.conv,
                conv.w
            ),
        })
    }

    /// Computes a pass: `y` from `x` and `w`, `x` (its gradient) from `w` and `y`, or `w` (its gradient) from `x` and `y`.
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
        [x, w, y]: [u64; 3],
        workspace: u64,
    ) -> Result<()> {
        let (one, zero) = (1.0f32, 0.0f32);
        let one = (&raw const one).cast::<c_void>();
        let zero = (&raw const zero).cast::<c_void>();
        let (x, w, y) = (x as *mut c_void, w as *mut c_void, y as *mut c_void);
        let (space, bytes) = (workspace as *mut c_void, algorithm.workspace);
        // SAFETY: the caller's promise; algorithm ids come from cuDNN's own list of the same pass.
        let status = unsafe {
            match pass {
                Pass::Forward => {
                    let id = std::mem::transmute::<i32, sys::cudnnConvolutionFwdAlgo_t>(algorithm.id);
                    sys::cudnnConvolutionForward(
                        self.handle,
                        one,
                        conv.x,
                        x,
                        conv.w,
                        w,
                        conv.conv,
                        id,
                        space,
                        bytes,
                        zero,
                        conv.y,
                        y,
                    )
                }
                Pass::Data => {
                    let id = std::mem::transmute::<i32, sys::cudnnConvolutionBwdDataAlgo_t>(algorithm.id);
                    sys::cudnnConvolutionBackwardData(
                        self.handle,
                        one,
                        conv.w,
                        w,
                        conv.y,
                        y,
                        conv.conv,
                        id,
                        space,
                        bytes,
                        zero,
                        conv.x,
                        x,
                    )
                }
                Pass::Weight => {
                    let id = std::mem::transmute::<i32, sys::cudnnConvolutionBwdFilterAlgo_t>(algorithm.id);
                    sys::cudnnConvolutionBackwardFilter(
                        self.handle,
                        one,
                        conv.x,
                        x,
                        conv.y,
                        y,
                        conv.conv,
                        id,
                        space,
                        bytes,
                        zero,
                        conv.w,
                        w,
                    )
                }
            }
        };
        Ok(status.result()?)
    }

    /// Engines of the graph interface for a pass, as its heuristics order them. Takes any pitch.
    ///
    /// # Errors
    /// What cuDNN says; none that serves it.
    pub fn plans(&self, shape: &Shape, pass: Pass, formats: Formats, most: usize) -> Result<Vec<Plan>> {
        graph::plans(self.handle, shape, pass, formats, most)
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
        // SAFETY: made in `new`, destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// Descriptors of one convolution.
pub struct Convolution {
    x: sys::cudnnTensorDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
}

impl Convolution {
    fn new(s: Shape, format: Format) -> Result<Self> {
        let (x, y) = (result::create_tensor_descriptor()?, result::create_tensor_descriptor()?);
        let (w, conv) = (result::create_filter_descriptor()?, result::create_convolution_descriptor()?);
        let made = Self { x, y, w, conv };
        let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
        let tensor = |desc, h: usize, wide: usize, c: usize, pitch: usize| {
            let dims = [int(s.images), int(c), int(h), int(wide)];
            let strides = [int(h * wide * pitch), 1, int(wide * pitch), int(pitch)];
            // SAFETY: a descriptor of our own.
            unsafe { result::set_tensor4d_descriptor_ex(desc, format.sys(), dims, strides) }
        };
        tensor(x, s.height, s.width, s.inputs, s.input_pitch)?;
        tensor(y, s.out_height(), s.out_width(), s.outputs, s.output_pitch)?;
        let dims = [int(s.outputs), int(s.inputs / s.groups), int(s.kernel), int(s.kernel)];
        let pad = int(s.kernel / 2);
        // SAFETY: descriptors of our own.
        unsafe {
            result::set_filter4d_descriptor(w, format.sys(), sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC, dims)?;
            result::set_convolution2d_descriptor(
                conv,
                pad,
                pad,
                int(s.stride),
                int(s.stride),
                1,
                1,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
                sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
            )?;
            result::set_convolution_group_count(conv, int(s.groups))?;
            // Full single precision for f32: TF32 rounds operands to 10 bits.
            let math = match format {
                Format::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
                _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
            };
            result::set_convolution_math_type(conv, math)?;
        }
        Ok(made)
    }
}

impl Drop for Convolution {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once. Nothing can be done about a failure.
        unsafe {
            let _ = result::destroy_tensor_descriptor(self.x);
            let _ = result::destroy_tensor_descriptor(self.y);
            let _ = result::destroy_filter_descriptor(self.w);
            let _ = result::destroy_convolution_descriptor(self.conv);
        }
    }
}

/// The first algorithms that may be used: deterministic, within a workspace.
///
/// # Errors
/// None is left.
pub fn usable(algorithms: Vec<Algorithm>, most_workspace: usize, what: &str) -> Result<Vec<Algorithm>> {
    let left: Vec<Algorithm> =
        algorithms.into_iter().filter(|a| a.deterministic && a.workspace <= most_workspace).collect();
    match left.is_empty() {
        true => Err(CudaError::NoAlgorithm { library: "cuDNN", what: what.to_owned() }),
        false => Ok(left),
    }
}
