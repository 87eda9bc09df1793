//! cuDNN's older interface: descriptors of a convolution, the algorithms that serve it, and running one.

use super::api::{Api, Performance};
use crate::Format;
use crate::conv::{Pass, Shape};
use crate::error::{CudaError, Result};
use cudarc::cudnn::sys;
use std::ffi::c_void;

/// One way to compute a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// cuDNN's number of it.
    pub id: i32,
    /// Bytes of workspace.
    pub workspace: usize,
    pub deterministic: bool,
    /// True where it works on transformed tiles (Fourier, Winograd), whose rounding is coarser.
    pub transforms: bool,
}

/// Descriptors of one convolution.
pub struct Convolution {
    api: &'static Api,
    x: sys::cudnnTensorDescriptor_t,
    y: sys::cudnnTensorDescriptor_t,
    w: sys::cudnnFilterDescriptor_t,
    conv: sys::cudnnConvolutionDescriptor_t,
}

// SAFETY: descriptors may be used from any thread; nothing changes them once they are set.
unsafe impl Send for Convolution {}
// SAFETY: as above.
unsafe impl Sync for Convolution {}

impl Convolution {
    pub(super) fn new(api: &'static Api, s: Shape, format: Format, tf32: bool) -> Result<Self> {
        let null = std::ptr::null_mut();
        let mut made = Self { api, x: null, y: null.cast(), w: null.cast(), conv: null.cast() };
        // SAFETY: each call writes one descriptor.
        unsafe {
            api.check("cudnnCreateTensorDescriptor", (api.cudnnCreateTensorDescriptor)(&mut made.x))?;
            api.check("cudnnCreateTensorDescriptor", (api.cudnnCreateTensorDescriptor)(&mut made.y))?;
            api.check("cudnnCreateFilterDescriptor", (api.cudnnCreateFilterDescriptor)(&mut made.w))?;
            api.check("cudnnCreateConvolutionDescriptor", (api.cudnnCreateConvolutionDescriptor)(&mut made.conv))?;
        }
        let int = |v: usize| i32::try_from(v).unwrap_or(i32::MAX);
        let (n, kind) = (int(s.images), format.sys());
        let tensor = |desc, h: usize, wide: usize, c: usize, pitch: usize| {
            let (image, row) = (int(h * wide * pitch), int(wide * pitch));
            // SAFETY: a descriptor of our own.
            let status = unsafe {
                let set = api.cudnnSetTensor4dDescriptorEx;
                set(desc, kind, n, int(c), int(h), int(wide), image, 1, row, int(pitch))
            };
            api.check("cudnnSetTensor4dDescriptorEx", status)
        };
        tensor(made.x, s.height, s.width, s.inputs, s.input_pitch)?;
        tensor(made.y, s.out_height(), s.out_width(), s.outputs, s.output_pitch)?;
        let (k, pad, stride) = (int(s.kernel), int(s.pad), int(s.stride));
        let nhwc = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC;
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let single = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        // Full single precision for f32: TF32 rounds operands to 10 bits.
        let math = match format {
            Format::F32 if tf32 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
            Format::F32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
            _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
        };
        // SAFETY: descriptors of our own.
        unsafe {
            let set = api.cudnnSetFilter4dDescriptor;
            let status = set(made.w, kind, nhwc, int(s.outputs), int(s.inputs / s.groups), k, k);
            api.check("cudnnSetFilter4dDescriptor", status)?;
            let set = api.cudnnSetConvolution2dDescriptor;
            let status = set(made.conv, pad, pad, stride, stride, 1, 1, mode, single);
            api.check("cudnnSetConvolution2dDescriptor", status)?;
            let status = (api.cudnnSetConvolutionGroupCount)(made.conv, int(s.groups));
            api.check("cudnnSetConvolutionGroupCount", status)?;
            let status = (api.cudnnSetConvolutionMathType)(made.conv, math);
            api.check("cudnnSetConvolutionMathType", status)?;
        }
        Ok(made)
    }

