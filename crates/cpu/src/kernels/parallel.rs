//! Splitting work by shape, and handing disjoint parts of one buffer to several threads.

use std::ops::Range;

use rayon::prelude::*;

/// A pointer that may cross threads. Whoever writes through it must own the elements.
#[derive(Debug)]
pub(crate) struct Shared<T>(pub *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Shared<T> {}

// SAFETY: only an address; each use states which elements it owns.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address (a method, so that closures capture the whole wrapper).
    #[inline(always)]
    pub fn get(self) -> *mut T {
        self.0
    }
}

/// Runs `f` for every index. Small jobs stay on this thread.
pub(crate) fn for_each_index(count: usize, f: impl Fn(usize) + Sync + Send) {
    if count <= 1 {
        (0..count).for_each(f);
    } else {
        (0..count).into_par_iter().for_each(f);
    }
}

/// Pixels a chunk has so that one operand of it stays in the first-level cache; depends on the channels only.
pub(crate) fn chunk_pixels(channels: usize) -> usize {
    (6144 / channels.max(1)).clamp(16, 1024)
}

/// Number of chunks of `size` in `total`.
pub(crate) fn chunk_count(total: usize, size: usize) -> usize {
    total.div_ceil(size)
}

/// The range of chunk `i`.
pub(crate) fn chunk(i: usize, size: usize, total: usize) -> Range<usize> {
    i * size..((i + 1) * size).min(total)
}
