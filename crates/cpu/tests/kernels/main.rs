//! Kernels against plain f64 loops on random shapes, pitches and strides, and against themselves on one and two threads.

mod batch_norm;
mod common;
mod convolution;
mod pointwise;
mod windows;
