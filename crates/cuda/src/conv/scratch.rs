//! Scratch of a pass: where its parts lie, and the copies in and out of it.

use super::table::{Server, library, library_workspace, own};
use super::{Pass, Request};
use crate::Format;
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::compiler::Source;
use crate::kernels::{Function, Module};

pub(crate) const SOURCE: Source = Source { name: "conv_scratch.cu", text: include_str!("scratch.cu") };

/// Scratch of a pass that cuDNN serves, as byte offsets. Each part is aligned to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scratch {
    /// A packed copy of x or of its gradient, where the tensor is a channel range.
    pub x: Option<u64>,
    /// A packed copy of y or of its gradient, also where logits are written wider than they are computed.
    pub y: Option<u64>,
    /// The weights' gradient in the operands' format.
    pub w: Option<u64>,
    pub library: u64,
    /// Most bytes that the library may take.
    pub library_bytes: u64,
    pub total: u64,
}

/// Bytes of scratch of a request, aligned to 256: what a plan reserves. It depends on the request alone.
pub fn workspace(request: &Request) -> u64 {
    if request.check().is_err() {
        return 0;
    }
    let by_library = match library(request) {
        Server::CublasLt => library_workspace(request),
        Server::Own(_) => 0,
        Server::Cudnn => Scratch::of(request).total,
    };
    own(request).map_or(0, |kernel| kernel.workspace(request)).max(by_library).next_multiple_of(256)
}

impl Scratch {
    pub fn of(request: &Request) -> Self {
        let s = &request.shape;
        let mut total = 0u64;
        let mut part = |elements: usize| {
            let at = total;
            total += ((elements * request.format.bytes()) as u64).next_multiple_of(256);
            at
        };
        let (x, y) = (s.in_pixels() * s.inputs, s.out_pixels() * s.outputs);
        let casts = request.pass == Pass::Forward && request.output != request.format;
        let packed_x = (s.input_pitch != s.inputs).then(|| part(x));
        let packed_y = (s.output_pitch != s.outputs || casts).then(|| part(y));
        let w = (request.pass == Pass::Weight).then(|| part(s.weights()));
        // Float32 without tensor cores, and channels that no tensor core takes, may be laid out anew by the library.
        let exact = request.format == Format::F32 && !request.tf32;
        let copies =
            if exact || !s.groups_are_aligned() { ((x + y + s.weights()) * request.format.bytes()) as u64 } else { 0 };
        let library_bytes = (library_workspace(request) + copies).next_multiple_of(256);
        Self { x: packed_x, y: packed_y, w, library: total, library_bytes, total: total + library_bytes }
    }
}

/// `Copy` of scratch.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyArgs {
    from: u64,
    to: u64,
    rows: u64,
    columns: u32,
    from_pitch: u32,
    to_pitch: u32,
    add: u32,
}

/// `Fill` of scratch.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct FillArgs {
    at: u64,
    elements: u64,
    seed: u32,
    unused: u32,
}

/// Rows of channels somewhere on the card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub at: u64,
    pub format: Format,
    /// Elements from one row to the next.
    pub pitch: usize,
}

/// The kernels of scratch.cu.
pub(super) struct Kernels {
    /// By formats from and to; for rows that start at 16 bytes, and for others.
    copies: Vec<((Format, Format), [Function; 2])>,
    fills: [(Format, Function); 3],
}

