//! Bytes of the host to the card through page-locked memory, one half filled while the other is copied.

use crate::device::Gpu;
use crate::error::Result;
use crate::pinned::Pinned;
use cudarc::driver::{CudaEvent, CudaStream, result};
use rayon::prelude::*;

/// Bytes of a half: some dozens of pictures, which threads share.
const HALF: usize = 32 << 20;
/// Parts of this size are shared between threads.
const PART: usize = 1 << 20;

pub(super) struct Staging {
    gpu: Gpu,
    halves: [(Pinned, CudaEvent); 2],
    at: usize,
}

/// Bytes on their way through a half: where they come from, where they wait, and where on the card they go.
struct Part<'a> {
    from: &'a [u8],
    waits: &'a mut [u8],
    to: u64,
}

impl Staging {
    /// # Errors
    /// No page-locked memory, or what the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let half = || -> Result<(Pinned, CudaEvent)> { Ok((Pinned::new(gpu, HALF)?, gpu.event()?)) };
        Ok(Self { gpu: gpu.clone(), halves: [half()?, half()?], at: 0 })
    }

    /// Copies each slice to its address, in order with `stream`. Returns when the slices may be changed.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The addresses are device memory of these extents, apart from each other, and nothing before the copies on
    /// `stream` or on others uses them still.
    pub unsafe fn send(&mut self, stream: &CudaStream, slices: &[(&[u8], u64)]) -> Result<()> {
        self.gpu.context().bind_to_thread()?;
        let cut = |&(slice, to): &(&'_ [u8], u64)| (0..slice.len()).step_by(PART).map(move |at| (at, to + at as u64));
        let mut parts = slices
            .iter()
            .flat_map(|item| cut(item).map(|(at, to)| (&item.0[at..item.0.len().min(at + PART)], to)))
            .peekable();
        while parts.peek().is_some() {
            let (host, copied) = &mut self.halves[self.at];
            self.at ^= 1;
            copied.synchronize()?;
            // SAFETY: the copies that read it are done.
            let mut free = unsafe { host.get_mut() };
            let mut waiting = Vec::new();
            while let Some((from, to)) = parts.next_if(|part| part.0.len() <= free.len()) {
                let (waits, rest) = std::mem::take(&mut free).split_at_mut(from.len());
                free = rest;
                waiting.push(Part { from, waits, to });
            }
            waiting.par_iter_mut().for_each(|part| part.waits.copy_from_slice(part.from));
            for part in &waiting {
                // SAFETY: the caller's promise; the half is written again only when the event below has come.
                unsafe { result::memcpy_htod_async(part.to, part.waits, stream.cu_stream()) }?;
            }
            copied.record(stream)?;
        }
        Ok(())
    }
}
