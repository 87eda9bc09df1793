//! Kernels that map values: pictures, activations, sums, copies and casts, zeros, biases.

mod kernels_common;

use cpu::kernels::{Activation, View as CpuView, ViewMut, activation, activation_grad};
use cuda::kernels::{Activate, Add, Bias, Copy, Fill, Normalize};
use cuda::{Format, Gpu, View};
use kernels_common::*;

const ACTIVATIONS: [Activation; 4] =
    [Activation::Silu, Activation::Identity, Activation::Relu, Activation::LeakyRelu(0.1)];

fn shape(t: &Tensor) -> [usize; 4] {
    [t.view.n, t.view.h, t.view.w, t.view.c]
}

#[test]
fn pictures_become_fractions_with_zero_in_the_padding() {
    let Some(gpu) = gpu() else { return };
    check_normalize(&gpu, &PICTURES);
}

fn check_normalize(gpu: &Gpu, pictures: &[[usize; 3]]) {
    let (kernel, mut r) = (Normalize::load(gpu).unwrap(), Random::new());
    for format in FORMATS {
        for &picture in pictures {
            for channels in [1, 3, 12] {
                let strided = r.flag();
                let y = Tensor::poison(gpu, format, picture, channels, strided);
                let bytes: Vec<u8> = (0..y.view.pixels() * channels).map(|_| r.bits() as u8).collect();
                let mut x = gpu.allocate(bytes.len()).unwrap();
                x.write(0, &bytes).unwrap();
                // SAFETY: buffers of these extents.
                unsafe { kernel.run(x.address(), channels, y.view) }.unwrap();
                let c = y.view.c;
                let want: Vec<f64> = (0..y.view.elements())
                    .map(|i| match i % c {
                        k if k < channels => rounded(format, f64::from(f32::from(bytes[i / c * channels + k]) / 255.0)),
                        _ => 0.0,
                    })
                    .collect();
                assert_eq!(y.read(), want, "{format:?} {picture:?} {channels}");
            }
        }
    }
}

#[test]
fn activations_and_their_gradients() {
    let Some(gpu) = gpu() else { return };
    check_activations(&gpu, &CHANNELS, &PICTURES);
}

fn check_activations(gpu: &Gpu, channels: &[usize], pictures: &[[usize; 3]]) {
    let (kernel, mut r) = (Activate::load(gpu).unwrap(), Random::new());
    for format in FORMATS {
        for act in ACTIVATIONS {
            for &channels in channels {
                let picture = pictures[r.below(pictures.len())];
                let strided = [0; 4].map(|_| r.flag());
                let what = format!("{format:?} {act:?} {picture:?} {channels}");
                let (x, xs) = Tensor::filled(gpu, format, picture, channels, strided[0], || r.normal() * 3.0);
                let (dy, dys) = Tensor::filled(gpu, format, picture, channels, strided[1], || r.normal());
                let y = Tensor::poison(gpu, format, picture, channels, strided[2]);
                let (shape, c) = (shape(&x), x.view.c);
                // SAFETY: buffers of these extents.
                unsafe { kernel.run(x.view, act, y.view) }.unwrap();
                let mut want = vec![0.0; xs.len()];
                activation(CpuView::new(&xs, shape, c), ViewMut::new(&mut want, shape, c), act, false);
                assert_near(&format!("forward {what}"), &y.read(), &want, bound(format));
                for accumulate in [false, true] {
                    let (dx, mut want) = match accumulate {
                        true => Tensor::filled(gpu, format, picture, channels, strided[3], || r.normal()),
                        false => {
                            let dx = Tensor::poison(gpu, format, picture, channels, strided[3]);
                            (dx, vec![0.0; xs.len()])
                        }
                    };
                    // SAFETY: as above.
                    unsafe { kernel.gradient(x.view, dy.view, act, dx.view, accumulate) }.unwrap();
                    let (vx, vdy) = (CpuView::new(&xs, shape, c), CpuView::new(&dys, shape, c));
                    activation_grad(vx, vdy, ViewMut::new(&mut want, shape, c), act, accumulate);
                    assert_near(&format!("gradient {accumulate} {what}"), &dx.read(), &want, bound(format));
                }
            }
        }
    }
}

