//! Activations and their gradients as passes of their own.

use super::bn::family;
use super::compiler::Source;
use super::tiling::{Cover, Tiling, Typed, expect_equal};
use super::{Module, RawView, channels_source};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::View;
use graph::Activation;

pub(super) const SOURCE: Source = channels_source!("activation.cu");

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: RawView,
    dy: RawView,
    y: RawView,
    tiling: Tiling,
    slope: f32,
    accumulate: u32,
}

/// `act(x)` and its gradient.
#[derive(Debug)]
pub struct Activate {
    /// By family.
    forward: [Typed; 2],
    gradient: [Typed; 2],
}

impl Activate {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let load = |name: &str| Typed::load(&module, name);
        Ok(Self {
            forward: [load("activate_silu")?, load("activate_leaky")?],
            gradient: [load("activate_grad_silu")?, load("activate_grad_leaky")?],
        })
    }

    /// `y = act(x)`; y may be x.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn run(&self, x: View, act: Activation, y: View) -> Result<()> {
        expect_equal("activate", [x, y])?;
        // SAFETY: the caller's promise.
        unsafe { launch(&self.forward[family(act).0], x, x, act, y, false) }
    }

    /// `dx (+)= dy * act'(x)`; x is the activation's input.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All operands are device memory of their extents.
    pub unsafe fn gradient(&self, x: View, dy: View, act: Activation, dx: View, accumulate: bool) -> Result<()> {
        expect_equal("activate_grad", [x, dy, dx])?;
        // SAFETY: the caller's promise.
        unsafe { launch(&self.gradient[family(act).0], x, dy, act, dx, accumulate) }
    }
}

/// # Safety
/// All operands are device memory of their extents, which are equal.
unsafe fn launch(kernel: &Typed, x: View, dy: View, act: Activation, y: View, accumulate: bool) -> Result<()> {
    let cover = Cover::pointwise(y.pixels(), y.c);
    let args = Args {
        x: x.into(),
        dy: dy.into(),
        y: y.into(),
        tiling: cover.tiling,
        slope: family(act).1,
        accumulate: accumulate.into(),
    };
    // SAFETY: the caller's promise; the struct is the kernel's.
    unsafe { kernel.of(y.format).launch(cover.grid, cover.block, 0, &args) }
}
