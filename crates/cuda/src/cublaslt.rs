//! Pointwise convolutions as matrix products of cuBLASLt. A pixel is a row; a channel range is a leading dimension.

use crate::Format;
use crate::cudnn::{Pass, Shape};
use crate::error::{CudaError, Result};
use crate::libraries::{Library, load};
use cudarc::cublaslt::{result, sys};
use cudarc::driver::CudaStream;
use std::ffi::c_void;
use std::sync::Arc;

/// cuBLASLt on one stream.
pub struct CublasLt {
    handle: sys::cublasLtHandle_t,
    stream: Arc<CudaStream>,
}

/// One way to compute a product.
#[derive(Clone, Copy)]
pub struct Algorithm {
    algo: sys::cublasLtMatmulAlgo_t,
    /// Bytes of workspace.
    pub workspace: usize,
}

/// A 1x1 convolution's pass as a product.
pub struct Product {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
    pass: Pass,
}

impl CublasLt {
    /// Loads the library and makes a handle.
    ///
    /// # Errors
    /// A missing library, or what cuBLASLt says.
    pub fn new(stream: Arc<CudaStream>) -> Result<Self> {
        load(Library::CublasLt)?;
        stream.context().bind_to_thread()?;
        Ok(Self { handle: result::create_handle()?, stream })
    }

    /// A pass of a 1x1 convolution with stride 1 and one group. Weight gradients are float32, the others as `format`.
    ///
    /// # Errors
    /// What cuBLASLt says.
    pub fn product(&self, shape: &Shape, pass: Pass, format: Format) -> Result<Product> {
        // Values of cublasOperation_t: as stored, transposed.
        const CUBLAS_OP_N: i32 = 0;
        const CUBLAS_OP_T: i32 = 1;
        let half = match format {
            Format::F32 => sys::cudaDataType::CUDA_R_32F,
            Format::F16 => sys::cudaDataType::CUDA_R_16F,
            Format::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        };
        let single = sys::cudaDataType::CUDA_R_32F;
        // Column-major: a row of pixels is a column. x is (inputs, pixels), y (outputs, pixels), w (inputs, outputs).
        let pixels = shape.in_pixels() as u64;
        let layout = |kind, rows: usize, columns: u64, pitch: usize| {
            result::create_matrix_layout(kind, rows as u64, columns, pitch as i64)
        };
        let x = || layout(half, shape.inputs, pixels, shape.input_pitch);
        let y = || layout(half, shape.outputs, pixels, shape.output_pitch);
        let w = |kind| layout(kind, shape.inputs, shape.outputs as u64, shape.inputs);
        let (a, a_op, b, b_op, d) = match pass {
            Pass::Forward => (w(half)?, CUBLAS_OP_T, x()?, CUBLAS_OP_N, y()?),
            Pass::Data => (w(half)?, CUBLAS_OP_N, y()?, CUBLAS_OP_N, x()?),
            Pass::Weight => (x()?, CUBLAS_OP_N, y()?, CUBLAS_OP_T, w(single)?),
        };
        let desc = result::create_matmul_desc(sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, single)?;
        let product = Product { desc, a, b, d, pass };
        for (attribute, op) in [
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, a_op),
            (sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB, b_op),
        ] {
            // SAFETY: a descriptor of our own; the attribute is an int32, copied by the call.
            unsafe { result::set_matmul_desc_attribute(desc, attribute, (&raw const op).cast(), size_of_val(&op)) }?;
        }
        Ok(product)
    }

    /// Ways to compute a product that the heuristics name, the likely fastest first. All of them are deterministic on
    /// one stream.
    ///
    /// # Errors
    /// What cuBLASLt says; none that serves the product.
    pub fn algorithms(&self, product: &Product, most_workspace: usize, count: usize) -> Result<Vec<Algorithm>> {
        let preference = result::create_matmul_pref()?;
        let mut found: Vec<std::mem::MaybeUninit<sys::cublasLtMatmulHeuristicResult_t>> = Vec::new();
        found.resize_with(count, std::mem::MaybeUninit::uninit);
        let mut got = 0;
        // SAFETY: descriptors of our own, an array with room for the number asked for.
        let status = unsafe {
            let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let set = result::set_matmul_pref_attribute(
                preference,
                attribute,
                (&raw const most_workspace).cast(),
                size_of::<usize>(),
            );
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                product.desc,
                product.a,
                product.b,
                product.d,
                product.d,
                preference,
                count as i32,
                found.as_mut_ptr().cast(),
                &mut got,
            );
            let _ = result::destroy_matmul_pref(preference);
            set?;
            status
        };
        if status != sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS || got == 0 {
            return Err(CudaError::NoAlgorithm { library: "cuBLASLt", what: format!("{:?} pass", product.pass) });
        }
        // SAFETY: the call wrote the first `got` entries.
        let found = found[..got as usize].iter().map(|f| unsafe { f.assume_init() });
        let ok = found.filter(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(ok.map(|f| Algorithm { algo: f.algo, workspace: f.workspaceSize }).collect())
    }

    /// Computes a pass; pointers as in [`crate::cudnn::Cudnn::run`], but float32 weights for the weight gradient.
    /// With `add`, the result is added to what is there.
    ///
    /// # Errors
    /// What cuBLASLt says.
    ///
    /// # Safety
    /// The pointers are device memory of the extents described, the workspace of the bytes that the algorithm needs.
    pub unsafe fn run(
        &self,
        product: &Product,
        algorithm: &Algorithm,
        [x, w, y]: [u64; 3],
        workspace: u64,
        add: bool,
    ) -> Result<()> {
        let (alpha, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let (a, b, d) = match product.pass {
            Pass::Forward => (w, x, y),
            Pass::Data => (w, y, x),
            Pass::Weight => (x, y, w),
        };
        // SAFETY: the caller's promise.
        unsafe {
            result::matmul(
                self.handle,
                product.desc,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                a as *const c_void,
                product.a,
                b as *const c_void,
                product.b,
                d as *const c_void,
                product.d,
                d as *mut c_void,
                product.d,
                &raw const algorithm.algo,
                workspace as *mut c_void,
                algorithm.workspace,
                self.stream.cu_stream().cast(),
            )?;
        }
        Ok(())
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: made in `product`, destroyed once. Nothing can be done about a failure.
        unsafe {
            let _ = result::destroy_matmul_desc(self.desc);
            let _ = result::destroy_matrix_layout(self.a);
            let _ = result::destroy_matrix_layout(self.b);
            let _ = result::destroy_matrix_layout(self.d);
        }
    }
}