#[test]
fn activations_of_infinities_and_nan_are_the_cpus() {
    let Some(gpu) = gpu() else { return };
    let kernel = Activate::load(&gpu).unwrap();
    let special = [f64::NEG_INFINITY, -1e30, -200.0, -0.0, 0.0, 200.0, 1e30, f64::INFINITY, f64::NAN, 1.0];
    for act in ACTIVATIONS {
        let mut next = special.iter().cycle();
        let (x, xs) = Tensor::filled(&gpu, Format::F32, [1, 1, 10], 8, false, || *next.next().unwrap());
        let (dy, dys) = Tensor::filled(&gpu, Format::F32, [1, 1, 10], 8, false, || 2.0);
        let y = Tensor::poison(&gpu, Format::F32, [1, 1, 10], 8, false);
        let dx = Tensor::poison(&gpu, Format::F32, [1, 1, 10], 8, false);
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x.view, act, y.view) }.unwrap();
        // SAFETY: as above.
        unsafe { kernel.gradient(x.view, dy.view, act, dx.view, false) }.unwrap();
        let (mut want, mut want_dx) = (vec![0.0f64; 80], vec![0.0f64; 80]);
        let shape = [1, 1, 10, 8];
        activation(CpuView::new(&xs, shape, 8), ViewMut::new(&mut want, shape, 8), act, false);
        let (vx, vdy) = (CpuView::new(&xs, shape, 8), CpuView::new(&dys, shape, 8));
        activation_grad(vx, vdy, ViewMut::new(&mut want_dx, shape, 8), act, false);
        for (i, (got, want)) in y.read().iter().chain(&dx.read()).zip(want.iter().chain(&want_dx)).enumerate() {
            let same = got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= 1e-5 * want.abs() + 1e-6;
            assert!(same, "{act:?} of {}: {got} instead of {want}", xs[i % 80]);
        }
    }
}

#[test]
fn sums_of_up_to_eight_round_once() {
    let Some(gpu) = gpu() else { return };
    check_sums(&gpu, &[3, 66, 180], &PICTURES);
}

fn check_sums(gpu: &Gpu, channels: &[usize], pictures: &[[usize; 3]]) {
    let (kernel, mut r) = (Add::load(gpu).unwrap(), Random::new());
    for format in FORMATS {
        for count in 1..=8 {
            for &channels in channels {
                let picture = pictures[r.below(pictures.len())];
                let inputs: Vec<(Tensor, Vec<f64>)> = (0..count)
                    .map(|_| {
                        let strided = r.flag();
                        Tensor::filled(gpu, format, picture, channels, strided, || r.normal())
                    })
                    .collect();
                let y = Tensor::poison(gpu, format, picture, channels, r.flag());
                let views: Vec<_> = inputs.iter().map(|t| t.0.view).collect();
                // SAFETY: buffers of these extents.
                unsafe { kernel.run(&views, y.view) }.unwrap();
                let want: Vec<f64> = (0..y.view.elements())
                    .map(|i| {
                        let sum = inputs[1..].iter().fold(inputs[0].1[i] as f32, |sum, t| sum + t.1[i] as f32);
                        rounded(format, f64::from(sum))
                    })
                    .collect();
                assert_eq!(y.read(), want, "{format:?} {count} {picture:?} {channels}");
            }
        }
    }
}

#[test]
fn nine_inputs_and_unequal_shapes_are_errors() {
    let Some(gpu) = gpu() else { return };
    let kernel = Add::load(&gpu).unwrap();
    let y = Tensor::poison(&gpu, Format::F32, [1, 2, 2], 8, false);
    let other = Tensor::poison(&gpu, Format::F32, [1, 2, 3], 8, false);
    let half = Tensor::poison(&gpu, Format::Bf16, [1, 2, 2], 8, false);
    for inputs in [vec![], vec![y.view; 9], vec![y.view, other.view], vec![half.view]] {
        // SAFETY: nothing is launched.
        assert!(unsafe { kernel.run(&inputs, y.view) }.is_err());
    }
}

#[test]
fn copies_between_all_types_and_pitches_are_exact() {
    let Some(gpu) = gpu() else { return };
    check_copies(&gpu, &CHANNELS, &PICTURES);
}

fn check_copies(gpu: &Gpu, channels: &[usize], pictures: &[[usize; 3]]) {
    let (kernel, mut r) = (Copy::load(gpu).unwrap(), Random::new());
    for from in FORMATS {
        for to in FORMATS {
            for &channels in channels {
                for accumulate in [false, true] {
                    let picture = pictures[r.below(pictures.len())];
                    let strided = [r.flag(), r.flag()];
                    let (x, xs) = Tensor::filled(gpu, from, picture, channels, strided[0], || r.normal());
                    let (y, before) = match accumulate {
                        true => Tensor::filled(gpu, to, picture, channels, strided[1], || r.normal()),
                        false => (Tensor::poison(gpu, to, picture, channels, strided[1]), vec![0.0; xs.len()]),
                    };
                    // SAFETY: buffers of these extents.
                    unsafe { kernel.run(x.view, y.view, accumulate) }.unwrap();
                    let sum = |(x, y): (&f64, &f64)| rounded(to, f64::from(*y as f32 + *x as f32));
                    let want: Vec<f64> = xs.iter().zip(&before).map(sum).collect();
                    assert_eq!(y.read(), want, "{from:?} to {to:?} {picture:?} {channels} {accumulate}");
                }
            }
        }
    }
}

