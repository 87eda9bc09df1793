//! Boxes: assigner, losses, decoding, non-maximum suppression, matching and average precision.
//!
//! Every function is pure: numbers in, numbers out, no model and no file. Maps are NHWC with a row
//! pitch, boxes are corners x0, y0, x1, y1 unless a name says `xywh` (centre, width, height).
//! Results never depend on the number of threads: every sum has a fixed order.

pub mod anchors;
pub mod assigner;
pub mod average_precision;
pub mod boxes;
pub mod decode;
pub mod dfl;
pub mod external;
pub mod loss;
pub mod matching;
pub mod nms;
pub mod real;

pub use anchors::{Level, Levels};
pub use loss::{
    Branch, BranchGradient, BranchLoss, FixedAssignment, LossConfig, LossError, LossOutput, MapMut, MapRef, Scratch,
    Targets, assigned_loss, detection_loss, scratch_len,
};
pub use real::Real;
