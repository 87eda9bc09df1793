//! Tensor shapes.

use std::fmt;

/// Logical extents of a tensor: batch, height, width, channels (NHWC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub n: usize,
    pub h: usize,
    pub w: usize,
    pub c: usize,
}

impl Shape {
    pub const fn new(n: usize, h: usize, w: usize, c: usize) -> Self {
        Self { n, h, w, c }
    }

    /// A flat vector of `c` elements.
    pub const fn vector(c: usize) -> Self {
        Self::new(1, 1, 1, c)
    }

    /// Number of pixels over the batch: `n * h * w`.
    pub const fn pixels(&self) -> usize {
        self.n * self.h * self.w
    }

    /// Number of logical elements.
    pub const fn elements(&self) -> usize {
        self.pixels() * self.c
    }

    /// The same picture with another number of channels.
    pub const fn with_channels(self, c: usize) -> Self {
        Self { c, ..self }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}x{}", self.n, self.h, self.w, self.c)
    }
}
