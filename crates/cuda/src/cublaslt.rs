//! Pointwise convolutions as matrix products of cuBLASLt. A pixel is a row; a channel range is a leading dimension, and
//! groups are a batch of products whose matrices lie side by side in every row.

use crate::Format;
use crate::conv::{Pass, Shape};
use crate::error::{CudaError, Result};
use crate::libraries::{self, Library, functions};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtHandle_t as Handle, cublasLtMatmulDesc_t as Desc,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreference_t as Preference,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t as Layout,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cudaDataType as DataType,
};
use cudarc::driver::CudaStream;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `cublasLtMatmulHeuristicResult_t` with a number for the status.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Found {
    algo: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

type In = *const c_void;

functions! {
    /// cuBLASLt's functions, as its headers declare them, except that statuses are numbers.
    struct Api of Library::CublasLt;
    cublasLtCreate(*mut Handle) -> u32;
    cublasLtDestroy(Handle) -> u32;
    cublasLtMatmulDescCreate(*mut Desc, Compute, DataType) -> u32;
    cublasLtMatmulDescDestroy(Desc) -> u32;
    cublasLtMatmulDescSetAttribute(Desc, DescAttribute, In, usize) -> u32;
    cublasLtMatrixLayoutCreate(*mut Layout, DataType, u64, u64, i64) -> u32;
    cublasLtMatrixLayoutDestroy(Layout) -> u32;
    cublasLtMatrixLayoutSetAttribute(Layout, LayoutAttribute, In, usize) -> u32;
    cublasLtMatmulPreferenceCreate(*mut Preference) -> u32;
    cublasLtMatmulPreferenceDestroy(Preference) -> u32;
    cublasLtMatmulPreferenceSetAttribute(Preference, PreferenceAttribute, In, usize) -> u32;
    cublasLtMatmulAlgoGetHeuristic(
        Handle, Desc, Layout, Layout, Layout, Layout, Preference, c_int, *mut Found, *mut c_int
    ) -> u32;
    cublasLtMatmul(
        Handle, Desc, In, In, Layout, In, Layout, In, In, Layout, *mut c_void, Layout,
        *const sys::cublasLtMatmulAlgo_t, *mut c_void, usize, sys::cudaStream_t
    ) -> u32;
}

fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(CudaError::CublasLt { call, code }) }
}

/// cuBLASLt on one stream.
pub struct CublasLt {
    api: &'static Api,
    handle: Handle,
    stream: Arc<CudaStream>,
}

// SAFETY: a handle may be used from any thread.
unsafe impl Send for CublasLt {}

/// One way to compute a product.
#[derive(Clone, Copy, Debug)]
pub struct Algorithm {
    algo: sys::cublasLtMatmulAlgo_t,
    /// Bytes of workspace.
    pub workspace: usize,
}

/// Number formats of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formats {
    pub operands: Format,
    /// Of the result, except that weight gradients are always float32.
    pub result: Format,
    /// Lets float32 operands be rounded to TF32.
    pub tf32: bool,
}

impl Formats {
    /// Operands and result alike, float32 in full.
    pub fn all(format: Format) -> Self {
        Self { operands: format, result: format, tf32: false }
    }
}

/// A 1x1 convolution's pass as a product.
pub struct Product {
    api: &'static Api,
    desc: Desc,
    /// Of the operands and the result; null until they are made.
    a: Layout,
    b: Layout,
    d: Layout,
    pass: Pass,
    single_result: bool,
}

// SAFETY: descriptors may be used from any thread; nothing changes them once they are set.
unsafe impl Send for Product {}
// SAFETY: as above.
unsafe impl Sync for Product {}

/// A column-major matrix, or as many as there are groups.
struct Matrix {
    format: Format,
    rows: usize,
    columns: usize,
    leading: usize,
    groups: usize,
    /// Elements from one group's matrix to the next one's.
    next: usize,
}

impl CublasLt {
    /// Loads the library and makes a handle.
    ///
    /// # Errors
    /// A missing library, or what cuBLASLt says.
    pub fn new(stream: Arc<CudaStream>) -> Result<Self> {
        let api = Api::get()?;
        stream.context().bind_to_thread()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the call writes one handle.
        check("cublasLtCreate", unsafe { (api.cublasLtCreate)(&mut handle) })?;
        Ok(Self { api, handle, stream })
    }

    /// Such as `13.0.2`.
    ///
    /// # Errors
    /// A missing library.
    pub fn version() -> Result<String> {
        libraries::version(Library::CublasLt)
    }

