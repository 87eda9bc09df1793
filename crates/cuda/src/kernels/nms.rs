//! Non-maximum suppression, wholly on the card.

use super::compiler::Source;
use super::tiling::expect;
use super::{Function, Module};
use crate::device::Gpu;
use crate::error::Result;
use detect::nms::{COLUMNS, NmsConfig, most_detections};

pub(super) const SOURCE: Source = Source { name: "nms.cu", text: include_str!("nms.cu") };

/// Candidates that enter the suppression at most, as in `detect::nms`.
const LIMIT: usize = 30_000;
/// Rows of an image that a block of the selection sees.
const ROWS: usize = 32;
/// Images of one launch.
const MOST_IMAGES: usize = 65_535;

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    predictions: u64,
    wanted: u64,
    counts: u64,
    keys: u64,
    kept: u64,
    detections: u64,
    found: u64,
    images: u32,
    rows: u32,
    pitch: u32,
    classes: u32,
    capacity: u32,
    max_det: u32,
    most: u32,
    detections_pitch: u32,
    multi_label: u32,
    agnostic: u32,
    confidence: f32,
    iou: f32,
}

/// Shape of the predictions of a batch: (images, rows, pitch) float32, whose first 4 + `nc` values are box centre,
/// width, height and class scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Predictions {
    pub images: usize,
    pub rows: usize,
    pub pitch: usize,
    pub nc: usize,
}

/// Addresses of what the suppression works on.
#[derive(Clone, Copy, Debug)]
pub struct NmsBuffers {
    pub predictions: u64,
    /// A byte a class from [`Nms::wanted`], where the settings name classes.
    pub wanted: Option<u64>,
    /// [`Nms::scratch`] bytes, aligned to 16.
    pub scratch: u64,
    /// Written: for each image [`most_detections`] rows of [`COLUMNS`] float32, its best first, then zeros.
    pub detections: u64,
    /// Elements from one of these rows to the next; those beyond the columns are left alone.
    pub detections_pitch: usize,
    /// Written: how many of them each image has, in float32.
    pub found: u64,
}

/// The suppression.
#[derive(Debug)]
pub struct Nms {
    clear: Function,
    select: Function,
    suppress: Function,
}

impl Nms {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let module = Module::load(gpu, SOURCE)?;
        let f = |name: &str| module.function(name);
        Ok(Self { clear: f("nms_clear")?, select: f("nms_select")?, suppress: f("nms_suppress")? })
    }

    /// Bytes of scratch.
    pub fn scratch(shape: Predictions, config: &NmsConfig) -> usize {
        let [keys, kept, counts] = parts(shape, config);
        keys + kept + counts
    }

    /// A byte for each class, 1 where the settings want it; `None` where they want all.
    pub fn wanted(config: &NmsConfig, nc: usize) -> Option<Vec<u8>> {
        let keep = config.classes.as_ref()?;
        Some((0..nc as u32).map(|class| keep.contains(&class).into()).collect())
    }

    /// Detections of each image as `detect::nms::suppress` finds them; equal inputs give equal bits.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// All addresses are device memory of their extents.
    pub unsafe fn run(&self, shape: Predictions, config: &NmsConfig, b: &NmsBuffers) -> Result<()> {
        let Predictions { images, rows, pitch, nc } = shape;
        let counted = rows.checked_mul(nc.max(1)).is_some_and(|n| u32::try_from(n).is_ok());
        let most = most_detections(config, rows, nc);
        let fits = pitch >= 4 + nc && counted && images <= MOST_IMAGES && b.detections_pitch >= COLUMNS;
        expect("nms", fits, || format!("{shape:?}, detections {} apart", b.detections_pitch))?;
        let named = config.classes.is_none() || b.wanted.is_some();
        expect("nms", named, || "classes are named and there is no table of them".into())?;
        let [keys, kept, _] = parts(shape, config).map(|bytes| bytes as u64);
        let args = Args {
            predictions: b.predictions,
            wanted: b.wanted.filter(|_| config.classes.is_some()).unwrap_or(0),
            counts: b.scratch + keys + kept,
            keys: b.scratch,
            kept: b.scratch + keys,
            detections: b.detections,
            found: b.found,
            images: images as u32,
            rows: rows as u32,
            pitch: pitch as u32,
            classes: nc as u32,
            capacity: capacity(shape, config) as u32,
            max_det: config.max_det.min(most) as u32,
            most: most as u32,
            detections_pitch: b.detections_pitch as u32,
            multi_label: (config.multi_label && nc > 1).into(),
            agnostic: config.agnostic.into(),
            confidence: config.conf_threshold,
            iou: largest_below(config.iou_threshold),
        };
        let (images, rows) = (images as u32, rows.div_ceil(ROWS) as u32);
        // SAFETY: the caller's promise; the struct is the kernels'.
        unsafe {
            self.clear.launch([images.div_ceil(256), 1, 1], [256, 1, 1], 0, &args)?;
            self.select.launch([rows, images, 1], [256, 1, 1], 0, &args)?;
            self.suppress.launch([images, 1, 1], [1024, 1, 1], 0, &args)
        }
    }
}

/// Keys kept of one image: a power of two, for the sort.
fn capacity(shape: Predictions, config: &NmsConfig) -> usize {
    let each = if config.multi_label { shape.nc.max(1) } else { 1 };
    shape.rows.saturating_mul(each).clamp(1, LIMIT).next_power_of_two()
}

/// Bytes of keys, kept boxes and counts.
fn parts(shape: Predictions, config: &NmsConfig) -> [usize; 3] {
    let (images, most) = (shape.images, most_detections(config, shape.rows, shape.nc));
    [8 * images * capacity(shape, config), 16 * images * most, 4 * images].map(|b| b.next_multiple_of(16))
}

/// The largest float32 that is not above a threshold: a float32 is above the one exactly where it is above the other.
fn largest_below(threshold: f64) -> f32 {
    let near = threshold as f32;
    if f64::from(near) > threshold { near.next_down() } else { near }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_keep_their_meaning_in_float32() {
        for threshold in [0.45, 0.7, 0.6, 0.1, 1.0 / 3.0, 0.0, 1.0, 0.3] {
            let t = largest_below(threshold);
            assert!(f64::from(t) <= threshold);
            assert!(f64::from(t.next_up()) > threshold);
        }
    }
}
