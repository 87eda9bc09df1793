//! Copies, casts, packing of channel ranges, and sums into a buffer of another type.

use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::{Format, View};

pub(super) const SOURCE: Source = channels_source!("copy.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    y: RawView,
    tiling: Tiling,
    accumulate: u32,
    unused: u32,
}

/// `y (+)= x`.
#[derive(Debug)]
pub struct Copy {
    f32: Typed,
    bf16: Typed,
    f16: Typed,
}

impl Copy {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let from = |name: &str| Typed::load(&module, name);
        Ok(Self { f32: from("copy_f32")?, bf16: from("copy_bf16")?, f16: from("copy_f16")? })
    }

    /// A flat buffer as a tensor, for [`Self::run`]. `len` is a multiple of 8, as all flat buffers' are.
    pub fn flat(at: u64, format: Format, len: usize) -> View {
        View { at, format, n: 1, h: 1, w: len / 8, c: 8, pitch: 8 }
    }

    /// `y = x`, or `y += x`. Types and pitches may differ.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// x and y are device memory of their extents.
    pub unsafe fn run(&self, x: View, y: View, accumulate: bool) -> Result<()> {
        expect_views("copy", &[x])?;
        expect_views("copy", &[y])?;
        let shape = |v: View| [v.n, v.h, v.w, v.c];
        expect("copy", shape(x) == shape(y), || format!("shapes {:?} and {:?}", shape(x), shape(y)))?;
        let cover = Cover::pointwise(y.pixels(), y.c);
        let args = Args { x: x.into(), y: y.into(), tiling: cover.tiling, accumulate: accumulate.into(), unused: 0 };
        let from = match x.format {
            Format::F32 => &self.f32,
            Format::Bf16 => &self.bf16,
            Format::F16 => &self.f16,
        };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { from.of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }
}
