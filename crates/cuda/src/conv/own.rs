//! Where our own convolution kernels plug in.

use super::{Places, Request};
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::own_conv;
use std::fmt::Debug;

/// A kind of own convolution kernel.
///
/// What it says of a request depends on the request alone: plans are made on machines without a card. Its results have
/// the same bits in every run.
pub trait OwnConv: Debug + Sync {
    /// Its name in choices and tables.
    fn name(&self) -> &'static str;

    /// True where it is the best that there is for a request.
    fn serves(&self, request: &Request) -> bool;

    /// Bytes of scratch, zero or more, whose place is aligned to 256 bytes.
    fn workspace(&self, request: &Request) -> u64;

    /// Loads its kernels for a request that it serves.
    ///
    /// # Errors
    /// A card that they do not run on, which the library then serves; no NVRTC, or what the driver says.
    fn prepare(&self, gpu: &Gpu, request: &Request) -> Result<Box<dyn OwnPass>>;
}

/// A request that an own kernel is ready to run.
pub trait OwnPass: Send + Sync {
    /// Launches on the card's stream.
    ///
    /// # Errors
    /// What the driver says of the launch.
    ///
    /// # Safety
    /// The places are device memory of the request's extents and formats, the workspace of [`OwnConv::workspace`].
    unsafe fn run(&self, places: &Places) -> Result<()>;
}

/// The tiled kernels for stems, few channels, groups of 16 and data gradients of stride 2.
#[derive(Debug)]
pub(super) struct Tiles;

impl OwnConv for Tiles {
    fn name(&self) -> &'static str {
        "tiles"
    }

    fn serves(&self, request: &Request) -> bool {
        own_conv::serves(request)
    }

    fn workspace(&self, request: &Request) -> u64 {
        own_conv::workspace(request)
    }

    fn prepare(&self, gpu: &Gpu, request: &Request) -> Result<Box<dyn OwnPass>> {
        Ok(Box::new(own_conv::OwnConv::new(gpu).prepare(request)?))
    }
}

impl OwnPass for own_conv::OwnPass {
    unsafe fn run(&self, places: &Places) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Self::run(self, [places.x, places.w, places.y], places.workspace) }
    }
}
