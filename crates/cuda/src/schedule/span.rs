//! Memory that an op touches: rows of bytes in one of a few spaces.

/// What an address counts in. Bytes of different spaces never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Tensors and workspaces.
    Arena,
    /// The flat gradient.
    Gradients,
    /// Running statistics.
    Buffers,
}

/// Rows of equal length, `pitch` bytes from one start to the next: a tensor, or a channel range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub space: Space,
    /// Byte of the first row's start.
    pub start: u64,
    pub rows: u64,
    /// Bytes of a row.
    pub width: u64,
    /// At least `width`.
    pub pitch: u64,
}

impl Span {
    /// Bytes without gaps.
    pub fn flat(space: Space, start: u64, bytes: u64) -> Self {
        Self { space, start, rows: 1, width: bytes, pitch: bytes }
    }

    /// First byte after the last row.
    fn end(&self) -> u64 {
        if self.rows == 0 { self.start } else { self.start + (self.rows - 1) * self.pitch + self.width }
    }

    pub fn is_empty(&self) -> bool {
        self.end() == self.start
    }

    /// Bytes from a row's start to the next start of a row of `other`, which has the same pitch.
    fn phase(&self, other: &Self) -> u64 {
        let (pitch, start) = (self.pitch, self.start % self.pitch);
        (other.start % pitch + pitch - start) % pitch
    }

    /// False only where no byte belongs to both: ranges of different channels of one buffer do not meet. Rows of
    /// different pitches count as one block from the first byte to the last.
    pub fn meets(&self, other: &Self) -> bool {
        if self.space != other.space || self.start >= other.end() || other.start >= self.end() {
            return false;
        }
        if self.pitch != other.pitch {
            return true;
        }
        let phase = self.phase(other);
        phase < self.width || self.pitch - phase < other.width
    }

    /// True only where every byte of `other` belongs to this.
    pub fn covers(&self, other: &Self) -> bool {
        let inside = self.space == other.space && self.start <= other.start && other.end() <= self.end();
        let whole = self.width == self.pitch;
        inside && (whole || (self.pitch == other.pitch && self.phase(other) + other.width <= self.width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: u64 = 5;
    const PITCH: u64 = 64;

    fn range(start: u64, width: u64) -> Span {
        Span { space: Space::Arena, start: 1024 + start, rows: ROWS, width, pitch: PITCH }
    }

    fn bytes(s: &Span) -> Vec<u64> {
        (0..s.rows).flat_map(|row| (0..s.width).map(move |b| s.start + row * s.pitch + b)).collect()
    }

    #[test]
    fn channel_ranges_of_one_buffer_meet_where_they_share_channels() {
        let (low, high, all) = (range(0, 32), range(32, 32), range(0, 64));
        assert!(!low.meets(&high) && !high.meets(&low));
        assert!(low.meets(&all) && all.meets(&high) && low.meets(&range(16, 32)) && range(16, 32).meets(&high));
        assert!(all.covers(&low) && all.covers(&high) && !low.covers(&all));
        assert!(range(16, 32).covers(&range(24, 8)) && !range(16, 32).covers(&range(24, 32)));
        let other = Span { space: Space::Gradients, ..all };
        assert!(!all.meets(&other) && !all.covers(&other));
    }

    #[test]
    fn what_is_said_of_spans_holds_for_their_bytes() {
        let mut spans = Vec::new();
        for start in (0..400).step_by(24) {
            for (rows, width, pitch) in [(1, 40, 40), (3, 16, 64), (3, 64, 64), (4, 24, 48), (0, 8, 8)] {
                spans.push(Span { space: Space::Arena, start, rows, width, pitch });
            }
        }
        for a in &spans {
            let held = bytes(a);
            for b in &spans {
                let shared = bytes(b).iter().filter(|byte| held.contains(byte)).count();
                assert!(a.meets(b) || shared == 0, "{a:?} {b:?}");
                assert!(!a.covers(b) || shared == bytes(b).len(), "{a:?} {b:?}");
                // What meets a part meets the whole: an older use may be forgotten once it is covered.
                for whole in spans.iter().filter(|whole| whole.covers(b) && a.meets(b)) {
                    assert!(a.meets(whole), "{a:?} {b:?} {whole:?}");
                }
            }
        }
    }
}