#[test]
fn a_flat_gradient_takes_weight_gradients() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Copy::load(&gpu).unwrap(), Random::new());
    for len in [8, 2304, 100_008] {
        let (x, xs) = Tensor::filled(&gpu, Format::Bf16, [1, 1, len / 8], 8, false, || r.normal());
        let before = values(len, len, || r.normal());
        let y = Vector::new(&gpu, &before);
        let x = Copy::flat(x.view.at, Format::Bf16, len);
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x, Copy::flat(y.at(), Format::F32, len), true) }.unwrap();
        let want: Vec<f64> = xs.iter().zip(&before).map(|(x, y)| f64::from(*y as f32 + *x as f32)).collect();
        assert_eq!(y.read(), want);
    }
}

#[test]
fn zeros_fill_a_range_and_nothing_beside_it() {
    let Some(gpu) = gpu() else { return };
    check_zeros(&gpu, &PICTURES);
}

fn check_zeros(gpu: &Gpu, pictures: &[[usize; 3]]) {
    let kernel = Fill::load(gpu).unwrap();
    for format in FORMATS {
        for &picture in pictures {
            for strided in [false, true] {
                let y = Tensor::poison(gpu, format, picture, 60, strided);
                // SAFETY: a buffer of this extent.
                unsafe { kernel.zero(y.view) }.unwrap();
                assert!(y.read().iter().all(|&v| v == 0.0));
            }
        }
    }
}

#[test]
fn biases_are_added_and_their_gradients_are_column_sums() {
    let Some(gpu) = gpu() else { return };
    check_biases(&gpu, &CHANNELS, &pictures());
}

fn check_biases(gpu: &Gpu, channels: &[usize], pictures: &[[usize; 3]]) {
    let (kernel, mut r) = (Bias::load(gpu).unwrap(), Random::new());
    for format in FORMATS {
        for act in ACTIVATIONS {
            for &channels in channels {
                let picture = pictures[r.below(pictures.len())];
                let strided = r.flag();
                let what = format!("{format:?} {act:?} {picture:?} {channels}");
                let (y, before) = Tensor::filled(gpu, format, picture, channels, strided, || r.normal());
                let (shape, c, pixels) = (shape(&y), y.view.c, y.view.pixels());
                let bias = values(c, channels, || r.normal());
                let vector = Vector::new(gpu, &bias);
                let old = values(c, channels, || r.normal());
                let gradient = Vector::new(gpu, &old);
                let room = scratch(gpu, Bias::scratch(pixels, c));
                // SAFETY: buffers of these extents.
                unsafe { kernel.gradient(y.view, gradient.at(), room.address()) }.unwrap();
                let mut want = old;
                before.iter().enumerate().for_each(|(i, v)| want[i % c] += v);
                assert_near(&format!("gradient {what}"), &gradient.read(), &want, 1e-5);
                // SAFETY: as above.
                unsafe { kernel.run(y.view, vector.at(), act) }.unwrap();
                let sums: Vec<f64> = before.iter().enumerate().map(|(i, v)| v + bias[i % c]).collect();
                let mut want = vec![0.0; sums.len()];
                activation(CpuView::new(&sums, shape, c), ViewMut::new(&mut want, shape, c), act, false);
                assert_near(&what, &y.read(), &want, bound(format));
            }
        }
    }
}

/// Every kernel of this file over few pixels: what compute-sanitizer gets through.
#[test]
fn small_shapes() {
    let Some(gpu) = gpu() else { return };
    let (channels, pictures) = ([3, 66], [[1, 5, 7], [2, 1, 9]]);
    check_normalize(&gpu, &pictures);
    check_activations(&gpu, &channels, &pictures);
    check_sums(&gpu, &channels, &pictures);
    check_copies(&gpu, &channels, &pictures);
    check_zeros(&gpu, &pictures);
    check_biases(&gpu, &channels, &pictures);
}

#[test]
fn offsets_beyond_32_bits_reach_their_pixels() {
    let Some(gpu) = gpu() else { return };
    let pitch = (1usize << 31) + 8;
    let bytes = (2 * pitch + 8) * 2;
    if gpu.memory().unwrap().0 < bytes as u64 + (1 << 30) {
        eprintln!("skipped: less than {bytes} bytes of memory free");
        return;
    }
    let mut far = gpu.allocate(bytes).unwrap();
    let copy = Copy::load(&gpu).unwrap();
    let values: Vec<u16> = (0..24).map(|i| half::bf16::from_f32(i as f32 + 1.0).to_bits()).collect();
    for (pixel, eight) in values.chunks(8).enumerate() {
        far.write(pixel * pitch * 2, eight).unwrap();
    }
    let near = gpu.allocate(48).unwrap();
    let wide = View { at: far.address(), format: Format::Bf16, n: 1, h: 1, w: 3, c: 8, pitch };
    let packed = View { at: near.address(), pitch: 8, ..wide };
    // SAFETY: buffers of these extents.
    unsafe { copy.run(wide, packed, false) }.unwrap();
    assert_eq!(near.read::<u16>(0, 24).unwrap(), values);
    // SAFETY: as above.
    unsafe { Fill::load(&gpu).unwrap().zero(wide) }.unwrap();
    for pixel in 0..3 {
        assert_eq!(far.read::<u16>(pixel * pitch * 2, 8).unwrap(), [0; 8]);
    }
}
