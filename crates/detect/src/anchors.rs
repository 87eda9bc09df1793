//! Anchor points: the cell centres of every level, numbered level by level, row by row.

use crate::Real;

/// Most levels a head may have.
pub const MAX_LEVELS: usize = 8;

/// One level of the head: a map of `h` x `w` cells, each `stride` network pixels wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub h: usize,
    pub w: usize,
    pub stride: usize,
    /// Index of the level's first anchor.
    pub first: usize,
}

impl Level {
    /// Number of cells, one anchor each.
    pub fn cells(&self) -> usize {
        self.h * self.w
    }

    /// Centre (x, y) of a cell in grid units: column + 0.5, row + 0.5.
    #[inline(always)]
    pub fn centre<T: Real>(&self, cell: usize) -> (T, T) {
        let half = T::of(0.5);
        (T::of((cell % self.w) as f64) + half, T::of((cell / self.w) as f64) + half)
    }
}

/// The levels of a head in order; holds no heap memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    levels: [Level; MAX_LEVELS],
    count: usize,
    anchors: usize,
}

impl Levels {
    /// Levels from (height, width, stride) in order. `None` when there are more than [`MAX_LEVELS`],
    /// when a stride is 0 or when the cells cannot be counted.
    pub fn new(maps: impl IntoIterator<Item = (usize, usize, usize)>) -> Option<Self> {
        let mut all = Self { levels: [Level::default(); MAX_LEVELS], count: 0, anchors: 0 };
        for (h, w, stride) in maps {
            if all.count == MAX_LEVELS || stride == 0 {
                return None;
            }
            all.levels[all.count] = Level { h, w, stride, first: all.anchors };
            all.count += 1;
            all.anchors = all.anchors.checked_add(h.checked_mul(w)?)?;
        }
        Some(all)
    }

    /// The levels in order.
    pub fn as_slice(&self) -> &[Level] {
        &self.levels[..self.count]
    }

    /// Anchors of one image, over all levels.
    pub fn anchors(&self) -> usize {
        self.anchors
    }

    /// Level number of an anchor and the cell within it. `anchor` must be below [`Levels::anchors`].
    #[inline(always)]
    pub fn locate(&self, anchor: usize) -> (usize, usize) {
        let mut level = self.count - 1;
        while self.levels[level].first > anchor {
            level -= 1;
        }
        (level, anchor - self.levels[level].first)
    }
}
