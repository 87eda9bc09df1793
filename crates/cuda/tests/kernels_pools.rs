//! Pools and resizing against the CPU's in float64.

mod kernels_common;

use cpu::kernels::{self as k, View as CpuView, ViewMut};
use cuda::kernels::{AveragePool, MaxPool, Resize};
use cuda::{Format, Gpu};
use graph::ops::PoolAttrs;
use kernels_common::*;

fn attrs(p: PoolAttrs) -> k::PoolAttrs {
    k::PoolAttrs { kernel: p.kernel, stride: p.stride, pad: p.pad }
}

fn shape(t: &Tensor) -> [usize; 4] {
    [t.view.n, t.view.h, t.view.w, t.view.c]
}

/// Windows that fit a picture: those of the models, and others.
fn pools() -> Vec<PoolAttrs> {
    [(5, 1, 2), (2, 1, 0), (2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 1), (4, 3, 1), (1, 1, 0), (9, 2, 4), (13, 1, 6)]
        .map(|(kernel, stride, pad)| PoolAttrs { kernel, stride, pad })
        .to_vec()
}

/// A target of accumulation, or poison.
fn target(
    gpu: &Gpu,
    format: Format,
    picture: [usize; 3],
    channels: usize,
    accumulate: bool,
    r: &mut Random,
    mut f: impl FnMut(&mut Random) -> f64,
) -> (Tensor, Vec<f64>) {
    let strided = r.flag();
    if accumulate {
        return Tensor::filled(gpu, format, picture, channels, strided, || f(r));
    }
    let t = Tensor::poison(gpu, format, picture, channels, strided);
    let zeros = vec![0.0; t.view.elements()];
    (t, zeros)
}

/// Runs `check` for every pool that fits each picture, over all types.
fn for_each(r: &mut Random, mut check: impl FnMut(Format, [usize; 3], [usize; 3], usize, PoolAttrs, &mut Random)) {
    for format in FORMATS {
        for picture @ [n, h, w] in [[1, 1, 1], [1, 5, 7], [3, 13, 9], [2, 20, 20], [1, 41, 37]] {
            for pool in pools() {
                if h + 2 * pool.pad < pool.kernel || w + 2 * pool.pad < pool.kernel {
                    continue;
                }
                let channels = CHANNELS[r.below(CHANNELS.len())];
                check(format, picture, [n, pool.output(h), pool.output(w)], channels, pool, r);
            }
        }
    }
}

#[test]
fn max_pool_takes_the_largest_and_gives_its_gradient_to_the_first_of_them() {
    let Some(gpu) = gpu() else { return };
    let kernel = MaxPool::load(&gpu).unwrap();
    for_each(&mut Random::new(), |format, picture, out, channels, pool, r| {
        let what = format!("{format:?} {picture:?} {channels} {pool:?}");
        // Few different values: most windows have several maxima.
        let strided = [r.flag(), r.flag(), r.flag()];
        let (x, xs) = Tensor::filled(&gpu, format, picture, channels, strided[0], || r.below(4) as f64 - 2.0);
        let y = Tensor::poison(&gpu, format, out, channels, strided[1]);
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x.view, y.view, pool) }.unwrap();
        let mut want = vec![0.0; y.view.elements()];
        let (vx, c) = (CpuView::new(&xs, shape(&x), x.view.c), x.view.c);
        k::max_pool(vx, ViewMut::new(&mut want, shape(&y), c), attrs(pool), false);
        assert_eq!(y.read(), want, "forward {what}");

        // Small whole numbers: sums are exact in every type.
        let (dy, dys) = Tensor::filled(&gpu, format, out, channels, strided[2], || r.below(3) as f64);
        for accumulate in [false, true] {
            let (dx, mut want) = target(&gpu, format, picture, channels, accumulate, r, |r| r.below(5) as f64);
            let room = scratch(&gpu, MaxPool::scratch(dy.view.pixels(), c, pool));
            // SAFETY: as above.
            unsafe { kernel.gradient(x.view, dy.view, dx.view, pool, accumulate, room.address()) }.unwrap();
            let vdy = CpuView::new(&dys, shape(&dy), c);
            k::max_pool_grad(vx, vdy, ViewMut::new(&mut want, shape(&x), c), attrs(pool), accumulate);
            let want: Vec<f64> = want.into_iter().map(|v| rounded(format, v)).collect();
            assert_eq!(dx.read(), want, "gradient {accumulate} {what}");
        }
    });
}

