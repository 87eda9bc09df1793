//! How fast batches reach a card.

use crate::device::Gpu;
use crate::error::Result;
use crate::pinned::Pinned;
use cudarc::driver::result;
use std::time::Instant;

/// Seconds of each of `repeats` copies of so many bytes from page-locked memory to a card, one after the other.
///
/// # Errors
/// No memory, on the card or that may be page-locked; what the driver says.
pub fn upload_seconds(gpu: &Gpu, bytes: usize, repeats: usize) -> Result<Vec<f64>> {
    let bytes = bytes.max(1);
    let card = gpu.allocate(bytes)?;
    let host = Pinned::new(gpu, bytes)?;
    gpu.synchronize()?;
    let copy = || {
        let start = Instant::now();
        // SAFETY: nothing writes the host's memory; both are of that length, and stay until the stream was waited for.
        unsafe { result::memcpy_htod_async(card.address(), host.get(), gpu.stream().cu_stream()) }?;
        gpu.synchronize()?;
        Ok(start.elapsed().as_secs_f64())
    };
    // The first one pays for what the driver prepares.
    copy()?;
    (0..repeats).map(|_| copy()).collect()
}
