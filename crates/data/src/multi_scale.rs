//! A network size for each batch (`--multi-scale`): between half and one and a half of the usual one.

use rand::RngExt;

use crate::recipe::{FOR_SIDES, keyed_rng};

/// The smallest and the largest side that [`side`] can draw. `size` and `stride` must be above 0.
pub fn range(size: u32, stride: u32) -> (u32, u32) {
    let (low, high) = bounds(size, stride);
    let rounded = |v: u64| u32::try_from(v / u64::from(stride) * u64::from(stride)).unwrap_or(u32::MAX);
    (rounded(low).max(stride), rounded(high - 1).max(stride))
}

/// Half of the size, and one and a half of it plus one stride, which is never drawn itself.
fn bounds(size: u32, stride: u32) -> (u64, u64) {
    let (size, stride) = (u64::from(size), u64::from(stride));
    (size / 2, size + size / 2 + stride)
}

/// The side of a batch: a whole number below 1.5 `size` + `stride` and not below 0.5 `size`, each equally likely,
/// rounded down to a multiple of `stride`; at least one stride. Drawn from (seed, epoch, batch) alone.
pub fn side(seed: u64, epoch: u64, batch: u64, size: u32, stride: u32) -> u32 {
    let (low, high) = bounds(size, stride);
    let drawn = keyed_rng(seed, epoch, batch, FOR_SIDES).random_range(low..high);
    (u32::try_from(drawn).unwrap_or(u32::MAX) / stride * stride).max(stride)
}

/// Height and width of a frame whose longer side becomes `side`; the other one is rounded up to a whole stride.
pub fn frame(frame_hw: [u32; 2], side: u32, stride: u32) -> [u32; 2] {
    let (long, stride) = (u64::from(frame_hw[0].max(frame_hw[1]).max(1)), u64::from(stride.max(1)));
    frame_hw.map(|v| {
        let units = (u64::from(v) * u64::from(side)).div_ceil(long * stride).max(1);
        u32::try_from(units * stride).unwrap_or(u32::MAX)
    })
}
