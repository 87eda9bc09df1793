//! What can be wrong with a graph.

use crate::Shape;

/// A graph that cannot be built or compiled. Messages carry both sides of a mismatch.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum GraphError {
    #[error("{op} in {scope}: shapes {left} and {right} do not fit together")]
    Shapes { op: &'static str, scope: String, left: Shape, right: Shape },
    #[error("{op} in {scope}: a picture of {height}x{width} is smaller than its {kernel}x{kernel} window")]
    Window { op: &'static str, scope: String, height: usize, width: usize, kernel: usize },
    #[error("convolution in {scope}: kernel {kernel} and stride {stride} (1 to 11, and 1 or more, are possible)")]
    Kernel { scope: String, kernel: usize, stride: usize },
    #[error("{op} in {scope}: {channels} channels do not divide into {groups} groups")]
    Groups { op: &'static str, scope: String, channels: usize, groups: usize },
    #[error("{op} in {scope}: channels {start}..{end} lie outside of a tensor with {channels}")]
    Range { op: &'static str, scope: String, start: usize, end: usize, channels: usize },
    #[error("{op} in {scope}: it needs its channels in one range, but they are cut into {segments}")]
    Segmented { op: &'static str, scope: String, segments: usize },
    #[error("two parameters are called {0}")]
    DuplicateParam(String),
    #[error("{op} in {scope} needs at least one input")]
    NoInput { op: &'static str, scope: String },
    #[error("the plan needs {needed} bytes of arena at the lowest level, the budget is {budget}")]
    Budget { needed: u64, budget: u64 },
    #[error("{tensor} has {elements} elements, more than one tensor may have (2^31)")]
    TooLarge { tensor: String, elements: u64 },
}
