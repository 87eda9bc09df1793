//! Convolutions of our own where cuDNN is far from its bound: the stem, few channels and groups of 16, in NHWC with half
//! operands and f32 sums, on tensor cores from compute capability 8.0 on.

mod table;

use super::compiler::Source;
use super::{Function, Module};
use crate::cudnn::Pass;
use crate::device::Gpu;
use crate::error::{CudaError, Result};
use crate::view::Format;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use table::{File, Variant};

/// A pass of a convolution that somebody wants computed.
///
/// Extents are those of the forward pass: `inputs` and pitches of x belong to the convolution's input in every pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub images: usize,
    pub height: usize,
    pub width: usize,
    /// Physical channels, of all groups.
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
    pub pad: usize,
    pub groups: usize,
    /// Elements from one input pixel to the next.
    pub input_pitch: usize,
    pub output_pitch: usize,
    pub pass: Pass,
    /// Format of what is read: of x, w and y.
    pub operands: Format,
    /// Format of what is written; f32 for weight gradients.
    pub output: Format,
    /// The result is added to what is there. Always so for weight gradients.
    pub add: bool,
    /// x is an image of bytes (n, h, w, 3), each counted as value / 255, rounded as the operands are; `inputs` is 8, the
    /// channels of the weights, and `input_pitch` 3. For stems.
    pub bytes: bool,
}

impl Request {
    fn out_height(&self) -> usize {
        ((self.height + 2 * self.pad).saturating_sub(self.kernel)) / self.stride.max(1) + 1
    }

    fn out_width(&self) -> usize {
        ((self.width + 2 * self.pad).saturating_sub(self.kernel)) / self.stride.max(1) + 1
    }

    /// Elements of the weights.
    fn weights(&self) -> usize {
        self.outputs * self.kernel * self.kernel * self.inputs / self.groups
    }

    /// Tiles of an image across, of an image, and of all images.
    fn tiles(&self, variant: &Variant) -> [usize; 3] {
        let [rows, columns] = variant.tile;
        if self.kernel == 1 {
            let all = (self.images * self.height * self.width).div_ceil(rows * columns);
            return [1, all, all];
        }
        let across = self.out_width().div_ceil(columns);
        let per_image = across * self.out_height().div_ceil(rows);
        [across, per_image, per_image * self.images]
    }

    /// Blocks along the first axis of the grid: those that walk over tiles.
    fn blocks(&self, variant: &Variant) -> usize {
        self.tiles(variant)[2].min(variant.blocks)
    }
}

/// The kernels on one card, compiled when they are first wanted.
#[derive(Debug)]
pub struct OwnConv {
    gpu: Gpu,
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    functions: Mutex<HashMap<(&'static str, &'static str), Function>>,
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
}

