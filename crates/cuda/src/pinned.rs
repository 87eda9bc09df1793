//! Page-locked memory of the host, which copies of the card read and write while the host goes on.

use crate::device::Gpu;
use crate::error::Result;
use cudarc::driver::sys::cudaError_enum;
use cudarc::driver::{DriverError, result};
use std::ptr::NonNull;

/// Bytes that the card can reach, freed when dropped: not before the copies that use them are done, which whoever holds
/// them sees to.
#[derive(Debug)]
pub(crate) struct Pinned {
    gpu: Gpu,
    at: NonNull<u8>,
    bytes: usize,
}

impl Pinned {
    /// Zeroed memory.
    ///
    /// # Errors
    /// What the driver says, such as that the system locks no more pages.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        gpu.context().bind_to_thread()?;
        let bytes = bytes.max(1);
        // SAFETY: a size above zero; freed once, when this is dropped.
        let at = NonNull::new(unsafe { result::malloc_host(bytes, 0) }?.cast::<u8>())
            .ok_or(DriverError(cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY))?;
        // SAFETY: the driver gave that many bytes.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Self { gpu: gpu.clone(), at, bytes })
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes.
    ///
    /// # Safety
    /// No copy writes them at the same time.
    pub unsafe fn get(&self) -> &[u8] {
        // SAFETY: allocated with that length, and zeroed.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    /// The bytes to write.
    ///
    /// # Safety
    /// No copy reads or writes them at the same time.
    pub unsafe fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Nothing can be done about a failure. Copies may be under way.
        let _ = self.gpu.synchronize();
        // SAFETY: allocated by this and freed once.
        let _ = unsafe { result::free_host(self.at.as_ptr().cast()) };
    }
}
