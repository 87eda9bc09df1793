//! Sets of drawn pictures with labels, from a seed: for benchmarks and tests without a download.
//!
//! What costs time in training depends on sizes, on bytes of the files and on boxes, so these are like COCO's: a long
//! side of 640 pixels, JPEG files of about 120 kB with colours at half the resolution, about 7 boxes a picture of which
//! two in five are smaller than 32 x 32 pixels. [`scene`] draws what is on a picture, [`mod@paint`] its pixels, over the
//! 1/f noise of [`noise`] that gives files the entropy of photographs; [`classes`] says what objects of a class look
//! like, so that a model can learn them; [`mod@write`] makes the files.
//!
//! A picture depends on the seed, its part and its number alone.

pub mod classes;
mod error;
pub mod noise;
pub mod paint;
pub mod scene;
pub mod write;

pub use error::SynthError;
pub use paint::{Rgb, paint};
pub use scene::Scene;
pub use write::{SetOptions, SetReport, encode, picture_rng, write};
