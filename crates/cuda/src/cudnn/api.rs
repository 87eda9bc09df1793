//! cuDNN's functions, as its headers declare them, except that statuses are numbers: later versions know more of them
//! than these bindings.

use crate::error::{CudaError, Result};
use crate::libraries::{Library, functions};
use cudarc::cudnn::sys::{
    cudaStream_t as Stream, cudnnBackendAttributeName_t as AttributeName, cudnnBackendAttributeType_t as AttributeType,
    cudnnBackendDescriptor_t as Backend, cudnnBackendDescriptorType_t as BackendType,
    cudnnConvolutionDescriptor_t as Conv, cudnnConvolutionMode_t as Mode, cudnnDataType_t as DataType,
    cudnnFilterDescriptor_t as Filter, cudnnHandle_t as Handle, cudnnMathType_t as Math,
    cudnnTensorDescriptor_t as Tensor, cudnnTensorFormat_t as TensorFormat,
};
use std::ffi::{CStr, c_char, c_int, c_void};

/// `cudnnConvolutionFwdAlgoPerf_t` and the two others, which are laid out alike, with numbers for enums.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Performance {
    pub algorithm: i32,
    pub status: u32,
    pub time: f32,
    pub memory: usize,
    pub determinism: u32,
    pub math: u32,
    pub reserved: [c_int; 3],
}

type In = *const c_void;
type Out = *mut c_void;

functions! {
    pub(super) struct Api of Library::Cudnn;
    cudnnCreate(*mut Handle) -> u32;
    cudnnDestroy(Handle) -> u32;
    cudnnSetStream(Handle, Stream) -> u32;
    cudnnGetErrorString(u32) -> *const c_char;
    cudnnCreateTensorDescriptor(*mut Tensor) -> u32;
    cudnnSetTensor4dDescriptorEx(
        Tensor, DataType, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int
    ) -> u32;
    cudnnDestroyTensorDescriptor(Tensor) -> u32;
    cudnnCreateFilterDescriptor(*mut Filter) -> u32;
    cudnnSetFilter4dDescriptor(Filter, DataType, TensorFormat, c_int, c_int, c_int, c_int) -> u32;
    cudnnDestroyFilterDescriptor(Filter) -> u32;
    cudnnCreateConvolutionDescriptor(*mut Conv) -> u32;
    cudnnSetConvolution2dDescriptor(
        Conv, c_int, c_int, c_int, c_int, c_int, c_int, Mode, DataType
    ) -> u32;
    cudnnSetConvolutionGroupCount(Conv, c_int) -> u32;
    cudnnSetConvolutionMathType(Conv, Math) -> u32;
    cudnnDestroyConvolutionDescriptor(Conv) -> u32;
    cudnnGetConvolutionForwardAlgorithm_v7(
        Handle, Tensor, Filter, Conv, Tensor, c_int, *mut c_int, *mut Performance
    ) -> u32;
    cudnnGetConvolutionBackwardDataAlgorithm_v7(
        Handle, Filter, Tensor, Conv, Tensor, c_int, *mut c_int, *mut Performance
    ) -> u32;
    cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        Handle, Tensor, Tensor, Conv, Filter, c_int, *mut c_int, *mut Performance
    ) -> u32;
    cudnnConvolutionForward(
        Handle, In, Tensor, In, Filter, In, Conv, c_int, Out, usize, In, Tensor, Out
    ) -> u32;
    cudnnConvolutionBackwardData(
        Handle, In, Filter, In, Tensor, In, Conv, c_int, Out, usize, In, Tensor, Out
    ) -> u32;
    cudnnConvolutionBackwardFilter(
        Handle, In, Tensor, In, Tensor, In, Conv, c_int, Out, usize, In, Filter, Out
    ) -> u32;
    cudnnBackendCreateDescriptor(BackendType, *mut Backend) -> u32;
    cudnnBackendDestroyDescriptor(Backend) -> u32;
    cudnnBackendSetAttribute(Backend, AttributeName, AttributeType, i64, In) -> u32;
    cudnnBackendGetAttribute(Backend, AttributeName, AttributeType, i64, *mut i64, Out) -> u32;
    cudnnBackendFinalize(Backend) -> u32;
    cudnnBackendExecute(Handle, Backend, Backend) -> u32;
}

impl Api {
    /// An error unless the status is success.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: any number is allowed; the text is static.
        let message = unsafe { CStr::from_ptr((self.cudnnGetErrorString)(code)) };
        Err(CudaError::Cudnn { call, code, message: message.to_string_lossy().into_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_has_every_function() {
        if let Err(missing) = crate::libraries::load(Library::Cudnn) {
            println!("skipped: {missing}");
            return;
        }
        assert!(Api::get().is_ok(), "{:?}", Api::get().err());
    }
}
