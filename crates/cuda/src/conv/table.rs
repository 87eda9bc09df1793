//! Who serves which convolution, and why. Times are ms on one H200 at batch 64 in bf16, forward / data gradient / weight
//! gradient, `C@S` for C channels on S x S pixels; bounds at 600 TFLOP/s and 3.6 TB/s.

use super::direct::Direct;
use super::own::{OwnConv, Tiles};
use super::{Pass, Request, Shape};
use crate::Format;

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
///   0.045 / 0.047 / 0.093 (bound 0.015), 32@160 0.147 / 0.147 / 0.27, 48@40 0.066 / 0.030 / 0.043;
/// - data gradients of 3x3 with stride 2: 32 <- 64@320 0.437 (bound 0.175), 16 <- 32@320 0.337 (bound 0.087).
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
    // No library reads pictures of bytes: on a card that our own kernel does not run on, the definition is left.
    if request.bytes {
        return Server::Own(&Direct);
    }
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

/// True where our own kernels compute a convolution over a picture of bytes, `shape` being [`Shape::over_bytes`] with
/// physical outputs: both passes that it has.
///
/// The stem, 3 -> 32 @640: 0.174 / - / 0.173 over bytes, 0.297 / - / 0.285 over what a pass of 0.15 makes of them.
pub fn reads_bytes(shape: Shape, format: Format) -> bool {
    let read = |pass| Request { bytes: true, add: pass == Pass::Weight, ..Request::new(shape, pass, format) };
    [Pass::Forward, Pass::Weight].into_iter().map(read).all(|r| r.check().is_ok() && own(&r).is_some())
}

/// Channels worth padding to, a multiple of 8 that is at least `channels`: for plans, as `graph::Backend::padded`.
///
/// Raw 60, 90 and 180 channels are 3 to 5 times slower than multiples of 8 (3x3 60@80: 0.227 / 0.257 / 0.328 against
/// 0.068 / 0.083 / 0.069 for 64; 180@40: 0.258 / 0.398 / 0.304). From 96 on, odd multiples of 8 are slower than the next
/// multiple of 32: 120@80 0.199 / 0.273 / 0.235, 128@80 0.168 / 0.170 / 0.171; 184@40 0.150 / 0.208 / 0.189, 192@40
/// 0.109 / 0.107 / 0.146; 360@20 0.105 / 0.109 / 0.179, 384@20 0.095 / 0.093 / 0.132. Multiples of 16 are left: 240@40 is
/// 0.191 / 0.187 / 0.211, 256@40 0.179 / 0.173 / 0.187, which other passes over the wider tensors cost again.
pub fn padded(channels: usize) -> usize {
    let eight = channels.next_multiple_of(8);
    if channels >= 96 && !eight.is_multiple_of(16) { channels.next_multiple_of(32) } else { eight }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(name(Shape::packed(64, 320, 32, 64, 3, 2), Pass::Data), "tiles");
        assert_eq!(name(Shape::packed(64, 320, 32, 64, 3, 2), Pass::Forward), "cuDNN");
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
    fn stems_read_bytes_where_both_passes_do() {
        let stem = Shape::packed(64, 640, 8, 32, 3, 2).over_bytes();
        assert!(reads_bytes(stem, Format::Bf16) && reads_bytes(stem, Format::F16));
        assert!(!reads_bytes(stem, Format::F32), "tensor cores have no full float32");
        for other in [
            Shape { width: 642, ..stem },
            Shape { outputs: 48, output_pitch: 48, ..stem },
            Shape { stride: 1, ..stem },
            Shape { kernel: 1, pad: 0, ..stem },
            Shape { input_pitch: 8, ..stem },
            Shape { images: 0, ..stem },
        ] {
            assert!(!reads_bytes(other, Format::Bf16), "{other:?}");
        }
        let odd = Request { bytes: true, ..Request::new(Shape { width: 642, ..stem }, Pass::Forward, Format::Bf16) };
        assert_eq!(serve(&odd).name(), "direct", "no library reads bytes");
    }

    #[test]
    fn padding_is_small() {
        let expected = [
            (1, 8),
            (20, 24),
            (60, 64),
            (80, 80),
            (90, 96),
            (120, 128),
            (129, 160),
            (180, 192),
            (240, 240),
            (360, 384),
        ];
        for (channels, physical) in expected {
            assert_eq!(padded(channels), physical, "{channels} channels");
        }
    }
}