#[test]
fn a_window_larger_than_a_byte_can_count_hands_its_gradient_on() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (MaxPool::load(&gpu).unwrap(), Random::new());
    let pool = PoolAttrs { kernel: 21, stride: 4, pad: 3 };
    for format in FORMATS {
        let (x, xs) = Tensor::filled(&gpu, format, [2, 40, 33], 20, true, || r.below(7) as f64);
        let out = [2, pool.output(40), pool.output(33)];
        let (dy, dys) = Tensor::filled(&gpu, format, out, 20, false, || r.below(3) as f64);
        let dx = Tensor::poison(&gpu, format, [2, 40, 33], 20, true);
        let room = scratch(&gpu, MaxPool::scratch(dy.view.pixels(), 24, pool));
        // SAFETY: buffers of these extents.
        unsafe { kernel.gradient(x.view, dy.view, dx.view, pool, false, room.address()) }.unwrap();
        let mut want = vec![0.0; xs.len()];
        let (vx, vdy) = (CpuView::new(&xs, shape(&x), 24), CpuView::new(&dys, shape(&dy), 24));
        k::max_pool_grad(vx, vdy, ViewMut::new(&mut want, shape(&x), 24), attrs(pool), false);
        assert_eq!(dx.read(), want, "{format:?}");
    }
}

#[test]
fn nan_wins_a_window_and_infinities_keep_their_order() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (MaxPool::load(&gpu).unwrap(), Random::new());
    for format in FORMATS {
        for pool in pools() {
            let draw = |r: &mut Random| match r.below(12) {
                0 => f64::NAN,
                1 => f64::INFINITY,
                2..=5 => f64::NEG_INFINITY,
                _ => r.normal(),
            };
            let picture = [1, 14, 15];
            let (x, xs) = Tensor::filled(&gpu, format, picture, 8, false, || draw(&mut r));
            let out = [1, pool.output(14), pool.output(15)];
            let y = Tensor::poison(&gpu, format, out, 8, true);
            // SAFETY: buffers of these extents.
            unsafe { kernel.run(x.view, y.view, pool) }.unwrap();
            let mut want = vec![0.0; y.view.elements()];
            let vx = CpuView::new(&xs, shape(&x), 8);
            k::max_pool(vx, ViewMut::new(&mut want, shape(&y), 8), attrs(pool), false);
            let bits = |v: &[f64]| v.iter().map(|v| if v.is_nan() { None } else { Some(*v) }).collect::<Vec<_>>();
            assert_eq!(bits(&y.read()), bits(&want), "{format:?} {pool:?}");
            let (dy, dys) = Tensor::filled(&gpu, format, out, 8, false, || r.below(3) as f64);
            let dx = Tensor::poison(&gpu, format, picture, 8, false);
            let room = scratch(&gpu, MaxPool::scratch(dy.view.pixels(), 8, pool));
            // SAFETY: as above.
            unsafe { kernel.gradient(x.view, dy.view, dx.view, pool, false, room.address()) }.unwrap();
            let mut want = vec![0.0; xs.len()];
            let vdy = CpuView::new(&dys, shape(&dy), 8);
            k::max_pool_grad(vx, vdy, ViewMut::new(&mut want, shape(&x), 8), attrs(pool), false);
            assert_eq!(dx.read(), want, "gradient {format:?} {pool:?}");
        }
    }
}

#[test]
fn windows_of_five_meet_at_the_sides_of_tiles() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (MaxPool::load(&gpu).unwrap(), Random::new());
    let pool = PoolAttrs { kernel: 5, stride: 1, pad: 2 };
    // One tile, tiles beside and above each other, the last ones smaller.
    for [h, w] in [[1, 1], [3, 7], [20, 20], [21, 13], [13, 22], [40, 40], [45, 3], [61, 43]] {
        for (channels, format) in [8, 24, 40].into_iter().flat_map(|c| FORMATS.map(|f| (c, f))) {
            // Ties, zeros of both signs, and NaN in few tiles: those take another way.
            let draw = |r: &mut Random| match r.below(2000) {
                0 => f64::NAN,
                1..=400 => -0.0,
                _ => r.below(6) as f64 - 3.0,
            };
            let (picture, what) = ([2, h, w], format!("{format:?} {h}x{w}, {channels} channels"));
            let strided = [r.flag(), r.flag(), r.flag()];
            let (x, xs) = Tensor::filled(&gpu, format, picture, channels, strided[0], || draw(&mut r));
            let y = Tensor::poison(&gpu, format, picture, channels, strided[1]);
            // SAFETY: buffers of these extents.
            unsafe { kernel.run(x.view, y.view, pool) }.unwrap();
            let mut want = vec![0.0; y.view.elements()];
            let vx = CpuView::new(&xs, shape(&x), channels);
            k::max_pool(vx, ViewMut::new(&mut want, shape(&y), channels), attrs(pool), false);
            let same = y.read().iter().zip(&want).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
            assert!(same, "forward {what}");
            let (dy, dys) = Tensor::filled(&gpu, format, picture, channels, strided[2], || r.below(3) as f64);
            for accumulate in [false, true] {
                let (dx, mut want) = target(&gpu, format, picture, channels, accumulate, &mut r, |r| r.below(5) as f64);
                // SAFETY: as above; these windows take no scratch.
                unsafe { kernel.gradient(x.view, dy.view, dx.view, pool, accumulate, 0) }.unwrap();
                let vdy = CpuView::new(&dys, shape(&dy), channels);
                k::max_pool_grad(vx, vdy, ViewMut::new(&mut want, shape(&x), channels), attrs(pool), accumulate);
                assert_eq!(dx.read(), want, "gradient {accumulate} {what}");
            }
        }
    }
    assert_eq!(MaxPool::scratch(1000, 64, pool), 0);
}

