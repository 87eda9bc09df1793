//! Which kernel computes what, and the geometry that its source was written for.

use crate::conv::{Pass, Request};
use crate::kernels::compiler::Source;
use crate::view::Format;

/// A source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    Conv3x3,
    DownData,
    Weight,
    Pointwise,
    Stem,
    StemWeight,
}

/// The same text for both operand formats, behind what it builds on.
macro_rules! both {
    ($name:literal, $($part:literal),*) => {[
        both!(@ $name, "bf16", $($part),*),
        both!(@ $name, "fp16", $($part),*),
    ]};
    (@ $name:literal, $operand:literal, $($part:literal),*) => {
        Source {
            name: concat!($name, "_", $operand, ".cu"),
            text: concat!("#define OPERAND ", $operand, "\n", $("#line 1 \"", $part, "\"\n", include_str!($part)),*),
        }
    };
}

const CONV3X3: [Source; 2] = both!("conv3x3", "instructions.cuh", "tiles.cuh", "conv3x3.cu");
const DOWN_DATA: [Source; 2] = both!("conv_down_data", "instructions.cuh", "tiles.cuh", "down_data.cu");
const WEIGHT: [Source; 2] = both!("conv_weight", "instructions.cuh", "tiles.cuh", "weight.cu");
const POINTWISE: [Source; 2] = both!("pointwise", "instructions.cuh", "tiles.cuh", "pointwise.cu");
const STEM: [Source; 2] = both!("stem", "instructions.cuh", "tiles.cuh", "stem.cuh", "stem.cu");
const STEM_WEIGHT: [Source; 2] = both!("stem_weight", "instructions.cuh", "tiles.cuh", "stem.cuh", "stem_weight.cu");
/// Adds up partial sums, of any format.
pub(super) const SUM: Source = Source { name: "sum.cu", text: include_str!("sum.cu") };

impl File {
    pub(super) fn source(self, operands: Format) -> Source {
        let format = usize::from(operands == Format::F16);
        match self {
            Self::Conv3x3 => CONV3X3[format],
            Self::DownData => DOWN_DATA[format],
            Self::Weight => WEIGHT[format],
            Self::Pointwise => POINTWISE[format],
            Self::Stem => STEM[format],
            Self::StemWeight => STEM_WEIGHT[format],
        }
    }
}

pub(super) fn sources() -> Vec<Source> {
    [&CONV3X3[..], &DOWN_DATA, &WEIGHT, &POINTWISE, &STEM, &STEM_WEIGHT, &[SUM]].concat()
}

/// A kernel and its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub file: File,
    pub kernel: &'static str,
    pub threads: usize,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Output rows and columns of a tile; pixels in all matter for 1x1.
    pub tile: [usize; 2],
    /// Most blocks that walk over tiles: what the largest card holds at once.
    pub blocks: usize,
    /// Blocks that share the groups.
    pub group_blocks: usize,
}

/// Multiprocessors that grids are made for. Sums are split by it, so it is the same on every card.
const MULTIPROCESSORS: usize = 132;

/// Channels of a group, and groups of a block, where there are groups.
const GROUP: usize = 16;
const GROUPS: usize = 4;

/// The variant that computes a request.
pub(super) fn find(r: &Request) -> Option<Variant> {
    let s = &r.shape;
    let pixels = s.images.checked_mul(s.height)?.checked_mul(s.width)?;
    let small = pixels > 0 && pixels < 1 << 31 && s.input_pitch < 1 << 20 && s.output_pitch < 1 << 20;
    let pitches = (r.bytes || (s.input_pitch.is_multiple_of(8) && s.input_pitch >= s.inputs))
        && s.output_pitch.is_multiple_of(8)
        && s.output_pitch >= s.outputs;
    let logits = r.output == Format::F32 && s.kernel == 1;
    let written = r.pass != Pass::Forward || (!r.add && (r.output == r.format || logits));
    if !small || !pitches || !written || r.format == Format::F32 || s.pad != s.kernel / 2 {
        return None;
    }
    match (s.kernel, s.stride, s.groups) {
        (3, 2, 1) if r.pass == Pass::Data => down_data(r),
        (3, 2, 1) => stem(r),
        _ if r.bytes || s.stride != 1 || s.inputs != s.outputs => None,
        (3, _, 1) => few_channels(r),
        (1 | 3, _, 4..65_536) if s.groups.is_multiple_of(GROUPS) && s.inputs == GROUP * s.groups => grouped(r),
        _ => None,
    }
}

