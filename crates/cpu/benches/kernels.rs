//! Times the kernels at the shapes of yolov9-t, 320 px, batch 16: GFLOP/s and share of the measured FMA peak for
//! convolutions (with the `gemm` crate beside the 1x1 ones), GB/s for batch norm. The best of several repeats, because
//! other work may share the cores. `cargo bench -p yolov9-cpu --bench kernels -- [filter]`; with
//! `RUSTFLAGS="--cfg bench_gemm"` for the comparison (the crate takes minutes to build, so it is off otherwise).
#![allow(unexpected_cfgs)]

use std::hint::black_box;
use std::time::Instant;

use cpu::element::Element;
use cpu::kernels::batch_norm::*;
use cpu::kernels::conv::*;
use cpu::kernels::simd::{Kernel, Simd};
use cpu::kernels::*;

/// Images: 16, or what the variable BATCH says (short calls see less of other work on a shared machine).
fn batch() -> usize {
    std::env::var("BATCH").ok().and_then(|v| v.parse().ok()).unwrap_or(16)
}

/// Best seconds of several runs of `f`, for at least a tenth of a second.
fn best(mut f: impl FnMut()) -> f64 {
    let (mut least, begin) = (f64::INFINITY, Instant::now());
    let mut runs = 0;
    while runs < 5 || begin.elapsed().as_secs_f64() < 0.25 {
        let start = Instant::now();
        f();
        least = least.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    least
}

struct Peak;

impl Kernel<f32> for Peak {
    type Out = f64;

    /// GFLOP/s of twelve independent chains of multiply-adds. No closure around the loop: it would be compiled without
    /// the vector instructions.
    #[inline(always)]
    fn run<S: Simd<f32>>(self, s: S) -> f64 {
        const STEPS: usize = 1_000_000;
        let mut acc = [s.splat(1.0); 12];
        let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(0.001)));
        let mut least = f64::INFINITY;
        for _ in 0..60 {
            let start = Instant::now();
            for _ in 0..STEPS {
                for i in 0..12 {
                    acc[i] = s.fma(acc[i], a, b);
                }
            }
            black_box(&mut acc);
            least = least.min(start.elapsed().as_secs_f64());
        }
        (STEPS * 12 * 2 * S::LANES) as f64 / least / 1e9
    }
}

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1000) as f32 / 500.0 - 1.0).collect()
}

fn convolution(
    name: &str,
    cin: usize,
    cout: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
    size: usize,
    peak: f64,
) {
    let attrs = ConvAttrs::square(kernel, stride, kernel / 2, groups);
    let [h, w] = attrs.output_size([size, size]);
    let (xs, ys) = ([batch(), size, size, cin], [batch(), h, w, cout]);
    let pixels = batch() * h * w;
    let (x, dy, weights) =
        (values(batch() * size * size * cin), values(pixels * cout), values(attrs.weight_len(cin, cout)));
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; weights.len()]);
    let flops = 2.0 * (pixels * weights.len()) as f64;
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let peak = peak * threads as f64;
        let [f, d, g] = pool.install(|| {
            let mut scratch = vec![0.0; conv_forward_scratch(cin, cout, attrs)];
            let f = best(|| {
                let (x, y) = (View::new(&x, xs, cin), ViewMut::new(&mut y, ys, cout));
                conv_forward(x, &weights, None, None, y, attrs, &mut scratch);
            });
            let mut scratch = vec![0.0; conv_data_grad_scratch(cin, cout, attrs)];
            let d = best(|| {
                let (dy, dx) = (View::new(&dy, ys, cout), ViewMut::new(&mut dx, xs, cin));
                conv_data_grad(dy, &weights, dx, attrs, false, &mut scratch);
            });
            let mut scratch = vec![0.0; conv_weight_grad_scratch(xs, cout, attrs)];
            let g = best(|| {
                let (x, dy) = (View::new(&x, xs, cin), View::new(&dy, ys, cout));
                conv_weight_grad(x, dy, &mut dw, None, attrs, &mut scratch);
            });
            [f, d, g]
        });
        let show = |s: f64| format!("{:7.3} ms {:5.1} GF {:3.0} %", s * 1e3, flops / s / 1e9, flops / s / 1e7 / peak);
        print!("{name:<24} {threads}t | {} | {} | {}", show(f), show(d), show(g));
        #[cfg(bench_gemm)]
        if kernel == 1 && groups == 1 {
            let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
            let f = pool.install(|| best(|| product(&mut y, &x, &weights, [pixels, cin, cout], parallelism)));
            print!(" | gemm forward {}", show(f));
        }
        println!();
    }
}