#[test]
fn average_pool_counts_padding_as_zero() {
    let Some(gpu) = gpu() else { return };
    let kernel = AveragePool::load(&gpu).unwrap();
    for_each(&mut Random::new(), |format, picture, out, channels, pool, r| {
        let what = format!("{format:?} {picture:?} {channels} {pool:?}");
        let strided = [r.flag(), r.flag(), r.flag()];
        let (x, xs) = Tensor::filled(&gpu, format, picture, channels, strided[0], || r.normal() + 0.5);
        let y = Tensor::poison(&gpu, format, out, channels, strided[1]);
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(x.view, y.view, pool) }.unwrap();
        let (mut want, c) = (vec![0.0; y.view.elements()], x.view.c);
        let vx = CpuView::new(&xs, shape(&x), c);
        k::average_pool(vx, ViewMut::new(&mut want, shape(&y), c), attrs(pool), false);
        assert_near(&format!("forward {what}"), &y.read(), &want, bound(format));
        let (dy, dys) = Tensor::filled(&gpu, format, out, channels, strided[2], || r.normal() + 0.5);
        for accumulate in [false, true] {
            let (dx, mut want) = target(&gpu, format, picture, channels, accumulate, r, Random::normal);
            // SAFETY: as above.
            unsafe { kernel.gradient(dy.view, dx.view, pool, accumulate) }.unwrap();
            let vdy = CpuView::new(&dys, shape(&dy), c);
            k::average_pool_grad(vdy, ViewMut::new(&mut want, shape(&x), c), attrs(pool), accumulate);
            assert_near(&format!("gradient {accumulate} {what}"), &dx.read(), &want, bound(format));
        }
    });
}

#[test]
fn resizing_takes_the_nearest_and_its_gradient_sums_what_took_it() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Resize::load(&gpu).unwrap(), Random::new());
    let sizes = [
        ([1, 1], [2, 2]),
        ([5, 7], [10, 14]),
        ([13, 9], [7, 20]),
        ([20, 20], [40, 40]),
        ([9, 4], [3, 1]),
        ([3, 3], [3, 3]),
    ];
    for format in FORMATS {
        for (from, to) in sizes {
            let channels = CHANNELS[r.below(CHANNELS.len())];
            let n = 1 + r.below(3);
            let (source, large) = ([n, from[0], from[1]], [n, to[0], to[1]]);
            let strided = [r.flag(), r.flag(), r.flag()];
            let what = format!("{format:?} {source:?} to {large:?} {channels}");
            let (x, xs) = Tensor::filled(&gpu, format, source, channels, strided[0], || r.normal());
            let y = Tensor::poison(&gpu, format, large, channels, strided[1]);
            // SAFETY: buffers of these extents.
            unsafe { kernel.run(x.view, y.view) }.unwrap();
            let (mut want, c) = (vec![0.0; y.view.elements()], x.view.c);
            let vx = CpuView::new(&xs, shape(&x), c);
            k::resize_nearest(vx, ViewMut::new(&mut want, shape(&y), c), false);
            assert_eq!(y.read(), want, "forward {what}");
            let (dy, dys) = Tensor::filled(&gpu, format, large, channels, strided[2], || r.normal());
            for accumulate in [false, true] {
                let (dx, mut want) = target(&gpu, format, source, channels, accumulate, &mut r, Random::normal);
                // SAFETY: as above.
                unsafe { kernel.gradient(dy.view, dx.view, accumulate) }.unwrap();
                let vdy = CpuView::new(&dys, shape(&dy), c);
                k::resize_nearest_grad(vdy, ViewMut::new(&mut want, shape(&x), c), accumulate);
                assert_near(&format!("gradient {accumulate} {what}"), &dx.read(), &want, bound(format));
            }
        }
    }
}
