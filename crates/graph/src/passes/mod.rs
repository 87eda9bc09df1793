//! Graph to graph, in the order [`crate::compile`] runs them.

pub(crate) mod autodiff;
pub(crate) mod bytes;
pub(crate) mod fuse;
pub(crate) mod ranges;
pub(crate) mod recompute;
