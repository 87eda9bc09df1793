//! The convolution by its definition: what is left when no library serves a request.

use super::own::{OwnConv, OwnPass};
use super::scratch::grid;
use super::{Pass, Places, Request};
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::compiler::Source;
use crate::kernels::{Function, Module};

pub(crate) const SOURCE: Source = Source { name: "conv_direct.cu", text: include_str!("direct.cu") };

/// Serves any request, slowly and without scratch.
#[derive(Debug)]
pub(super) struct Direct;

/// `Direct` of direct.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    x: u64,
    w: u64,
    y: u64,
    images: u32,
    height: u32,
    width: u32,
    inputs: u32,
    outputs: u32,
    out_height: u32,
    out_width: u32,
    kernel: u32,
    stride: u32,
    pad: u32,
    groups: u32,
    input_pitch: u32,
    output_pitch: u32,
    add: u32,
}

struct Prepared {
    function: Function,
    grid: [u32; 3],
    arguments: Args,
}

impl OwnConv for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn serves(&self, _: &Request) -> bool {
        true
    }

    fn workspace(&self, _: &Request) -> u64 {
        0
    }

    fn prepare(&self, gpu: &Gpu, request: &Request) -> Result<Box<dyn OwnPass>> {
        request.check()?;
        let s = &request.shape;
        let read = if request.bytes { "_bytes" } else { "" };
        let (format, output) = (request.format.name(), request.result().name());
        let (name, threads) = match request.pass {
            Pass::Forward => (format!("forward_{format}_{output}{read}"), s.out_pixels() * s.outputs),
            Pass::Data => (format!("data_{format}"), s.in_pixels() * s.inputs),
            Pass::Weight => {
                let blocks = s.outputs * s.kernel * s.kernel * (s.inputs / s.groups).div_ceil(32);
                (format!("weight_{format}{read}"), blocks * 256)
            }
        };
        // Below 2^31, which requests are checked for.
        let number = |v: usize| v as u32;
        let arguments = Args {
            x: 0,
            w: 0,
            y: 0,
            images: number(s.images),
            height: number(s.height),
            width: number(s.width),
            inputs: number(s.inputs),
            outputs: number(s.outputs),
            out_height: number(s.out_height()),
            out_width: number(s.out_width()),
            kernel: number(s.kernel),
            stride: number(s.stride),
            pad: number(s.pad),
            groups: number(s.groups),
            input_pitch: number(s.input_pitch),
            output_pitch: number(s.output_pitch),
            add: u32::from(request.add),
        };
        let function = Module::load(gpu, SOURCE)?.function(&name)?;
        Ok(Box::new(Prepared { function, grid: grid(threads), arguments }))
    }
}

impl OwnPass for Prepared {
    unsafe fn run(&self, places: &Places) -> Result<()> {
        let arguments = Args { x: places.x, w: places.w, y: places.y, ..self.arguments };
        // SAFETY: the caller's promise; the kernel takes `Args`.
        unsafe { self.function.launch(self.grid, [256, 1, 1], 0, &arguments) }
    }
}
