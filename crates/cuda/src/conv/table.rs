//! Who serves which convolution, and why. Times are ms on one H200 at batch 64 in bf16, forward / data gradient / weight
//! gradient, `C@S` for C channels on S x S pixels; bounds at 600 TFLOP/s and 3.6 TB/s.

use super::own::{OwnConv, Tiles};
use super::{Pass, Request};

/// What computes a pass.
#[derive(Clone, Copy, Debug)]
pub enum Server {
    CublasLt,
    Cudnn,
    Own(&'static dyn OwnConv),
}

impl Server {
    pub fn name(self) -> &'static str {
        match self {
            Self::CublasLt => "cuBLASLt",
            Self::Cudnn => "cuDNN",
            Self::Own(kernel) => kernel.name(),
        }
    }
}

/// Our own kernels, asked in this order before the libraries. They are for where cuDNN is far off the bound:
///
/// - the stem, 3 -> 32 with stride 2 @640: 0.956 forward (bound 0.24); there is no data gradient;
/// - 3x3 in 4 groups, 64@80: 0.357 / 0.074 / 0.079 (bound 0.029), and 1x1 in 4 groups: 0.25 / 0.25 / 0.22 (bound 0.029);
/// - 3x3 over few channels: 16@80 0.048 / 0.056 / 0.29 (bound 0.007), 24@40 0.021 / 0.021 / 0.042, 32@80
///   0.045 / 0.047 / 0.093 (bound 0.015), 32@160 0.147 / 0.147 / 0.27, 48@40 0.066 / 0.030 / 0.043.
const OWN: &[&dyn OwnConv] = &[&Tiles];

/// Who serves a request: by its extents and formats alone. Where our own kernel does, tuning asks the library too, and
/// the library serves cards that the kernel does not run on.
pub fn serve(request: &Request) -> Server {
    own(request).map_or_else(|| library(request), Server::Own)
}

/// Our own kernel for a request, if any.
pub(super) fn own(request: &Request) -> Option<&'static dyn OwnConv> {
    OWN.iter().copied().find(|kernel| kernel.serves(request))
}

/// The library for a request.
pub(super) fn library(request: &Request) -> Server {
    // Pointwise products: at the bound from 32 channels up, with any pitch, with float32 results from half operands,
    // and with the weight gradient added to float32 at no cost. cuDNN reaches none of the three. Groups are a batch of
    // products whose rows interleave, for which channels of a group must start at 16 bytes.
    if request.shape.is_pointwise() && (request.shape.groups == 1 || request.shape.groups_are_aligned()) {
        return Server::CublasLt;
    }
    // Everything else: at its roof from 128 channels up, and general. Its older interface takes packed tensors only; its
    // graph interface takes some channel ranges, 1.5 times slower. Weight gradients in float32 fall to fallback engines
    // of 8 ms: they are made in half precision and added in float32 afterwards.
    Server::Cudnn
}

/// Most bytes of workspace that a library may take, beside packed copies.
pub(super) fn library_workspace(request: &Request) -> u64 {
    const MIB: u64 = 1 << 20;
    match library(request) {
        // Splits of weight gradients are summed in the workspace.
        Server::Cudnn if request.pass == Pass::Weight => 64 * MIB,
        // What cuBLASLt wants on Hopper to split products.
        _ => 32 * MIB,
    }
}

/// Channels worth padding to, a multiple of 8 that is at least `channels`.
///
/// Raw 60, 90 and 180 channels are 3 to 5 times slower than multiples of 8 (3x3 60@80: 0.227 / 0.257 / 0.328 against
/// 0.068 / 0.083 / 0.069 for 64; 180@40: 0.258 / 0.398 / 0.304). Beyond 128, cuDNN's tiles want multiples of 64: 184@40
/// is 0.149 / 0.288 / 0.184, and 192@40 0.103 / 0.103 / 0.139. That pays while it adds at most an eighth.
pub fn padded(channels: usize) -> usize {
    let eight = channels.next_multiple_of(8);
    let tile = channels.next_multiple_of(64);
    if channels > 128 && tile <= channels + channels / 8 { tile } else { eight }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;
    use crate::conv::Shape;

    fn name(shape: Shape, pass: Pass) -> &'static str {
        serve(&Request::new(shape, pass, Format::Bf16)).name()
    }

    #[test]
    fn few_channels_go_to_our_own_kernels() {
        for pass in Pass::ALL {
            assert_eq!(name(Shape::packed(64, 80, 32, 32, 3, 1), pass), "tiles");
            assert_eq!(name(Shape { input_pitch: 64, ..Shape::packed(64, 80, 16, 16, 3, 1) }, pass), "tiles");
            let grouped = Shape { groups: 4, ..Shape::packed(64, 80, 64, 64, 3, 1) };
            assert_eq!(name(grouped, pass), "tiles");
        }
        assert_eq!(name(Shape::packed(64, 640, 8, 32, 3, 2), Pass::Forward), "tiles");
        let single = Request::new(Shape::packed(64, 80, 32, 32, 3, 1), Pass::Forward, Format::F32);
        assert_eq!(serve(&single).name(), "cuDNN", "tensor cores have no full float32");
    }

    #[test]
    fn pointwise_products_go_to_cublaslt_and_the_rest_to_cudnn() {
        for pass in Pass::ALL {
            let one = Shape::packed(64, 80, 64, 128, 1, 1);
            assert_eq!(name(one, pass), "cuBLASLt");
            assert_eq!(name(Shape { input_pitch: 256, ..one }, pass), "cuBLASLt");
            assert_eq!(name(Shape { stride: 2, ..one }, pass), "cuDNN");
            assert_eq!(name(Shape { pad: 1, ..one }, pass), "cuDNN");
            let odd = Shape { inputs: 20, outputs: 20, groups: 4, input_pitch: 24, output_pitch: 24, ..one };
            assert_eq!(name(odd, pass), "cuDNN", "5 channels a group do not start at 16 bytes");
            assert_eq!(name(Shape::packed(64, 80, 128, 128, 3, 1), pass), "cuDNN");
        }
    }

    #[test]
    fn padding_is_small() {
        let expected =
            [(1, 8), (20, 24), (60, 64), (90, 96), (120, 120), (129, 136), (180, 192), (240, 256), (360, 384)];
        for (channels, physical) in expected {
            assert_eq!(padded(channels), physical, "{channels} channels");
        }
    }
}
