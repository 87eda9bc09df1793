//! Tensors in device memory, as kernels see them.

/// Number format of elements in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    F32,
    F16,
    Bf16,
}

impl Format {
    pub fn bytes(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Name in cache keys and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

/// An NHWC tensor on the card, or a channel range of one.
///
/// Address, pitch and channels are such that every pixel starts at a multiple of 16 bytes: channels and pitch are
/// multiples of 8 elements, pad channels included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Address of the first element.
    pub at: u64,
    pub format: Format,
    pub n: usize,
    pub h: usize,
    pub w: usize,
    /// Physical channels, a multiple of 8.
    pub c: usize,
    /// Elements from one pixel to the next, at least `c`.
    pub pitch: usize,
}

impl View {
    /// Pixels of all images.
    pub fn pixels(&self) -> usize {
        self.n * self.h * self.w
    }

    /// Elements, without what lies between the ranges of neighbouring pixels.
    pub fn elements(&self) -> usize {
        self.pixels() * self.c
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> usize {
        self.elements() * self.format.bytes()
    }

    pub fn is_packed(&self) -> bool {
        self.pitch == self.c
    }

    /// Channels `start..start + c` of it, both multiples of 8.
    pub fn channels(&self, start: usize, c: usize) -> Self {
        debug_assert!(start + c <= self.c);
        Self { at: self.at + (start * self.format.bytes()) as u64, c, ..*self }
    }
}
