//! Runs a plan on the CPU, generic over f32 and f64; the reference for every other executor
