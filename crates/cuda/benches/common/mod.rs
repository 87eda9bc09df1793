//! What benches share: the bounds of a card, random values on it, times, and how a bench ends.
#![allow(dead_code, reason = "each bench uses a part")]

use cuda::{Buffer, CudaError, Gpu, Result};

/// Floating-point operations and bytes a second that convolutions on one H200 are measured against.
pub const FLOPS: f64 = 600e12;
pub const BYTES: f64 = 3.6e12;
/// Bytes a second of an H200's memory.
pub const MEMORY: f64 = 4.8e12;

/// Least milliseconds of so many operations and bytes.
pub fn bound(flops: f64, bytes: f64) -> f64 {
    1e3 * (flops / FLOPS).max(bytes / BYTES)
}

/// Memory full of bf16 values in (-1, 1), which are such values in float32 too: zeros would run faster than data do.
///
/// # Errors
/// No memory, or what the driver says.
pub fn random(gpu: &Gpu, bytes: usize) -> Result<Buffer> {
    let value = |i: u64| half::bf16::from_f32((testkit::mix(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0);
    let values: Vec<u16> = (0..8u64 << 20).map(|i| value(i).to_bits()).collect();
    let mut buffer = gpu.allocate(bytes)?;
    for at in (0..bytes).step_by(size_of_val(&values[..])) {
        let count = values.len().min((bytes - at) / 2);
        buffer.write(at, &values[..count])?;
    }
    Ok(buffer)
}

/// Median milliseconds of a call, over `replays` replays of a graph of `calls` calls, which are numbered: so they can go
/// round several sets of buffers, and find little in the cache.
///
/// # Errors
/// What the call or the driver says.
pub fn time(gpu: &Gpu, calls: usize, replays: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut next = 0;
    cuda::conv::time(gpu, calls, replays, &mut || {
        next += 1;
        call(next)
    })
}

/// Ends a bench: without a card or its libraries it was skipped.
pub fn finish(outcome: Result<()>) {
    match outcome {
        Ok(()) => {}
        Err(error @ (CudaError::Missing { .. } | CudaError::NoCard { .. })) => println!("skipped: {error}"),
        Err(error) => {
            eprintln!("error: {error}");
            std::process::exit(1);
        }
    }
}
