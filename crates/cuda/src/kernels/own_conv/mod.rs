//! Convolutions of our own where cuDNN is far from its bound: the stem, few channels (also the data gradient of stride
//! 2) and groups of 16, in NHWC with half operands and f32 sums, on tensor cores from compute capability 8.0 on.

mod table;

use super::compiler::Source;
use super::{Function, Module};
use crate::conv::{Pass, Request, Shape};
use crate::device::Gpu;
use crate::error::{CudaError, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use table::{File, Variant};

/// Tiles of an image across, of an image, and of all images.
fn tiles(shape: &Shape, variant: &Variant) -> [usize; 3] {
    let [rows, columns] = variant.tile;
    if shape.kernel == 1 {
        let all = shape.in_pixels().div_ceil(rows * columns);
        return [1, all, all];
    }
    let across = shape.out_width().div_ceil(columns);
    let per_image = across * shape.out_height().div_ceil(rows);
    [across, per_image, per_image * shape.images]
}

/// Blocks along the first axis of the grid: those that walk over tiles.
fn blocks(shape: &Shape, variant: &Variant) -> usize {
    tiles(shape, variant)[2].min(variant.blocks)
}

/// True where a kernel here computes a request, on cards from compute capability 8.0 on. What is added to is rounded
/// once.
pub fn serves(request: &Request) -> bool {
    table::find(request).is_some()
}

/// Bytes of workspace, which depend on the shape alone; 0 for what is not served.
pub fn workspace(request: &Request) -> u64 {
    match table::find(request) {
        Some(variant) if request.pass == Pass::Weight => {
            (blocks(&request.shape, &variant) * request.shape.weights() * size_of::<f32>()) as u64
        }
        _ => 0,
    }
}

/// Every source of these kernels.
pub fn sources() -> Vec<Source> {
    table::sources()
}

/// The kernels on one card, compiled when they are first wanted.
#[derive(Debug)]
pub struct OwnConv {
    gpu: Gpu,
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
}

/// A request whose kernels are loaded.
#[derive(Clone, Debug)]
pub struct OwnPass {
    request: Request,
    variant: Variant,
    kernel: Function,
    /// Adds up what blocks left in the workspace.
    sum: Option<Function>,
}

/// A tiled convolution's argument: of conv3x3.cu and, with dy and partial sums in place of weights and y, of weight.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tiled {
    places: [u64; 3],
    pitches: [u32; 2],
    h: i32,
    w: i32,
    tiles: [u32; 3],
    /// `add`, or pixels in all.
    last: u32,
}

/// Of pointwise.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pointwise {
    places: [u64; 3],
    pitches: [u32; 2],
    pixels: u32,
    add: u32,
}

/// Of stem.cu and stem_weight.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Stem {
    x: StemInput,
    places: [u64; 2],
    pitch: u32,
    h: i32,
    w: i32,
    tiles: [u32; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct StemInput {
    at: u64,
    pitch: u32,
    h: i32,
    w: i32,
}

/// Of sum.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sum {
    partials: u64,
    gradient: u64,
    count: u32,
    weights: u32,
    add: u32,
}

impl OwnConv {
    /// Nothing is compiled yet.
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), modules: Mutex::default() }
    }

    /// Compiles and loads what a request needs, where that was not done before.
    ///
    /// # Errors
    /// A request that is not served, on this card or at all; as [`Module::load`].
    pub fn prepare(&self, request: &Request) -> Result<OwnPass> {
        let card = self.gpu.properties();
        let fits = |v: &Variant| card.major >= 8 && v.shared <= card.shared_per_block as usize;
        let variant = table::find(request).filter(fits);
        let unserved = || CudaError::NoAlgorithm { library: "this program", what: request.to_string() };
        let variant = variant.ok_or_else(unserved)?;
        let kernel = self.module(variant.file.source(request.format))?.function(variant.kernel)?;
        if variant.shared > 48 << 10 {
            kernel.allow_shared(variant.shared as u32)?;
        }
        let sum = match request.pass {
            Pass::Weight => Some(self.module(table::SUM)?.function("sum_partials")?),
            _ => None,
        };
        Ok(OwnPass { request: *request, variant, kernel, sum })
    }

    fn module(&self, source: Source) -> Result<Arc<Module>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(source.name) {
            return Ok(Arc::clone(module));
        }
        let module = Module::load(&self.gpu, source)?;
        modules.insert(source.name, Arc::clone(&module));
        Ok(module)
    }
}

impl OwnPass {
    /// Computes the pass on the card's stream: y from x and w, x (its gradient) from w and y, or w (its gradient, f32)
    /// from x and y. Two runs give the same bits.
    ///
    /// # Errors
    /// What the driver says of a launch.
    ///
    /// # Safety
    /// The places of x, w and y are device memory of the request's extents, and the workspace of the bytes that
    /// [`workspace`] names. All start at multiples of 16 bytes.
    pub unsafe fn run(&self, [x, w, y]: [u64; 3], workspace: u64) -> Result<()> {
        let (r, s, variant) = (&self.request, &self.request.shape, &self.variant);
        // Extents are below 2^31, which the table checks.
        let [h, width, out_h, out_w] = [s.height, s.width, s.out_height(), s.out_width()].map(|v| v as i32);
        let tiles = tiles(s, variant).map(|count| count as u32);
        let pixels = s.in_pixels() as u32;
        let [x_pitch, y_pitch] = [s.input_pitch as u32, s.output_pitch as u32];
        let (blocks, add) = (blocks(s, variant) as u32, u32::from(r.add));
        // What is read, what is written, and their pitches. A tiled convolution knows one side's extents from the other's.
        let (places, pitches) = match r.pass {
            Pass::Forward => ([x, w, y], [x_pitch, y_pitch]),
            Pass::Data => ([y, w, x], [y_pitch, x_pitch]),
            Pass::Weight => ([x, y, workspace], [x_pitch, y_pitch]),
        };
        let grid = [blocks, variant.group_blocks as u32, 1];
        let (block, shared) = ([variant.threads as u32, 1, 1], variant.shared as u32);
        // SAFETY: arguments as the kernels declare them; the caller's promise about the places.
        unsafe {
            match variant.file {
                File::Conv3x3 | File::DownData | File::Weight => {
                    let last = if r.pass == Pass::Weight { pixels } else { add };
                    let argument = Tiled { places, pitches, h, w: width, tiles, last };
                    self.kernel.launch(grid, block, shared, &argument)?;
                }
                File::Pointwise => {
                    self.kernel.launch(grid, block, shared, &Pointwise { places, pitches, pixels, add })?;
                }
                File::Stem | File::StemWeight => {
                    let [at, first, second] = places;
                    let x = StemInput { at, pitch: x_pitch, h, w: width };
                    let argument = Stem { x, places: [first, second], pitch: y_pitch, h: out_h, w: out_w, tiles };
                    self.kernel.launch(grid, block, shared, &argument)?;
                }
            }
            if let Some(sum) = &self.sum {
                let weights = s.weights() as u32;
                let argument = Sum { partials: workspace, gradient: w, count: blocks, weights, add };
                sum.launch([weights.div_ceil(32), 1, 1], [256, 1, 1], 0, &argument)?;
            }
        }
        Ok(())
    }
}
