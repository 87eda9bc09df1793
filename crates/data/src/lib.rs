//! Data sets: labels, the scan, sample recipes and their pixels on the CPU.
//!
//! The way of one training image: [`dataset`] reads the data YAML, [`listing`] finds the images,
//! [`mod@scan`] checks images and labels once (and caches what it found), [`recipe`] draws what happens to
//! a sample as a pure value, [`render`] turns that value into pixels, and [`loader`] does the last two
//! ahead of time on threads of its own. Pictures are RGB, 8 bit, row-major (height, width, 3) throughout.

pub mod cache;
pub mod copy_paste;
pub mod dataset;
pub mod decode;
pub mod disk_cache;
pub mod error;
pub mod geometry;
pub mod image_weights;
pub mod labels;
pub mod letterbox;
pub mod listing;
pub mod loader;
pub mod mosaic;
pub mod multi_scale;
pub mod picture;
pub mod pool;
pub mod recipe;
pub mod rect;
pub mod render;
pub mod resize;
pub mod scan;
pub mod times;
pub mod validation;

pub use dataset::{Dataset, Split};
pub use disk_cache::DiskCache;
pub use error::{DataError, Problem};
pub use labels::{Label, Polygon};
pub use loader::{Batch, Kept, Loader, LoaderOptions, Task, Unrendered};
pub use picture::Picture;
pub use pool::{CacheMode, ImagePool, Purpose};
pub use recipe::{AugmentConfig, Partners, Recipe, RecipeMaker};
pub use scan::{Sample, ScanOptions, ScanReport, Scanned, scan};
pub use times::LoadTimes;