    pub(super) fn algorithms(&self, handle: sys::cudnnHandle_t, pass: Pass) -> Result<Vec<Algorithm>> {
        const MOST: usize = 16;
        const DETERMINISTIC: u32 = sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC as u32;
        let most = MOST as i32;
        let mut found = [Performance::default(); MOST];
        let (mut count, at) = (0, found.as_mut_ptr());
        let Self { api, x, y, w, conv } = *self;
        // SAFETY: the descriptors live in `self`, and the array has room for the number asked for.
        let status = unsafe {
            match pass {
                Pass::Forward => {
                    (api.cudnnGetConvolutionForwardAlgorithm_v7)(handle, x, w, conv, y, most, &mut count, at)
                }
                Pass::Data => {
                    (api.cudnnGetConvolutionBackwardDataAlgorithm_v7)(handle, w, y, conv, x, most, &mut count, at)
                }
                Pass::Weight => {
                    (api.cudnnGetConvolutionBackwardFilterAlgorithm_v7)(handle, x, y, conv, w, most, &mut count, at)
                }
            }
        };
        api.check("cudnnGetConvolution*Algorithm_v7", status)?;
        // FFT, FFT_TILING, WINOGRAD and WINOGRAD_NONFUSED, by the pass.
        let transforms: &[i32] = match pass {
            Pass::Forward => &[4, 5, 6, 7],
            Pass::Data => &[2, 3, 4, 5],
            Pass::Weight => &[2, 4, 5, 6],
        };
        let found = found.iter().take(usize::try_from(count).unwrap_or(0)).filter(|p| p.status == 0);
        let algorithm = |p: &Performance| Algorithm {
            id: p.algorithm,
            workspace: p.memory,
            deterministic: p.determinism == DETERMINISTIC,
            transforms: transforms.contains(&p.algorithm),
        };
        Ok(found.map(algorithm).collect())
    }

    pub(super) unsafe fn run(
        &self,
        handle: sys::cudnnHandle_t,
        pass: Pass,
        algorithm: Algorithm,
        places: [u64; 3],
        workspace: u64,
        add: bool,
    ) -> Result<()> {
        let (alpha, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let (alpha, beta) = ((&raw const alpha).cast::<c_void>(), (&raw const beta).cast::<c_void>());
        let [at_x, at_w, at_y] = places.map(|p| p as *mut c_void);
        let (id, space, bytes) = (algorithm.id, workspace as *mut c_void, algorithm.workspace);
        let Self { api, x, y, w, conv } = *self;
        // SAFETY: the caller's promise; the two factors are read before the calls return.
        let (call, status) = unsafe {
            match pass {
                Pass::Forward => {
                    let run = api.cudnnConvolutionForward;
                    let status = run(handle, alpha, x, at_x, w, at_w, conv, id, space, bytes, beta, y, at_y);
                    ("cudnnConvolutionForward", status)
                }
                Pass::Data => {
                    let run = api.cudnnConvolutionBackwardData;
                    let status = run(handle, alpha, w, at_w, y, at_y, conv, id, space, bytes, beta, x, at_x);
                    ("cudnnConvolutionBackwardData", status)
                }
                Pass::Weight => {
                    let run = api.cudnnConvolutionBackwardFilter;
                    let status = run(handle, alpha, x, at_x, y, at_y, conv, id, space, bytes, beta, w, at_w);
                    ("cudnnConvolutionBackwardFilter", status)
                }
            }
        };
        api.check(call, status)
    }
}

impl Drop for Convolution {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; those that were not made are null. Nothing can be done about a failure.
        unsafe {
            for tensor in [self.x, self.y].into_iter().filter(|d| !d.is_null()) {
                let _ = (self.api.cudnnDestroyTensorDescriptor)(tensor);
            }
            if !self.w.is_null() {
                let _ = (self.api.cudnnDestroyFilterDescriptor)(self.w);
            }
            if !self.conv.is_null() {
                let _ = (self.api.cudnnDestroyConvolutionDescriptor)(self.conv);
            }
        }
    }
}

/// The first algorithms that may be used: deterministic, without transforms, within a workspace.
///
/// # Errors
/// None is left.
pub fn usable(algorithms: Vec<Algorithm>, most_workspace: usize, what: &str) -> Result<Vec<Algorithm>> {
    let may = |a: &Algorithm| a.deterministic && !a.transforms && a.workspace <= most_workspace;
    let left: Vec<Algorithm> = algorithms.into_iter().filter(may).collect();
    match left.is_empty() {
        true => Err(CudaError::NoAlgorithm { library: "cuDNN", what: what.to_owned() }),
        false => Ok(left),
    }
}