impl Kernels {
    /// # Errors
    /// No NVRTC, or what the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        use Format::{Bf16, F16, F32};
        let module = Module::load(gpu, SOURCE)?;
        let mut copies = Vec::new();
        for (from, to) in [(F32, F32), (F16, F16), (Bf16, Bf16), (F16, F32), (Bf16, F32)] {
            let name = format!("copy_{}_{}", from.name(), to.name());
            copies.push(((from, to), [module.function(&name)?, module.function(&format!("{name}_unaligned"))?]));
        }
        let fill =
            |format: Format| Ok::<_, crate::CudaError>((format, module.function(&format!("fill_{}", format.name()))?));
        let fills = [fill(F32)?, fill(F16)?, fill(Bf16)?];
        Ok(Self { copies, fills })
    }

    /// Copies rows of `columns` elements; with `add`, adds them to what is there. Formats are alike, or the target is
    /// float32.
    ///
    /// # Errors
    /// What the driver says of the launch.
    ///
    /// # Safety
    /// Device memory of these extents.
    pub unsafe fn copy(&self, rows: usize, columns: usize, from: Rows, to: Rows, add: bool) -> Result<()> {
        let pair = (from.format, to.format);
        let Some((_, [aligned, unaligned])) = self.copies.iter().find(|c| c.0 == pair) else {
            let what = format!("a copy from {} to {}", pair.0.name(), pair.1.name());
            return Err(crate::CudaError::NoAlgorithm { library: "this program", what });
        };
        let eights = [columns, from.pitch, to.pitch].iter().all(|v| v.is_multiple_of(8));
        let sixteen = [from.at, to.at].iter().all(|at| at.is_multiple_of(16));
        let (function, unit) = if eights && sixteen { (aligned, 8) } else { (unaligned, 1) };
        let arguments = CopyArgs {
            from: from.at,
            to: to.at,
            rows: rows as u64,
            // Below 2^31, which requests are checked for.
            columns: columns as u32,
            from_pitch: from.pitch as u32,
            to_pitch: to.pitch as u32,
            add: u32::from(add),
        };
        // SAFETY: the caller's promise; the kernel takes `CopyArgs`.
        unsafe { function.launch(grid(rows * (columns / unit)), [256, 1, 1], 0, &arguments) }
    }

    /// Fills memory with uniform values in (-1, 1).
    ///
    /// # Errors
    /// What the driver says of the launch.
    ///
    /// # Safety
    /// Device memory of so many elements.
    pub unsafe fn fill(&self, at: u64, format: Format, elements: usize, seed: u32) -> Result<()> {
        let function = self.fills.iter().find(|f| f.0 == format).map_or(&self.fills[0].1, |f| &f.1);
        let arguments = FillArgs { at, elements: elements as u64, seed, unused: 0 };
        // SAFETY: the caller's promise; the kernel takes `FillArgs`.
        unsafe { function.launch(grid(elements), [256, 1, 1], 0, &arguments) }
    }
}

/// One thread an item, in blocks of 256. Kernels loop over what lies beyond the largest grid.
pub(super) fn grid(items: usize) -> [u32; 3] {
    const MOST: usize = 1 << 22;
    [items.div_ceil(256).min(MOST) as u32, 1, 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conv::Shape;

    #[test]
    fn scratch_holds_packed_copies_only_where_tensors_are_ranges() {
        let packed = Shape::packed(2, 8, 64, 128, 3, 2);
        let request = Request::new(packed, Pass::Forward, Format::Bf16);
        let scratch = Scratch::of(&request);
        assert_eq!((scratch.x, scratch.y, scratch.w, scratch.total), (None, None, None, 32 << 20));
        let ranges = Shape { input_pitch: 256, output_pitch: 256, ..packed };
        let scratch = Scratch::of(&Request::new(ranges, Pass::Weight, Format::Bf16));
        let (x, y, w) = (2 * 64 * 64 * 2, 2 * 16 * 128 * 2, 128 * 9 * 64 * 2);
        assert_eq!((scratch.x, scratch.y, scratch.w), (Some(0), Some(x), Some(x + y)));
        assert_eq!(scratch.library, x + y + w);
        assert_eq!(workspace(&Request::new(ranges, Pass::Weight, Format::Bf16)), scratch.total);
        let logits = Request { output: Format::F32, ..request };
        assert_eq!(Scratch::of(&logits).y, Some(0), "computed in half precision, then cast");
    }

    #[test]
    fn exact_float32_has_room_for_layouts_of_the_library() {
        let shape = Shape::packed(2, 8, 64, 64, 3, 1);
        let exact = Request::new(shape, Pass::Forward, Format::F32);
        let rounded = Request { tf32: true, ..exact };
        assert!(workspace(&exact) > workspace(&rounded));
    }
}
