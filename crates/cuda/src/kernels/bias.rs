//! The bias of a convolution, and its gradient.

use super::bn::family;
use super::compiler::Source;
use super::sums::{RawSums, Sums};
use super::tiling::{Cover, Tiling, Typed, expect, expect_views};
use super::{Module, RawView, sums_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = sums_source!("bias.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    y: RawView,
    bias: u64,
    tiling: Tiling,
    slope: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GradArgs {
    dy: RawView,
    sums: RawSums,
    gradient: u64,
}

/// `act(y + bias)` and the bias's gradient.
#[derive(Debug)]
pub struct Bias {
    /// By family.
    forward: [Typed; 2],
    gradient: Typed,
    sums: Sums,
}

impl Bias {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let gradient = Typed::load(&module, "bias_grad")?;
        Sums::allow(&gradient, 1)?;
        Ok(Self {
            forward: [Typed::load(&module, "bias_silu")?, Typed::load(&module, "bias_leaky")?],
            gradient,
            sums: Sums::new(gpu)?,
        })
    }

    /// `y = act(y + bias)` in place; `bias` is the address of a float32 vector over y's physical channels.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(&self, y: View, bias: u64, act: Activation) -> Result<()> {
        expect_views("bias", &[y])?;
        expect("bias", bias.is_multiple_of(16), || "a bias that is not aligned to 16 bytes".into())?;
        // Sixteen bytes a thread, which the tiling takes for eight channels.
        let cover = Cover::constants(y.pixels(), y.c * y.format.bytes() / 2);
        let (family, slope) = family(act);
        let args = Args { y: y.into(), bias, tiling: cover.tiling, slope, unused: 0 };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { self.forward[family].of(y.format).launch(cover.grid, cover.block, 0, &args) }
    }

    /// Bytes of scratch of [`Self::gradient`] for so many pixels and physical channels.
    pub fn scratch(pixels: usize, channels: usize) -> usize {
        Sums::scratch(pixels, channels, 1)
    }

    /// Adds the sums of dy over all pixels to the float32 vector at `gradient`.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents; `scratch` has [`Self::scratch`] bytes and is aligned to 16.
    pub unsafe fn gradient(&self, dy: View, gradient: u64, scratch: u64) -> Result<()> {
        expect_views("bias_grad", &[dy])?;
        let sums = self.sums.raw("bias_grad", dy.pixels(), dy.c, scratch)?;
        let args = GradArgs { dy: dy.into(), sums, gradient };
        // SAFETY: the caller's promise; the struct is the kernel's.
        unsafe { sums.launch(self.gradient.of(dy.format), dy.pixels(), 1, &args) }
    }
}
