//! One block of memory for everything a plan computes, aligned for vector loads.

use graph::ExecError;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// A cache line.
const ALIGN: usize = 64;

/// Zeroed bytes that only ever grow. The system hands pages out as they are touched.
pub(crate) struct Arena {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the arena owns its block; nothing else points to it between runs.
unsafe impl Send for Arena {}

impl Default for Arena {
    fn default() -> Self {
        Self { base: NonNull::dangling(), bytes: 0 }
    }
}

impl Arena {
    /// Makes room for at least `bytes`. What was in the arena is lost where it grows.
    pub fn grow(&mut self, bytes: u64) -> Result<(), ExecError> {
        let refused = ExecError::Memory { bytes };
        let wanted = usize::try_from(bytes).ok().and_then(|b| b.checked_next_multiple_of(ALIGN));
        let wanted = wanted.filter(|&w| w <= isize::MAX as usize - ALIGN).ok_or(ExecError::Memory { bytes })?;
        if wanted <= self.bytes {
            return Ok(());
        }
        self.free();
        // SAFETY: the size is not zero and the alignment is a power of two.
        let base = unsafe { alloc_zeroed(Self::layout(wanted)) };
        self.base = NonNull::new(base).ok_or(refused)?;
        self.bytes = wanted;
        Ok(())
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub fn base(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn base_const(&self) -> *const u8 {
        self.base.as_ptr()
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGN).expect("`grow` keeps sizes below the limit")
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated by `grow` with this layout.
            unsafe { dealloc(self.base.as_ptr(), Self::layout(self.bytes)) };
            (self.base, self.bytes) = (NonNull::dangling(), 0);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.free();
    }
}