impl OwnConv {
    /// Nothing is compiled yet.
    pub fn new(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), modules: Mutex::default(), functions: Mutex::default() }
    }

    /// True where a kernel here computes it on this card.
    pub fn serves(&self, request: &Request) -> bool {
        let card = self.gpu.properties();
        card.major >= 8 && table::find(request).is_some_and(|v| v.shared <= card.shared_per_block as usize)
    }

    /// Bytes of workspace, which depend on the shape alone; 0 for what is not served.
    pub fn workspace(&self, request: &Request) -> u64 {
        match table::find(request) {
            Some(variant) if request.pass == Pass::Weight => {
                (request.blocks(&variant) * request.weights() * size_of::<f32>()) as u64
            }
            _ => 0,
        }
    }

    /// Compiles and loads what a request needs. [`Self::run`] does the same the first time, which must not be while the
    /// stream is captured.
    ///
    /// # Errors
    /// As [`Module::load`]; a request that is not served.
    pub fn prepare(&self, request: &Request) -> Result<()> {
        let variant = self.variant(request)?;
        self.function(variant.file, variant.kernel, request.operands, variant.shared)?;
        if request.pass == Pass::Weight {
            self.function(File::Sum, "sum_partials", request.operands, 0)?;
        }
        Ok(())
    }

    /// Computes a pass on the card's stream: y from x and w, x (its gradient) from w and y, or adds to w (its gradient,
    /// f32) from x and y.
    ///
    /// # Errors
    /// A request that is not served, as [`Module::load`], or what the driver says of a launch.
    ///
    /// # Safety
    /// The places of x, w and y are device memory of the request's extents, and the workspace of the bytes that
    /// [`Self::workspace`] names. All start at multiples of 16 bytes.
    pub unsafe fn run(&self, request: &Request, [x, w, y]: [u64; 3], workspace: u64) -> Result<()> {
        let variant = self.variant(request)?;
        let function = self.function(variant.file, variant.kernel, request.operands, variant.shared)?;
        let r = request;
        // Extents are below 2^31, which the table checks.
        let (h, w_in, out_h, out_w) = (r.height as i32, r.width as i32, r.out_height() as i32, r.out_width() as i32);
        let tiles = r.tiles(&variant).map(|count| count as u32);
        let pixels = (r.images * r.height * r.width) as u32;
        let [x_pitch, y_pitch] = [r.input_pitch as u32, r.output_pitch as u32];
        let blocks = r.blocks(&variant);
        let grid = [blocks as u32, variant.group_blocks as u32, 1];
        let block = [variant.threads as u32, 1, 1];
        let shared = variant.shared as u32;
        let input = StemInput { at: x, pitch: x_pitch, h, w: w_in };
        // SAFETY: arguments as the kernels declare them; the caller's promise about the places.
        unsafe {
            match (variant.file, r.pass) {
                (File::Conv3x3, Pass::Data) => {
                    let (places, pitches) = ([y, w, x], [y_pitch, x_pitch]);
                    let last = u32::from(r.add);
                    function.launch(grid, block, shared, &Tiled { places, pitches, h, w: w_in, tiles, last })
                }
                (File::Conv3x3, _) => {
                    let (places, pitches) = ([x, w, y], [x_pitch, y_pitch]);
                    let last = u32::from(r.add);
                    function.launch(grid, block, shared, &Tiled { places, pitches, h, w: w_in, tiles, last })
                }
                (File::Weight, _) => {
                    let (places, pitches) = ([x, y, workspace], [x_pitch, y_pitch]);
                    function.launch(grid, block, shared, &Tiled { places, pitches, h, w: w_in, tiles, last: pixels })
                }
                (File::Pointwise, Pass::Data) => {
                    let (places, pitches, add) = ([y, w, x], [y_pitch, x_pitch], u32::from(r.add));
                    function.launch(grid, block, shared, &Pointwise { places, pitches, pixels, add })
                }
                (File::Pointwise, _) => {
                    let (places, pitches) = ([x, w, y], [x_pitch, y_pitch]);
                    function.launch(grid, block, shared, &Pointwise { places, pitches, pixels, add: 0 })
                }
                (File::Stem | File::StemWeight, pass) => {
                    let places = if pass == Pass::Weight { [y, workspace] } else { [w, y] };
                    let argument = Stem { x: input, places, pitch: y_pitch, h: out_h, w: out_w, tiles };
                    function.launch(grid, block, shared, &argument)
                }
                (File::Sum, _) => Ok(()),
            }?;
            if r.pass == Pass::Weight {
                let weights = r.weights() as u32;
                let argument = Sum { partials: workspace, gradient: w, count: blocks as u32, weights };
                let sum = self.function(File::Sum, "sum_partials", r.operands, 0)?;
                sum.launch([weights.div_ceil(32), 1, 1], [256, 1, 1], 0, &argument)?;
            }
        }
        Ok(())
    }

    fn variant(&self, request: &Request) -> Result<Variant> {
        let found = if self.serves(request) { table::find(request) } else { None };
        let what = || format!("{request:?}");
        found.ok_or_else(|| CudaError::NoAlgorithm { library: "this program", what: what() })
    }

    fn function(&self, file: File, kernel: &'static str, operands: Format, shared: usize) -> Result<Function> {
        let source = file.source(operands);
        let key = (source.name, kernel);
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let function = self.module(source)?.function(kernel)?;
        if shared > 48 << 10 {
            function.allow_shared(shared as u32)?;
        }
        functions.insert(key, function.clone());
        Ok(function)
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

/// Every source of these kernels.
pub fn sources() -> Vec<Source> {
    table::sources()
}
