//! Batches to the card.

use super::{LoadingOptions, StageTime};
use cuda::{Gpu, upload_seconds};

/// Copies of a batch that are timed.
const REPEATS: usize = 20;

/// Copies a batch to the first card from page-locked memory, the median of [`REPEATS`]. The error says why not.
pub(super) fn upload(options: &LoadingOptions) -> Result<StageTime, String> {
    if Gpu::count() == 0 {
        return Err("no card is there".to_owned());
    }
    let bytes = options.batch * options.imgsz * options.imgsz * 3;
    let measured = Gpu::open(0).and_then(|gpu| upload_seconds(&gpu, bytes, REPEATS));
    let mut seconds = measured.map_err(|error| error.to_string())?;
    seconds.sort_by(f64::total_cmp);
    Ok(StageTime::new("upload", 1, options.batch, bytes as u64, seconds[REPEATS / 2]))
}