    /// A pass of a 1x1 convolution with stride 1 and no padding. Weight gradients are float32.
    ///
    /// # Errors
    /// What cuBLASLt says.
    pub fn product(&self, shape: &Shape, pass: Pass, formats: Formats) -> Result<Product> {
        // Values of cublasOperation_t: as stored, transposed.
        const CUBLAS_OP_N: i32 = 0;
        const CUBLAS_OP_T: i32 = 1;
        let compute = match formats.operands {
            Format::F32 if formats.tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        let single_result = pass == Pass::Weight || formats.result == Format::F32;
        let (api, null) = (self.api, std::ptr::null_mut());
        let mut made = Product { api, desc: null, a: null.cast(), b: null.cast(), d: null.cast(), pass, single_result };
        // SAFETY: the call writes one descriptor.
        let status = unsafe { (api.cublasLtMatmulDescCreate)(&mut made.desc, compute, DataType::CUDA_R_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        // Column-major: a row of pixels is a column. x is (inputs, pixels), y (outputs, pixels), w (inputs, outputs),
        // each of one group.
        let (groups, pixels) = (shape.groups, shape.in_pixels());
        let (inputs, outputs) = (shape.inputs / groups, shape.outputs / groups);
        let x = |format| {
            let leading = shape.input_pitch;
            self.layout(Matrix { format, rows: inputs, columns: pixels, leading, groups, next: inputs })
        };
        let y = |format| {
            let leading = shape.output_pitch;
            self.layout(Matrix { format, rows: outputs, columns: pixels, leading, groups, next: outputs })
        };
        let w = |format| {
            let next = inputs * outputs;
            self.layout(Matrix { format, rows: inputs, columns: outputs, leading: inputs, groups, next })
        };
        let (of, to) = (formats.operands, formats.result);
        let (a_op, b_op) = match pass {
            Pass::Forward => (CUBLAS_OP_T, CUBLAS_OP_N),
            Pass::Data => (CUBLAS_OP_N, CUBLAS_OP_N),
            Pass::Weight => (CUBLAS_OP_N, CUBLAS_OP_T),
        };
        match pass {
            Pass::Forward => (made.a, made.b, made.d) = (w(of)?, x(of)?, y(to)?),
            Pass::Data => (made.a, made.b, made.d) = (w(of)?, y(of)?, x(to)?),
            Pass::Weight => (made.a, made.b, made.d) = (x(of)?, y(of)?, w(Format::F32)?),
        }
        for (attribute, op) in
            [(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, a_op), (DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, b_op)]
        {
            let set = api.cublasLtMatmulDescSetAttribute;
            // SAFETY: a descriptor of our own; the attribute is an int32, copied by the call.
            let status = unsafe { set(made.desc, attribute, (&raw const op).cast(), size_of_val(&op)) };
            check("cublasLtMatmulDescSetAttribute", status)?;
        }
        Ok(made)
    }

    fn layout(&self, m: Matrix) -> Result<Layout> {
        let (api, mut layout) = (self.api, std::ptr::null_mut());
        let kind = match m.format {
            Format::F32 => DataType::CUDA_R_32F,
            Format::F16 => DataType::CUDA_R_16F,
            Format::Bf16 => DataType::CUDA_R_16BF,
        };
        let create = api.cublasLtMatrixLayoutCreate;
        // SAFETY: the call writes one descriptor.
        let status = unsafe { create(&mut layout, kind, m.rows as u64, m.columns as u64, m.leading as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        if m.groups == 1 {
            return Ok(layout);
        }
        let (count, next, set) = (m.groups as i32, m.next as i64, api.cublasLtMatrixLayoutSetAttribute);
        // SAFETY: a descriptor of our own; an int32 and an int64, copied by the calls.
        let statuses = unsafe {
            let attribute = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            let first = set(layout, attribute, (&raw const count).cast(), size_of_val(&count));
            let attribute = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            [first, set(layout, attribute, (&raw const next).cast(), size_of_val(&next))]
        };
        if let Some(&code) = statuses.iter().find(|&&s| s != 0) {
            // SAFETY: made above and used nowhere else.
            let _ = unsafe { (api.cublasLtMatrixLayoutDestroy)(layout) };
            return Err(CudaError::CublasLt { call: "cublasLtMatrixLayoutSetAttribute", code });
        }
        Ok(layout)
    }

    /// Ways to compute a product that the heuristics name, the likely fastest first. All of them are deterministic on
    /// one stream, and none rounds partial sums to half precision.
    ///
    /// # Errors
    /// What cuBLASLt says; none that serves the product.
    pub fn algorithms(&self, product: &Product, most_workspace: usize, count: usize) -> Result<Vec<Algorithm>> {
        // Sums of a split product: in float32 in the workspace, or in place in an output that is float32.
        const IN_PLACE: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32;
        const IN_FLOAT: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        // Channel ranges and parameters start at multiples of 16 bytes; unless told, the heuristics assume 256.
        const ALIGNMENT: u32 = 16;
        use PreferenceAttribute::*;
        let api = self.api;
        let mut preference = std::ptr::null_mut();
        // SAFETY: the call writes one descriptor.
        let status = unsafe { (api.cublasLtMatmulPreferenceCreate)(&mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let schemes = if product.single_result { IN_PLACE | IN_FLOAT } else { IN_FLOAT };
        let set = |attribute, value: *const c_void, bytes| {
            // SAFETY: a descriptor of our own; the value has the attribute's type and is copied by the call.
            unsafe { (api.cublasLtMatmulPreferenceSetAttribute)(preference, attribute, value, bytes) }
        };
        let number = |attribute, value: &u32| set(attribute, (&raw const *value).cast(), size_of::<u32>());
        let space = (&raw const most_workspace).cast();
        let statuses = [
            set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, space, size_of::<usize>()),
            number(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes),
            number(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &ALIGNMENT),
            number(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &ALIGNMENT),
            number(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &ALIGNMENT),
            number(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &ALIGNMENT),
        ];
        let none = Found {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
            state: 1,
            waves: 0.0,
            reserved: [0; 4],
        };
        let mut found = vec![none; count];
        let (mut got, most) = (0, i32::try_from(count).unwrap_or(i32::MAX));
        let Product { desc, a, b, d, .. } = *product;
        let get = api.cublasLtMatmulAlgoGetHeuristic;
        // SAFETY: descriptors of our own, an array with room for the number asked for.
        let status = unsafe { get(self.handle, desc, a, b, d, d, preference, most, found.as_mut_ptr(), &mut got) };
        // SAFETY: made above and destroyed once. Nothing can be done about a failure.
        let _ = unsafe { (api.cublasLtMatmulPreferenceDestroy)(preference) };
        for code in statuses {
            check("cublasLtMatmulPreferenceSetAttribute", code)?;
        }
        found.truncate(usize::try_from(got).unwrap_or(0));
        found.retain(|f| f.state == 0);
        if status != 0 || found.is_empty() {
            return Err(CudaError::NoAlgorithm { library: "cuBLASLt", what: format!("{:?} pass", product.pass) });
        }
        Ok(found.iter().map(|f| Algorithm { algo: f.algo, workspace: f.workspace }).collect())
    }

    /// Computes a pass; pointers as in [`crate::cudnn::Cudnn::run`], but float32 weights for the weight gradient.
    /// With `add`, the result is added to what is there.
    ///
    /// # Errors
    /// What cuBLASLt says.
    ///
    /// # Safety
    /// The pointers are device memory of the extents described, 16-byte aligned; the workspace of the bytes that the
    /// algorithm needs.
    pub unsafe fn run(
        &self,
        product: &Product,
        algorithm: &Algorithm,
        [x, w, y]: [u64; 3],
        workspace: u64,
        add: bool,
    ) -> Result<()> {
        let (alpha, beta) = (1.0f32, if add { 1.0f32 } else { 0.0 });
        let (at_a, at_b, at_d) = match product.pass {
            Pass::Forward => (w, x, y),
            Pass::Data => (w, y, x),
            Pass::Weight => (x, y, w),
        };
        let Product { desc, a, b, d, .. } = *product;
        // SAFETY: the caller's promise; the two factors are read before the call returns.
        let status = unsafe {
            (self.api.cublasLtMatmul)(
                self.handle,
                desc,
                (&raw const alpha).cast(),
                at_a as In,
                a,
                at_b as In,
                b,
                (&raw const beta).cast(),
                at_d as In,
                d,
                at_d as *mut c_void,
                d,
                &raw const algorithm.algo,
                workspace as *mut c_void,
                algorithm.workspace,
                self.stream.cu_stream().cast(),
            )
        };
        check("cublasLtMatmul", status)
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        let _ = self.stream.context().bind_to_thread();
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { (self.api.cublasLtDestroy)(self.handle) };
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        // SAFETY: made in `product`, destroyed once; those that were not made are null. Nothing can be done about a
        // failure.
        unsafe {
            for layout in [self.a, self.b, self.d].into_iter().filter(|l| !l.is_null()) {
                let _ = (self.api.cublasLtMatrixLayoutDestroy)(layout);
            }
            if !self.desc.is_null() {
                let _ = (self.api.cublasLtMatmulDescDestroy)(self.desc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_library_has_every_function() {
        if let Err(missing) = libraries::load(Library::CublasLt) {
            println!("skipped: {missing}");
            return;
        }
        assert!(Api::get().is_ok(), "{:?}", Api::get().err());
    }
}
