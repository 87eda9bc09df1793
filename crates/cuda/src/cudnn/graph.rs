//! cuDNN's graph interface: a convolution with any strides, the engines that serve it, and what they promise.

use super::api::Api;
use crate::Format;
use crate::conv::{Pass, Shape};
use crate::error::{CudaError, Result};
use cudarc::cudnn::sys::{
    self, cudnnBackendAttributeName_t as Attribute, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind, cudnnBackendNumericalNote_t as Note,
};
use std::ffi::c_void;

/// Names of the three tensors in a variant pack.
const IDS: [i64; 3] = ['x' as i64, 'w' as i64, 'y' as i64];

/// An owned descriptor of the backend interface.
struct Descriptor {
    api: &'static Api,
    raw: sys::cudnnBackendDescriptor_t,
}

// SAFETY: descriptors may be used from any thread; nothing changes them once they are finalized.
unsafe impl Send for Descriptor {}

impl Descriptor {
    fn new(api: &'static Api, kind: Kind) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call writes one pointer.
        api.check("cudnnBackendCreateDescriptor", unsafe { (api.cudnnBackendCreateDescriptor)(kind, &mut raw) })?;
        Ok(Self { api, raw })
    }

    /// Sets an attribute to a list of plain values of the type that `kind` names.
    fn set<T: Copy>(&self, name: Attribute, kind: Type, values: &[T]) -> Result<()> {
        let set = self.api.cudnnBackendSetAttribute;
        // SAFETY: as many values as stated, copied by the call.
        let status = unsafe { set(self.raw, name, kind, values.len() as i64, values.as_ptr().cast()) };
        self.api.check("cudnnBackendSetAttribute", status)
    }

    fn set_descriptors(&self, name: Attribute, values: &[&Descriptor]) -> Result<()> {
        let raw: Vec<sys::cudnnBackendDescriptor_t> = values.iter().map(|d| d.raw).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    fn finalize(&self) -> Result<()> {
        // SAFETY: a descriptor of our own.
        self.api.check("cudnnBackendFinalize", unsafe { (self.api.cudnnBackendFinalize)(self.raw) })
    }

    /// Up to `most` plain values of an attribute.
    fn get<T: Copy + Default>(&self, name: Attribute, kind: Type, most: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); most];
        let (mut count, get) = (0, self.api.cudnnBackendGetAttribute);
        // SAFETY: room for `most` values of the attribute's type.
        let status = unsafe { get(self.raw, name, kind, most as i64, &mut count, values.as_mut_ptr().cast()) };
        self.api.check("cudnnBackendGetAttribute", status)?;
        values.truncate(count.clamp(0, most as i64) as usize);
        Ok(values)
    }

    /// Lets the call fill in descriptors that an attribute consists of; how many it did.
    fn get_descriptors(&self, name: Attribute, into: &[Descriptor]) -> Result<usize> {
        let mut raw: Vec<sys::cudnnBackendDescriptor_t> = into.iter().map(|d| d.raw).collect();
        let (most, mut count) = (raw.len() as i64, 0);
        let (kind, get) = (Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, self.api.cudnnBackendGetAttribute);
        // SAFETY: `most` descriptors of the right kind.
        let status = unsafe { get(self.raw, name, kind, most, &mut count, raw.as_mut_ptr().cast()) };
        self.api.check("cudnnBackendGetAttribute", status)?;
        Ok(count.clamp(0, most) as usize)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once. Nothing can be done about a failure.
        let _ = unsafe { (self.api.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}

/// An engine with its knobs, ready to run.
pub struct Plan {
    plan: Descriptor,
    /// Its place in the heuristics' list.
    pub pick: usize,
    /// cuDNN's number of the engine.
    pub engine: i64,
    /// Bytes of workspace.
    pub workspace: usize,
}

/// Which engines are wanted. All of them give the same bits in every run, and none sums in half precision or works on
/// transformed tiles (Fourier, Winograd), whose rounding is coarser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// None that rounds operands on the way, such as float32 to TF32.
    pub exact: bool,
    /// Most bytes of workspace.
    pub workspace: usize,
    /// Most engines: making one ready can take a second.
    pub engines: usize,
}

/// Number formats of x, w and y of a pass.
pub type Formats = [Format; 3];

fn tensor(api: &'static Api, id: i64, format: Format, dims: [usize; 4], strides: [usize; 4]) -> Result<Descriptor> {
    const ALIGNMENT: i64 = 16;
    let made = Descriptor::new(api, Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?;
    let wide = |v: [usize; 4]| v.map(|v| v as i64);
    made.set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[format.sys()])?;
    made.set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &wide(dims))?;
    made.set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &wide(strides))?;
    made.set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[id])?;
    made.set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[ALIGNMENT])?;
    made.finalize()?;
    Ok(made)
}

