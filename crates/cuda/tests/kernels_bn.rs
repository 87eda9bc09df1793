//! Batch norm kernels against the CPU's in float64, on the values as stored.

mod kernels_common;

use cpu::kernels::batch_norm as bn;
use cpu::kernels::{Activation, View as CpuView, ViewMut};
use cuda::kernels::{BnApply, BnBackward, BnReduce, BnStats, Branch, BranchGrad, BranchSums};
use cuda::{Format, Gpu};
use kernels_common::*;

const EPS: f64 = 1e-3;
const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Identity, Activation::Relu, Activation::LeakyRelu(0.1)];

/// A branch on the card and its values here.
struct Case {
    x: Tensor,
    values: Vec<f64>,
    mean: Vec<f64>,
    var: Vec<f64>,
    gamma: Vec<f64>,
    beta: Vec<f64>,
    vectors: [Vector; 4],
}

impl Case {
    fn new(gpu: &Gpu, format: Format, picture: [usize; 3], channels: usize, r: &mut Random) -> Self {
        let strided = r.flag();
        let (x, values) = Tensor::filled(gpu, format, picture, channels, strided, || r.normal() * 1.5 + 0.3);
        let c = x.view.c;
        let mean = kernels_common::values(c, channels, || r.normal() * 0.3);
        let var = kernels_common::values(c, channels, || r.range(0.5, 2.0));
        let gamma = kernels_common::values(c, channels, || r.range(-1.5, 1.5));
        let beta = kernels_common::values(c, channels, || r.normal() * 0.5);
        let vectors = [&mean, &var, &gamma, &beta].map(|v| Vector::new(gpu, v));
        Self { x, values, mean, var, gamma, beta, vectors }
    }

    fn branch(&self) -> Branch {
        let [mean, var, gamma, beta] = [0, 1, 2, 3].map(|i| self.vectors[i].at());
        Branch { x: self.x.view, mean, var, gamma, beta }
    }

    fn reference(&self) -> bn::BnBranch<'_, f64> {
        let x = CpuView::new(&self.values, shape(&self.x), self.x.view.c);
        bn::BnBranch { x, mean: &self.mean, var: &self.var, gamma: &self.gamma, beta: &self.beta }
    }
}

fn shape(t: &Tensor) -> [usize; 4] {
    [t.view.n, t.view.h, t.view.w, t.view.c]
}

#[test]
fn statistics_are_those_of_the_stored_values() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (BnStats::load(&gpu).unwrap(), Random::new());
    for format in FORMATS {
        for channels in CHANNELS {
            for picture in pictures() {
                let strided = r.flag();
                let (x, values) = Tensor::filled(&gpu, format, picture, channels, strided, || r.normal() * 2.0 + 1.0);
                let (c, pixels) = (x.view.c, x.view.pixels());
                let (mean, var) = (Vector::poison(&gpu, c), Vector::poison(&gpu, c));
                let room = scratch(&gpu, BnStats::scratch(pixels, c));
                // SAFETY: buffers of these extents.
                unsafe { kernel.run(x.view, mean.at(), var.at(), room.address()) }.unwrap();
                let (mut want_mean, mut want_var) = (vec![0.0; c], vec![0.0; c]);
                let mut space = vec![0.0; bn::bn_stats_scratch(shape(&x))];
                bn::bn_stats(CpuView::new(&values, shape(&x), c), &mut want_mean, &mut want_var, &mut space);
                let what = format!("{format:?} {picture:?} {channels}");
                assert_near(&format!("mean {what}"), &mean.read(), &want_mean, 2e-6);
                assert_near(&format!("var {what}"), &var.read(), &want_var, 5e-6);
                let again = (mean.read(), var.read());
                // SAFETY: as above.
                unsafe { kernel.run(x.view, mean.at(), var.at(), room.address()) }.unwrap();
                assert_eq!(again, (mean.read(), var.read()), "{what}: not the same bits twice");
            }
        }
    }
}

#[test]
fn variance_keeps_its_digits_where_the_mean_is_a_thousand_times_larger() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (BnStats::load(&gpu).unwrap(), Random::new());
    for picture in [[2, 41, 37], [4, 160, 160]] {
        let (x, values) = Tensor::filled(&gpu, Format::F32, picture, 20, false, || 1000.0 + r.normal());
        let c = x.view.c;
        let (mean, var) = (Vector::poison(&gpu, c), Vector::poison(&gpu, c));
        let room = scratch(&gpu, BnStats::scratch(x.view.pixels(), c));
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x.view, mean.at(), var.at(), room.address()) }.unwrap();
        let (mut want_mean, mut want_var) = (vec![0.0; c], vec![0.0; c]);
        let mut space = vec![0.0; bn::bn_stats_scratch(shape(&x))];
        bn::bn_stats(CpuView::new(&values, shape(&x), c), &mut want_mean, &mut want_var, &mut space);
        assert_near("mean", &mean.read(), &want_mean, 1e-6);
        assert_near("var", &var.read(), &want_var, 1e-4);
    }
}