fn stem(r: &Request) -> Option<Variant> {
    let words = r.shape.input_pitch == 3 && r.shape.width.is_multiple_of(4);
    if r.shape.inputs != 8 || (r.bytes && !words) {
        return None;
    }
    let kernel = match (r.shape.outputs, r.pass, r.bytes) {
        (_, Pass::Data, _) => return None,
        (16, Pass::Forward, false) => "stem16_forward",
        (32, Pass::Forward, false) => "stem32_forward",
        (64, Pass::Forward, false) => "stem64_forward",
        (16, Pass::Forward, true) => "stem16_forward_bytes",
        (32, Pass::Forward, true) => "stem32_forward_bytes",
        (64, Pass::Forward, true) => "stem64_forward_bytes",
        (16, Pass::Weight, false) => "stem16_weight",
        (32, Pass::Weight, false) => "stem32_weight",
        (64, Pass::Weight, false) => "stem64_weight",
        (16, Pass::Weight, true) => "stem16_weight_bytes",
        (32, Pass::Weight, true) => "stem32_weight_bytes",
        (64, Pass::Weight, true) => "stem64_weight_bytes",
        _ => return None,
    };
    // As `StemTile` of stem.cuh lays them out.
    let input = |[rows, columns]: [usize; 2]| (2 * rows + 1) * 2 * (columns + 4) * 16;
    Some(if r.pass == Pass::Forward {
        let tile = [16, 32];
        let (shared, blocks) = (2 * input(tile), 2 * MULTIPROCESSORS);
        Variant { file: File::Stem, kernel, threads: 256, shared, tile, blocks, group_blocks: 1 }
    } else {
        let tile = [if r.shape.outputs == 64 { 8 } else { 16 }, 16];
        let shared = (2 * (input(tile) + tile[0] * tile[1] * r.shape.outputs * 2)).max(r.shape.weights() * 4);
        let blocks = 3 * MULTIPROCESSORS;
        Variant { file: File::StemWeight, kernel, threads: 128, shared, tile, blocks, group_blocks: 1 }
    })
}

/// The data gradient of stride 2; tiles are of the output's gradient.
fn down_data(r: &Request) -> Option<Variant> {
    let (kernel, resident) = match (r.shape.inputs, r.shape.outputs, r.bytes) {
        (16, 32, false) => ("down16_data", 4),
        (32, 64, false) => ("down32_data", 2),
        _ => return None,
    };
    let tile = [8, 16];
    let shared =
        2 * (tile[0] + 1) * (tile[1] + 1) * r.shape.outputs * 2 + r.shape.outputs * ((9 * r.shape.inputs / 8) | 1) * 16;
    let blocks = resident * MULTIPROCESSORS;
    Some(Variant { file: File::DownData, kernel, threads: 128, shared, tile, blocks, group_blocks: 1 })
}

/// Rows and columns of a tile, threads, and blocks that a multiprocessor holds at once.
type Geometry = ([usize; 2], usize, usize);

fn few_channels(r: &Request) -> Option<Variant> {
    let (kernels, forward, weight): ([&'static str; 3], Geometry, Geometry) = match r.shape.inputs {
        16 => (["conv16_forward", "conv16_data", "conv16_weight"], ([16, 16], 128, 6), ([8, 40], 128, 4)),
        24 => (["conv24_forward", "conv24_data", "conv24_weight"], ([4, 40], 160, 4), ([8, 40], 384, 1)),
        32 => (["conv32_forward", "conv32_data", "conv32_weight"], ([16, 16], 128, 3), ([8, 40], 384, 1)),
        48 => (["conv48_forward", "conv48_data", "conv48_weight"], ([4, 40], 320, 2), ([4, 40], 384, 1)),
        _ => return None,
    };
    Some(tiled(r, kernels, forward, weight, 1))
}

fn grouped(r: &Request) -> Option<Variant> {
    let group_blocks = r.shape.groups / GROUPS;
    if r.shape.kernel == 3 {
        let kernels = ["groups16_forward", "groups16_data", "groups16_weight"];
        return Some(tiled(r, kernels, ([8, 16], 256, 3), ([8, 16], 256, 2), group_blocks));
    }
    let kernel = match (r.pass, r.output) {
        (Pass::Weight, _) => {
            let kernels = ["", "", "points16_weight"];
            return Some(tiled(r, kernels, ([8, 16], 256, 3), ([8, 16], 256, 3), group_blocks));
        }
        (Pass::Data, _) => "points16_data",
        (Pass::Forward, Format::F32) => "points16_forward_f32",
        (Pass::Forward, _) => "points16_forward",
    };
    // Eight warps of 16 pixels each.
    let (tile, blocks) = ([8, 16], 3 * MULTIPROCESSORS);
    Some(Variant { file: File::Pointwise, kernel, threads: 256, shared: 0, tile, blocks, group_blocks })
}

/// A variant of conv3x3.cu or weight.cu: two tiles of pixels, and weights or their sums.
fn tiled(
    r: &Request,
    [forward, data, weight]: [&'static str; 3],
    made: Geometry,
    summed: Geometry,
    group_blocks: usize,
) -> Variant {
    let (file, kernel, (tile, threads, resident)) = match r.pass {
        Pass::Forward => (File::Conv3x3, forward, made),
        Pass::Data => (File::Conv3x3, data, made),
        Pass::Weight => (File::Weight, weight, summed),
    };
    let per_group = r.shape.inputs / r.shape.groups;
    // Groups and channels of one block.
    let groups = r.shape.groups / group_blocks;
    let (channels, taps) = (groups * per_group, r.shape.kernel * r.shape.kernel);
    let halo = r.shape.kernel - 1;
    let pixels = (tile[0] + halo) * (tile[1] + halo);
    let shared = match r.pass {
        Pass::Weight => {
            let tiles = 2 * (pixels + tile[0] * tile[1]) * channels * 2;
            tiles.max(channels * taps * per_group * 4)
        }
        _ => 2 * pixels * channels * 2 + channels * ((taps * per_group / 8) | 1) * 16,
    };
    Variant { file, kernel, threads, shared, tile, blocks: resident * MULTIPROCESSORS, group_blocks }
}
