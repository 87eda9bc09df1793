//! One block of memory for everything a plan computes, aligned for vector loads.

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that only ever grow.
#[derive(Default)]
pub(crate) struct Arena {
    lines: Vec<Line>,
}

impl Arena {
    /// Makes room for at least `bytes`.
    pub fn grow(&mut self, bytes: u64) {
        let lines = (bytes as usize).div_ceil(size_of::<Line>());
        if lines > self.lines.len() {
            // Growing copies nothing: what was in the arena is invalid anyway.
            self.lines = Vec::new();
            self.lines = vec![Line([0; 64]); lines];
        }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.lines[..]) as u64
    }

    pub fn base(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    pub fn base_const(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }
}
