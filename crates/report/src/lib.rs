//! What a run leaves behind: `results.csv`, pictures with boxes, tables on the terminal, prediction files and the folder they lie in.
//!
//! Nothing here knows about models or tensors: callers hand over plain numbers, and RGB8 pixels row by row (`height * width * 3` bytes).

pub mod atomic;
pub mod draw;
pub mod error;
pub mod font;
pub mod jpeg;
mod label_layout;
pub mod mosaic;
pub mod number;
pub mod output_names;
pub mod palette;
pub mod predictions;
pub mod results_csv;
pub mod run_folder;
pub mod samples_csv;
pub mod tables;

pub use error::{Error, Result};