#[test]
fn a_constant_channel_has_no_variance() {
    let Some(gpu) = gpu() else { return };
    let kernel = BnStats::load(&gpu).unwrap();
    for format in FORMATS {
        let (x, _) = Tensor::filled(&gpu, format, [2, 33, 31], 60, true, || 3.25);
        let (mean, var) = (Vector::poison(&gpu, 64), Vector::poison(&gpu, 64));
        let room = scratch(&gpu, BnStats::scratch(x.view.pixels(), 64));
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x.view, mean.at(), var.at(), room.address()) }.unwrap();
        let want: Vec<f64> = (0..64).map(|c| if c < 60 { 3.25 } else { 0.0 }).collect();
        assert_eq!((mean.read(), var.read()), (want, vec![0.0; 64]));
    }
}

#[test]
fn apply_normalises_activates_and_adds_the_residual() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (BnApply::load(&gpu).unwrap(), Random::new());
    for format in FORMATS {
        for act in ACTIVATIONS {
            for count in [1, 2] {
                for channels in CHANNELS {
                    let picture = pictures()[r.below(pictures().len())];
                    let cases: Vec<Case> =
                        (0..count).map(|_| Case::new(&gpu, format, picture, channels, &mut r)).collect();
                    let strided = [r.flag(), r.flag()];
                    let residual =
                        r.flag().then(|| Tensor::filled(&gpu, format, picture, channels, strided[0], || r.normal()));
                    let y = Tensor::poison(&gpu, format, picture, channels, strided[1]);
                    let branches: Vec<Branch> = cases.iter().map(Case::branch).collect();
                    let add = residual.as_ref().map(|t| t.0.view);
                    // SAFETY: buffers of these extents.
                    unsafe { kernel.run(&branches, EPS as f32, act, add, y.view) }.unwrap();
                    let mut want = vec![0.0; y.view.elements()];
                    let references: Vec<_> = cases.iter().map(Case::reference).collect();
                    let add = residual.as_ref().map(|t| CpuView::new(&t.1, shape(&y), y.view.c));
                    let out = ViewMut::new(&mut want, shape(&y), y.view.c);
                    bn::bn_apply(&references, f64::from(EPS as f32), act, add, out);
                    let what = format!("{format:?} {act:?} {count} branches {picture:?} {channels}");
                    assert_near(&what, &y.read(), &want, bound(format));
                }
            }
        }
    }
}

#[test]
fn backward_gives_sums_parameter_gradients_and_input_gradients() {
    let Some(gpu) = gpu() else { return };
    let (reduce, backward) = (BnReduce::load(&gpu).unwrap(), BnBackward::load(&gpu).unwrap());
    let mut r = Random::new();
    for format in FORMATS {
        for act in ACTIVATIONS {
            for count in [1, 2] {
                for channels in CHANNELS {
                    let picture = pictures()[r.below(pictures().len())];
                    check_backward(&gpu, (&reduce, &backward), format, act, count, channels, picture, &mut r);
                }
            }
        }
    }
}