/// Engines for a pass, as the heuristics order them.
///
/// # Errors
/// What cuDNN says; [`CudaError::NoAlgorithm`] where no engine serves it.
pub(super) fn plans(
    api: &'static Api,
    handle: sys::cudnnHandle_t,
    s: &Shape,
    pass: Pass,
    formats: Formats,
    add: bool,
    wanted: Wanted,
) -> Result<Vec<Plan>> {
    let (oh, ow) = (s.out_height(), s.out_width());
    let image = |h: usize, w: usize, pitch: usize| [h * w * pitch, 1, w * pitch, pitch];
    let x_dims = [s.images, s.inputs, s.height, s.width];
    let x = tensor(api, IDS[0], formats[0], x_dims, image(s.height, s.width, s.input_pitch))?;
    let per_group = s.inputs / s.groups;
    let w_dims = [s.outputs, per_group, s.kernel, s.kernel];
    let w_strides = [s.kernel * s.kernel * per_group, 1, s.kernel * per_group, per_group];
    let w = tensor(api, IDS[1], formats[1], w_dims, w_strides)?;
    let y = tensor(api, IDS[2], formats[2], [s.images, s.outputs, oh, ow], image(oh, ow, s.output_pitch))?;

    use Attribute::*;
    let conv = Descriptor::new(api, Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?;
    let float = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
    let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
    let (pad, stride) = ([s.pad as i64; 2], [s.stride as i64; 2]);
    conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[float])?;
    conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &[mode])?;
    conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2i64])?;
    conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Type::CUDNN_TYPE_INT64, &pad)?;
    conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Type::CUDNN_TYPE_INT64, &pad)?;
    conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Type::CUDNN_TYPE_INT64, &stride)?;
    conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, Type::CUDNN_TYPE_INT64, &[1i64; 2])?;
    conv.finalize()?;

    let (kind, [ax, aw, ay, ac, alpha, beta]) = match pass {
        Pass::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        Pass::Data => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        Pass::Weight => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    };
    let op = Descriptor::new(api, kind)?;
    for (name, descriptor) in [(ax, &x), (aw, &w), (ay, &y), (ac, &conv)] {
        op.set_descriptors(name, &[descriptor])?;
    }
    op.set(alpha, Type::CUDNN_TYPE_FLOAT, &[1.0f32])?;
    op.set(beta, Type::CUDNN_TYPE_FLOAT, &[if add { 1.0f32 } else { 0.0 }])?;
    op.finalize()?;

    let graph = Descriptor::new(api, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?;
    graph.set_descriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, &[&op])?;
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
    graph.finalize()?;

    let mut configs = Vec::new();
    for mode in [sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_A, sys::cudnnBackendHeurMode_t::CUDNN_HEUR_MODE_FALLBACK]
    {
        // A mode that has none to offer may say so by an error.
        configs.extend(configurations(api, &graph, mode).unwrap_or_default());
    }
    let plans = configs.iter().enumerate().filter_map(|(pick, config)| plan(api, handle, config, pick, wanted).ok()?);
    let found: Vec<Plan> = plans.take(wanted.engines).collect();
    match found.is_empty() {
        true => Err(CudaError::NoAlgorithm { library: "cuDNN", what: format!("{pass:?} pass of {s:?}") }),
        false => Ok(found),
    }
}

fn configurations(api: &'static Api, graph: &Descriptor, mode: sys::cudnnBackendHeurMode_t) -> Result<Vec<Descriptor>> {
    const MOST: usize = 16;
    let heuristics = Descriptor::new(api, Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?;
    heuristics.set_descriptors(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &[graph])?;
    heuristics.set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?;
    heuristics.finalize()?;
    let mut made: Vec<Descriptor> =
        (0..MOST).map(|_| Descriptor::new(api, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)).collect::<Result<_>>()?;
    let count = heuristics.get_descriptors(Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, &made)?;
    made.truncate(count);
    Ok(made)
}

/// A configuration's engine, made ready if it is wanted.
fn plan(
    api: &'static Api,
    handle: sys::cudnnHandle_t,
    config: &Descriptor,
    pick: usize,
    wanted: Wanted,
) -> Result<Option<Plan>> {
    let engine = Descriptor::new(api, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    config.get_descriptors(Attribute::CUDNN_ATTR_ENGINECFG_ENGINE, std::slice::from_ref(&engine))?;
    let index: Vec<i64> = engine.get(Attribute::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, Type::CUDNN_TYPE_INT64, 1)?;
    // Notes are enums of 32 bits.
    let notes: Vec<u32> =
        engine.get(Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, Type::CUDNN_TYPE_NUMERICAL_NOTE, 32)?;
    let unwanted = [
        Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
        Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
        Note::CUDNN_NUMERICAL_NOTE_FFT,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
        Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
    ];
    let noted = |note: Note| notes.contains(&(note as u32));
    let rounds_inputs = noted(Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    // Tensor cores round float32 operands to TF32, also in engines that do not note that they round (67, 76).
    let rounds = rounds_inputs || noted(Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    if unwanted.into_iter().any(noted) || (wanted.exact && rounds) {
        return Ok(None);
    }
    let plan = Descriptor::new(api, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    plan.set(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[handle])?;
    plan.set_descriptors(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &[config])?;
    plan.finalize()?;
    let size: Vec<i64> = plan.get(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, Type::CUDNN_TYPE_INT64, 1)?;
    let workspace = size.first().and_then(|&size| usize::try_from(size).ok()).unwrap_or(usize::MAX);
    let engine = index.first().copied().unwrap_or(-1);
    Ok(Some(Plan { plan, pick, engine, workspace }).filter(|_| workspace <= wanted.workspace))
}

impl Plan {
    /// Runs on the handle's stream; pointers of x, w and y.
    ///
    /// # Errors
    /// What cuDNN says.
    ///
    /// # Safety
    /// Device memory of the extents described, 16-byte aligned; the workspace of [`Self::workspace`] bytes.
    pub(super) unsafe fn run(&self, handle: sys::cudnnHandle_t, places: [u64; 3], workspace: u64) -> Result<()> {
        let api = self.plan.api;
        let pack = Descriptor::new(api, Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?;
        let pointers = places.map(|p| p as *mut c_void);
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &pointers)?;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &IDS)?;
        let workspace = workspace as *mut c_void;
        pack.set(Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR, &[workspace])?;
        pack.finalize()?;
        // SAFETY: the caller's promise.
        api.check("cudnnBackendExecute", unsafe { (api.cudnnBackendExecute)(handle, self.plan.raw, pack.raw) })
    }
}