#[cfg(bench_gemm)]
/// y[m, n] = x[m, k] * w[n, k]^T by the gemm crate.
fn product(y: &mut [f32], x: &[f32], w: &[f32], [m, k, n]: [usize; 3], parallelism: gemm::Parallelism) {
    let (cn, ck) = (n as isize, k as isize);
    // SAFETY: the strides and sizes are those of the three slices.
    unsafe {
        let (y, x, w) = (y.as_mut_ptr(), x.as_ptr(), w.as_ptr());
        gemm::gemm(m, n, k, y, 1, cn, false, x, 1, ck, w, ck, 1, 0.0, 1.0, false, false, false, parallelism);
    }
}

fn batch_norm(channels: usize, size: usize) {
    let shape = [batch(), size, size, channels];
    let len = batch() * size * size * channels;
    let (x, dy) = (values(len), values(len));
    let (mut y, mut mean, mut var) = (vec![0.0; len], vec![0.0; channels], vec![1.0; channels]);
    let (gamma, beta) = (vec![1.0; channels], vec![0.1; channels]);
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let times = pool.install(|| {
            let view = View::new(&x, shape, channels);
            let grad = View::new(&dy, shape, channels);
            let mut scratch = vec![0.0; bn_stats_scratch(shape)];
            let stats = best(|| bn_stats(view, &mut mean, &mut var, &mut scratch));
            let branch = [BnBranch { x: view, mean: &mean, var: &var, gamma: &gamma, beta: &beta }];
            let apply = best(|| {
                bn_apply(&branch, 1e-3, Activation::Silu, None, ViewMut::new(&mut y, shape, channels));
            });
            let (mut s1, mut s2) = (vec![0.0; channels], vec![0.0; channels]);
            let mut scratch = vec![0.0; bn_reduce_scratch(shape, 1)];
            let reduce = best(|| {
                let sums = BnSums { s1: &mut s1, s2: &mut [&mut s2] };
                bn_reduce(grad, &branch, 1e-3, Activation::Silu, sums, &mut [], &mut scratch);
            });
            let backward = best(|| {
                let mut out = [ViewMut::new(&mut y, shape, channels)];
                let count = len / channels;
                bn_backward(grad, &branch, 1e-3, Activation::Silu, &s1, &[&s2], count, &mut out, &[false]);
            });
            [(stats, 1), (apply, 2), (reduce, 2), (backward, 3)]
        });
        print!("bn+silu {channels} @{size} {threads}t");
        for (name, (s, tensors)) in ["stats", "apply", "reduce", "backward"].iter().zip(times) {
            print!(" | {name} {:.3} ms {:.1} GB/s", s * 1e3, (tensors * len * 4) as f64 / s / 1e9);
        }
        println!();
    }
}

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with("--")).unwrap_or_default();
    let peak = f32::dispatch(Peak);
    println!("FMA peak {peak:.1} GFLOP/s a core; columns: forward | data gradient | weight gradient");
    for (name, cin, cout, kernel, stride, groups, size) in [
        ("3x3 s2 3->16 @160", 3, 16, 3, 2, 1, 320),
        ("3x3 s2 8->16 @160", 8, 16, 3, 2, 1, 320),
        ("3x3 s2 16->32 @80", 16, 32, 3, 2, 1, 160),
        ("3x3 16->16 @80", 16, 16, 3, 1, 1, 80),
        ("3x3 32->32 @40", 32, 32, 3, 1, 1, 40),
        ("3x3 24->24 @40", 24, 24, 3, 1, 1, 40),
        ("3x3 48->48 @20", 48, 48, 3, 1, 1, 20),
        ("3x3 64->64 @10", 64, 64, 3, 1, 1, 10),
        ("3x3 g4 64->64 @40", 64, 64, 3, 1, 4, 40),
        ("1x1 64->64 @40", 64, 64, 1, 1, 1, 40),
        ("1x1 32->32 @80", 32, 32, 1, 1, 1, 80),
        ("1x1 224->96 @20", 224, 96, 1, 1, 1, 20),
    ] {
        if name.contains(&filter) {
            convolution(name, cin, cout, kernel, stride, groups, size, peak);
        }
    }
    for (channels, size) in [(16, 80), (32, 40), (64, 20)] {
        if "bn".contains(&filter) {
            batch_norm(channels, size);
        }
    }
}
