//! Pools and resizing.

use crate::common::*;
use cpu::element::Element;
use cpu::kernels::*;

/// Shape and the kernel's index of a pixel, for the pools.
fn at(s: [usize; 4], n: usize, y: usize, x: usize, c: usize) -> usize {
    ((n * s[1] + y) * s[2] + x) * s[3] + c
}

fn check_pools<T: Element>() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for (kernel, stride, pad) in [(2, 2, 0), (3, 2, 1), (5, 1, 2), (2, 1, 0), (13, 1, 6), (3, 3, 1), (2, 3, 0)] {
        let attrs = PoolAttrs { kernel, stride, pad };
        let c = rng.pick(&[3, 8, 19, 20]);
        let size = rng.pick(&[[7, 5], [8, 11], [9, 9]]);
        let s = [2, size[0], size[1], c];
        let o = [2, attrs.output_len(s[1]), attrs.output_len(s[2]), c];
        // Few distinct values, so that ties are common.
        let xs: Vec<f64> = (0..len(s)).map(|_| rng.below(5) as f64 - 7.0).collect();
        let (dys, old) = (rng.values(len(o)), rng.values(len(s)));
        let (mut max, mut mean) = (vec![f64::NEG_INFINITY; len(o)], vec![0.0; len(o)]);
        let (mut max_dx, mut mean_dx) = (vec![0.0; len(s)], vec![0.0; len(s)]);
        for (n, i, j, k) in (0..len(o)).map(|e| (e / c / o[2] / o[1], e / c / o[2] % o[1], e / c % o[2], e % c)) {
            let out = at(o, n, i, j, k);
            let mut first = None;
            for r in (i * stride..i * stride + kernel).filter(|r| *r >= pad && r - pad < s[1]) {
                for q in (j * stride..j * stride + kernel).filter(|q| *q >= pad && q - pad < s[2]) {
                    let v = at(s, n, r - pad, q - pad, k);
                    mean[out] += xs[v] / (kernel * kernel) as f64;
                    mean_dx[v] += dys[out] / (kernel * kernel) as f64;
                    if xs[v] > max[out] {
                        max[out] = xs[v];
                        first = Some(v);
                    }
                }
            }
            if let Some(v) = first {
                max_dx[v] += dys[out];
            }
        }
        let xt = Tensor::<T>::random_layout(&xs, s, &mut rng);
        let dyt = Tensor::<T>::random_layout(&dys, o, &mut rng);
        let what = format!("{attrs:?} {s:?}");
        for accumulate in [false, true] {
            let plus = |want: &[f64], old: &[f64]| -> Vec<f64> {
                want.iter().zip(old).map(|(w, o)| if accumulate { w + o } else { *w }).collect()
            };
            let (a, b, p, q) = on_both(|| {
                let mut a = Tensor::<T>::new(&dys, o, 1, 2);
                let mut b = Tensor::<T>::new(&dys, o, 1, 2);
                max_pool(xt.view(), a.view_mut(), attrs, accumulate);
                average_pool(xt.view(), b.view_mut(), attrs, accumulate);
                let mut p = Tensor::<T>::new(&old, s, 1, 2);
                let mut q = Tensor::<T>::new(&old, s, 1, 2);
                max_pool_grad(xt.view(), dyt.view(), p.view_mut(), attrs, accumulate);
                average_pool_grad(dyt.view(), q.view_mut(), attrs, accumulate);
                (a.values(), b.values(), p.values(), q.values())
            });
            assert_near::<T>(&a, &plus(&max, &dys), &format!("max {what}"));
            assert_near::<T>(&b, &plus(&mean, &dys), &format!("average {what}"));
            assert_near::<T>(&p, &plus(&max_dx, &old), &format!("max gradient {what}"));
            assert_near::<T>(&q, &plus(&mean_dx, &old), &format!("average gradient {what}"));
        }
    }
}

#[test]
fn pools_equal_plain_loops_and_ties_go_to_the_first_maximum() {
    check_pools::<f32>();
    check_pools::<f64>();
}

#[test]
fn nearest_resize_equals_plain_loops() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for (from, to) in [([5, 7], [10, 14]), ([7, 5], [3, 9]), ([1, 1], [4, 5]), ([20, 20], [40, 39]), ([6, 6], [6, 6])] {
        let c = rng.pick(&[3, 16, 19]);
        let (s, o) = ([2, from[0], from[1], c], [2, to[0], to[1], c]);
        let (xs, dys, old) = (rng.values(len(s)), rng.values(len(o)), rng.values(len(s)));
        let (mut want, mut want_dx) = (vec![0.0; len(o)], old.clone());
        for e in 0..len(o) {
            let (n, i, j, k) = (e / c / o[2] / o[1], e / c / o[2] % o[1], e / c % o[2], e % c);
            let v = at(s, n, i * s[1] / o[1], j * s[2] / o[2], k);
            want[e] = xs[v];
            want_dx[v] += dys[e];
        }
        let xt = Tensor::<f64>::random_layout(&xs, s, &mut rng);
        let dyt = Tensor::<f64>::random_layout(&dys, o, &mut rng);
        let mut y = Tensor::<f64>::random_layout(&dys, o, &mut rng);
        resize_nearest(xt.view(), y.view_mut(), false);
        assert_near::<f64>(&y.values(), &want, "resize");
        let mut dx = Tensor::<f64>::random_layout(&old, s, &mut rng);
        resize_nearest_grad(dyt.view(), dx.view_mut(), true);
        assert_near::<f64>(&dx.values(), &want_dx, "resize gradient");
    }
}

#[test]
fn max_pool_passes_nan_on() {
    let x = [1.0f32, f32::NAN, 2.0, 3.0];
    let mut y = [0.0f32];
    let attrs = PoolAttrs { kernel: 2, stride: 2, pad: 0 };
    max_pool(View::new(&x, [1, 2, 2, 1], 1), ViewMut::new(&mut y, [1, 1, 1, 1], 1), attrs, false);
    assert!(y[0].is_nan());
}