fn check_backward(
    gpu: &Gpu,
    (reduce, backward): (&BnReduce, &BnBackward),
    format: Format,
    act: Activation,
    count: usize,
    channels: usize,
    picture: [usize; 3],
    r: &mut Random,
) {
    let what = format!("{format:?} {act:?} {count} branches {picture:?} {channels}");
    let eps = f64::from(EPS as f32);
    let cases: Vec<Case> = (0..count).map(|_| Case::new(gpu, format, picture, channels, r)).collect();
    let strided = r.flag();
    let (mut dy, mut dy_values) = Tensor::filled(gpu, format, picture, channels, strided, || r.normal() * 0.5);
    let (c, pixels, shape) = (dy.view.c, dy.view.pixels(), shape(&dy));
    let branches: Vec<Branch> = cases.iter().map(Case::branch).collect();
    let references: Vec<_> = cases.iter().map(Case::reference).collect();
    // Where z is zero but for rounding, the slope of a bent activation is either one's.
    let mut z = vec![0.0; pixels * c];
    bn::bn_apply(&references, eps, Activation::Identity, None, ViewMut::new(&mut z, shape, c));
    dy_values.iter_mut().zip(&z).filter(|(_, z)| z.abs() < 1e-4).for_each(|(dy, _)| *dy = 0.0);
    dy.write(&dy_values);
    let dy_view = CpuView::new(&dy_values, shape, c);

    let s1 = Vector::poison(gpu, c);
    let s2: Vec<Vector> = (0..count).map(|_| Vector::poison(gpu, c)).collect();
    // Gradients that hold something already, and some that are not asked for.
    let before = values(c, channels, || r.normal());
    let wanted: Vec<[bool; 2]> = (0..count).map(|_| [r.below(4) > 0, r.below(4) > 0]).collect();
    let grads: Vec<[Vector; 2]> = (0..count).map(|_| [0, 1].map(|_| Vector::new(gpu, &before))).collect();
    let sums: Vec<BranchSums> = (0..count)
        .map(|b| BranchSums {
            s2: s2[b].at(),
            gamma_grad: wanted[b][0].then(|| grads[b][0].at()),
            beta_grad: wanted[b][1].then(|| grads[b][1].at()),
        })
        .collect();
    let room = scratch(gpu, BnReduce::scratch(pixels, c, count));
    // SAFETY: buffers of these extents.
    unsafe { reduce.run(dy.view, &branches, EPS as f32, act, s1.at(), &sums, room.address()) }.unwrap();

    let (mut want_s1, mut want_s2) = (vec![0.0; c], vec![vec![0.0; c]; count]);
    let mut space = vec![0.0; bn::bn_reduce_scratch(shape, count)];
    let mut slices: Vec<&mut [f64]> = want_s2.iter_mut().map(Vec::as_mut_slice).collect();
    let want = bn::BnSums { s1: &mut want_s1, s2: &mut slices };
    bn::bn_reduce(dy_view, &references, eps, act, want, &mut [], &mut space);
    // Sums cancel: their error is measured against the sum of magnitudes, about sqrt(pixels) times larger.
    let close = |what: &str, got: &[f64], want: &[f64]| {
        let scale = (pixels * c) as f64;
        let e: f64 = got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f64>().sqrt();
        assert!(e <= 3e-6 * scale.sqrt(), "{what}: error {e:.3e}");
    };
    close(&format!("s1 {what}"), &s1.read(), &want_s1);
    for b in 0..count {
        close(&format!("s2 {what}"), &s2[b].read(), &want_s2[b]);
        for (i, add) in [(0, &want_s2[b]), (1, &want_s1)] {
            let sum: Vec<f64> = before.iter().zip(add).map(|(g, a)| if wanted[b][i] { g + a } else { *g }).collect();
            close(&format!("gradient {i} {what}"), &grads[b][i].read(), &sum);
        }
    }

    // The gradients of the inputs, from the card's own sums.
    let accumulate: Vec<bool> = (0..count).map(|_| r.flag()).collect();
    let targets: Vec<(Tensor, Vec<f64>)> = (0..count)
        .map(|b| {
            let strided = r.flag();
            match accumulate[b] {
                true => Tensor::filled(gpu, format, picture, channels, strided, || r.normal()),
                false => (Tensor::poison(gpu, format, picture, channels, strided), vec![0.0; pixels * c]),
            }
        })
        .collect();
    let grads: Vec<BranchGrad> =
        (0..count).map(|b| BranchGrad { s2: s2[b].at(), dx: targets[b].0.view, accumulate: accumulate[b] }).collect();
    // SAFETY: buffers of these extents.
    unsafe { backward.run(dy.view, &branches, EPS as f32, act, s1.at(), pixels, &grads) }.unwrap();
    let (sum1, sum2) = (s1.read(), s2.iter().map(Vector::read).collect::<Vec<_>>());
    let sum2: Vec<&[f64]> = sum2.iter().map(Vec::as_slice).collect();
    let mut want: Vec<Vec<f64>> = targets.iter().map(|t| t.1.clone()).collect();
    let mut views: Vec<ViewMut<'_, f64>> = want.iter_mut().map(|v| ViewMut::new(v, shape, c)).collect();
    bn::bn_backward(dy_view, &references, eps, act, &sum1, &sum2, pixels, &mut views, &accumulate);
    for b in 0..count {
        // With one pixel the true gradient is zero but for rounding; against the size of its terms it is small.
        let got = targets[b].0.read();
        let norm = want[b].iter().map(|v| v * v).sum::<f64>().sqrt().max(0.1 * ((pixels * c) as f64).sqrt());
        let e = got.iter().zip(&want[b]).map(|(g, w)| (g - w).powi(2)).sum::<f64>().sqrt() / norm;
        assert!(e <= bound(format).max(1e-5), "dx of branch {b} {what}: error {e:.3e}");
    }
}
