//! Views of head maps: NHWC with a row pitch, so that a map may sit in a buffer with padded channels.

/// A raw head map (batch, h, w, channels). `pitch` elements lie between consecutive cells.
#[derive(Clone, Copy, Debug)]
pub struct MapRef<'a, T> {
    pub data: &'a [T],
    pub pitch: usize,
    pub h: usize,
    pub w: usize,
}

impl<T> MapRef<'_, T> {
    /// True when the data hold `batch` such maps of `channels` channels.
    pub(crate) fn holds(&self, batch: usize, channels: usize) -> bool {
        let cells = self.h.checked_mul(self.w).and_then(|cells| cells.checked_mul(batch));
        let need = cells.and_then(|cells| needed(cells, self.pitch, channels));
        channels <= self.pitch && need.is_some_and(|need| need <= self.data.len())
    }
}

/// A gradient map to write, laid out like [`MapRef`].
#[derive(Debug)]
pub struct MapMut<'a, T> {
    pub data: &'a mut [T],
    pub pitch: usize,
    pub h: usize,
    pub w: usize,
    /// Channels from the map's own count up to this one are set to zero; at most `pitch`.
    pub channels_padded: usize,
}

/// Raw outputs of one branch of the head, one map per level.
#[derive(Clone, Copy, Debug)]
pub struct Branch<'a, T> {
    /// Box logits: 64 channels, side (left, top, right, bottom) * 16 + bin.
    pub boxes: &'a [MapRef<'a, T>],
    /// Class logits: nc channels.
    pub classes: &'a [MapRef<'a, T>],
}

/// Gradients of one branch, one map per level, as [`Branch`].
#[derive(Debug)]
pub struct BranchGradient<'m, 'a, T> {
    pub boxes: &'m mut [MapMut<'a, T>],
    pub classes: &'m mut [MapMut<'a, T>],
}

/// Elements a map of `cells` cells (over the batch) must at least have.
pub(super) fn needed(cells: usize, pitch: usize, channels: usize) -> Option<usize> {
    match cells {
        0 => Some(0),
        _ => (cells - 1).checked_mul(pitch)?.checked_add(channels),
    }
}
