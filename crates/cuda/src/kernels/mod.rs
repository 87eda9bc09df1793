//! Our own kernels: CUDA C++ beside Rust that launches it, one idea a pair of files.
//!
//! A kernel takes one argument, a plain struct by value, which Rust mirrors with `#[repr(C)]`. Pointers in it are
//! device addresses. Grids and reduction orders depend on shapes alone, never on the card.

mod activation;
mod add;
mod average_pool;
mod bias;
mod bn;
mod bn_apply;
mod bn_backward;
mod bn_reduce;
mod bn_stats;
mod commit;
pub mod compiler;
mod copy;
mod decode;
mod fill;
pub mod loss;
mod max_pool;
mod max_pool_5;
mod nms;
mod normalize;
pub mod own_conv;
mod render;
mod resize;
mod running_stats;
mod sums;
mod sweep;
mod tiling;

pub use activation::Activate;
pub use add::Add;
pub use average_pool::AveragePool;
pub use bias::Bias;
pub use bn::Branch;
pub use bn_apply::BnApply;
pub use bn_backward::{BnBackward, BranchGrad};
pub use bn_reduce::{BnReduce, BranchSums};
pub use bn_stats::BnStats;
pub use commit::{Commit, CommitBuffers, CommitChunk, CommitScalars, RawLossScale, RawReport};
pub use copy::Copy;
pub use decode::{Decode, DecodeLevel};
pub use fill::Fill;
pub use max_pool::MaxPool;
pub use nms::{Nms, NmsBuffers, Predictions};
pub use normalize::Normalize;
pub use render::{ColourTables, MOST_TILES, PasteMask, Render, RenderImage, RenderLayer, RenderTable, RenderTile};
pub use resize::Resize;
pub use running_stats::{RunningEntry, RunningStats};

use crate::device::Gpu;
use crate::error::Result;
use crate::view;
use compiler::{Source, architecture, compile_cached};
use cudarc::driver::{result, sys};
use std::ffi::CString;
use std::sync::Arc;

/// A source that follows headers of its own, beside the prelude; messages count its own lines.
macro_rules! source_after {
    ($file:literal, $($header:literal),*) => {
        Source {
            name: $file,
            text: concat!($(include_str!($header),)* "\n#line 1 \"", $file, "\"\n", include_str!($file)),
        }
    };
}

/// A source over tensors of channels, eight at a time.
macro_rules! channels_source {
    ($file:literal) => {
        $crate::kernels::source_after!($file, "tiles.cuh")
    };
}

/// A source that sums over pixels.
macro_rules! sums_source {
    ($file:literal) => {
        $crate::kernels::source_after!($file, "tiles.cuh", "sweep.cuh", "sums.cuh")
    };
}

/// A source over pools.
macro_rules! pool_source {
    ($file:literal) => {
        $crate::kernels::source_after!($file, "tiles.cuh", "pool.cuh")
    };
}

/// A source over batch norms.
macro_rules! bn_source {
    ($file:literal) => {
        $crate::kernels::source_after!($file, "tiles.cuh", "sweep.cuh", "bn.cuh")
    };
}

/// A source over batch norms that sums over pixels.
macro_rules! bn_sums_source {
    ($file:literal) => {
        $crate::kernels::source_after!($file, "tiles.cuh", "sweep.cuh", "sums.cuh", "bn.cuh")
    };
}

use {bn_source, bn_sums_source, channels_source, pool_source, source_after, sums_source};

/// Every source of this crate.
pub fn sources() -> Vec<Source> {
    let mut sources = vec![
        activation::SOURCE,
        add::SOURCE,
        average_pool::SOURCE,
        bias::SOURCE,
        bn_apply::SOURCE,
        bn_backward::SOURCE,
        bn_reduce::SOURCE,
        bn_stats::SOURCE,
        commit::SOURCE,
        copy::SOURCE,
        decode::SOURCE,
        fill::SOURCE,
        max_pool::SOURCE,
        max_pool_5::SOURCE,
        nms::SOURCE,
        normalize::SOURCE,
        render::SOURCE,
        resize::SOURCE,
        running_stats::SOURCE,
    ];
    sources.extend(own_conv::sources());
    sources.extend(crate::conv::SOURCES);
    sources.extend([loss::ASSIGN, loss::TERMS]);
    sources
}

/// Machine code of one source, loaded on a card.
#[derive(Debug)]
pub struct Module {
    gpu: Gpu,
    raw: sys::CUmodule,
}

// SAFETY: a module handle is only read once it is loaded, and the driver's calls are thread-safe.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Compiles a source, or takes it from the cache, and loads it.
    ///
    /// # Errors
    /// No NVRTC, a source that does not compile, or what the driver says.
    pub fn load(gpu: &Gpu, source: Source) -> Result<Arc<Self>> {
        let card = gpu.properties();
        let code = compile_cached(source, &architecture(card.major, card.minor))?;
        gpu.context().bind_to_thread()?;
        // SAFETY: a whole image, as NVRTC made it; the driver copies it.
        let raw = unsafe { result::module::load_data(code.as_ptr().cast()) }?;
        Ok(Arc::new(Self { gpu: gpu.clone(), raw }))
    }

    /// A kernel by its name, declared `extern "C"`.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: a loaded module.
        let raw = unsafe { result::module::get_function(self.raw, name) }?;
        Ok(Function { module: Arc::clone(self), raw })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Nothing can be done about a failure.
        let _ = self.gpu.context().bind_to_thread();
        // SAFETY: loaded by this module and unloaded once; functions keep their module alive.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Function {
    module: Arc<Module>,
    raw: sys::CUfunction,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

impl Function {
    /// Lets blocks have so many bytes of dynamic shared memory, beyond the 48 KiB that need no asking.
    ///
    /// # Errors
    /// More than the card has.
    pub fn allow_shared(&self, bytes: u32) -> Result<()> {
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: a loaded function.
        Ok(unsafe { result::function::set_function_attribute(self.raw, attribute, bytes as i32) }?)
    }

    /// Launches on the card's stream. An empty grid launches nothing.
    ///
    /// # Errors
    /// What the driver says of the launch; what goes wrong inside of it shows at the next synchronisation.
    ///
    /// # Safety
    /// `argument` has the layout of the kernel's parameter, and its addresses are device memory of the extents that
    /// the kernel touches.
    pub unsafe fn launch<P: std::marker::Copy>(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        argument: &P,
    ) -> Result<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let gpu = &self.module.gpu;
        let mut pointers = [(&raw const *argument).cast_mut().cast()];
        let (grid, block) = (grid.into(), block.into());
        // SAFETY: the caller's promise; the driver copies the argument before the call returns.
        Ok(unsafe { result::launch_kernel(self.raw, grid, block, shared, gpu.stream().cu_stream(), &mut pointers) }?)
    }
}

/// `View` of the prelude.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RawView {
    pub at: u64,
    pub n: u32,
    pub h: u32,
    pub w: u32,
    pub c: u32,
    pub pitch: u32,
    pub unused: u32,
}

impl From<view::View> for RawView {
    fn from(v: view::View) -> Self {
        // Extents are below 2^31, which plans are checked for.
        let [n, h, w, c, pitch] = [v.n, v.h, v.w, v.c, v.pitch].map(|extent| extent as u32);
        Self { at: v.at, n, h, w, c, pitch, unused: 0 }
    }
}
