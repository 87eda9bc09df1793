//! Batch norm with activation and residual, one and two branches.

use crate::common::*;
use cpu::element::Element;
use cpu::kernels::batch_norm::*;
use cpu::kernels::*;

struct BnCase {
    shape: [usize; 4],
    act: Activation,
    xs: Vec<Vec<f64>>,
    gamma: Vec<Vec<f64>>,
    beta: Vec<Vec<f64>>,
    dy: Vec<f64>,
    residual: Option<Vec<f64>>,
}

const EPS: f64 = 1e-3;

impl BnCase {
    fn new(rng: &mut Rng, shape: [usize; 4], branches: usize, act: Activation) -> Self {
        let c = shape[3];
        let mut many = |n: usize, offset: f64| -> Vec<Vec<f64>> {
            (0..branches).map(|_| rng.values(n).iter().map(|v| f64::from((v + offset) as f32)).collect()).collect()
        };
        let (xs, gamma, beta) = (many(len(shape), 0.5), many(c, 1.2), many(c, 0.0));
        let dy = rng.values(len(shape));
        let residual = (rng.below(2) == 0).then(|| rng.values(len(shape)));
        Self { shape, act, xs, gamma, beta, dy, residual }
    }

    fn stats(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let c = self.shape[3];
        let n = (len(self.shape) / c) as f64;
        let mean: Vec<f64> = (0..c).map(|k| x.iter().skip(k).step_by(c).sum::<f64>() / n).collect();
        let square = |k: usize| x.iter().skip(k).step_by(c).map(|v| (v - mean[k]).powi(2)).sum::<f64>() / n;
        let var = (0..c).map(square).collect();
        (mean, var)
    }

    /// z before the activation, with the batch's own statistics.
    fn z(&self, xs: &[Vec<f64>]) -> Vec<f64> {
        let c = self.shape[3];
        let mut z = vec![0.0; len(self.shape)];
        for (b, x) in xs.iter().enumerate() {
            let (mean, var) = self.stats(x);
            for (i, z) in z.iter_mut().enumerate() {
                let k = i % c;
                *z += self.gamma[b][k] * (x[i] - mean[k]) / (var[k] + EPS).sqrt() + self.beta[b][k];
            }
        }
        z
    }

    fn loss(&self, xs: &[Vec<f64>]) -> f64 {
        self.z(xs).iter().zip(&self.dy).map(|(z, d)| act_f64(self.act, *z) * d).sum()
    }
}

fn check_batch_norm<T: Element>() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for (i, &c) in CHANNELS.iter().chain(&[16, 64, 8]).enumerate() {
        for branches in [1, 2] {
            let shape = [1 + rng.below(3), rng.pick(&[7, 12, 2]), rng.pick(&[5, 30]), c];
            let case = BnCase::new(&mut rng, shape, branches, ACTS[i % 4]);
            let what = format!("{shape:?} {:?} {branches} branches", case.act);
            let stats: Vec<_> = case.xs.iter().map(|x| case.stats(x)).collect();
            let xt: Vec<_> = case.xs.iter().map(|x| Tensor::<T>::random_layout(x, shape, &mut rng)).collect();
            let dyt = Tensor::<T>::random_layout(&case.dy, shape, &mut rng);
            let rt = case.residual.as_ref().map(|r| Tensor::<T>::random_layout(r, shape, &mut rng));

            for (x, (mean, var)) in xt.iter().zip(&stats) {
                let (m, v) = on_both(|| {
                    let (mut m, mut v) = (vec![T::zero(); c], vec![T::zero(); c]);
                    bn_stats(x.view(), &mut m, &mut v, &mut vec![T::nan(); bn_stats_scratch(shape)]);
                    (m, v)
                });
                assert_near::<T>(&m.iter().map(|v| v.as_f64()).collect::<Vec<_>>(), mean, &format!("mean {what}"));
                assert_near::<T>(&v.iter().map(|v| v.as_f64()).collect::<Vec<_>>(), var, &format!("variance {what}"));
            }

            let params: Vec<[Vec<T>; 4]> = (0..branches)
                .map(|b| [&stats[b].0, &stats[b].1, &case.gamma[b], &case.beta[b]].map(|v| elements::<T>(v)))
                .collect();
            let list: Vec<BnBranch<T>> = xt
                .iter()
                .zip(&params)
                .map(|(x, [mean, var, gamma, beta])| BnBranch { x: x.view(), mean, var, gamma, beta })
                .collect();
            let eps = T::of_f64(EPS);
            let z = case.z(&case.xs);
            let want: Vec<f64> =
                (0..z.len()).map(|i| act_f64(case.act, z[i]) + case.residual.as_ref().map_or(0.0, |r| r[i])).collect();
            let got = on_both(|| {
                let mut y = Tensor::<T>::new(&want, shape, 2, 1);
                fill(y.view_mut(), T::nan());
                bn_apply(&list, eps, case.act, rt.as_ref().map(|r| r.view()), y.view_mut());
                y.values()
            });
            assert_near::<T>(&got, &want, &format!("apply {what}"));

            let n = (len(shape) / c) as f64;
            let dz: Vec<f64> = z.iter().zip(&case.dy).map(|(z, d)| d * act_grad_f64(case.act, *z)).collect();
            let xhat = |b: usize, i: usize| (case.xs[b][i] - stats[b].0[i % c]) / (stats[b].1[i % c] + EPS).sqrt();
            let (mut s1, mut s2) = (vec![0.0; c], vec![vec![0.0; c]; branches]);
            for i in 0..dz.len() {
                s1[i % c] += dz[i];
                (0..branches).for_each(|b| s2[b][i % c] += dz[i] * xhat(b, i));
            }
            let (g1, g2, dgamma, dbeta) = on_both(|| {
                let mut g1 = vec![T::nan(); c];
                let mut g2 = vec![vec![T::nan(); c]; branches];
                let (mut dgamma, mut dbeta) = (vec![vec![T::one(); c]; branches], vec![vec![T::one(); c]; branches]);
                let mut slices: Vec<&mut [T]> = g2.iter_mut().map(|v| &mut v[..]).collect();
                let sums = BnSums { s1: &mut g1, s2: &mut slices };
                let mut grads: Vec<BnGrads<T>> =
                    dgamma.iter_mut().zip(&mut dbeta).map(|(g, b)| BnGrads { dgamma: g, dbeta: b }).collect();
                let mut scratch = vec![T::nan(); bn_reduce_scratch(shape, branches)];
                bn_reduce(dyt.view(), &list, eps, case.act, sums, &mut grads, &mut scratch);
                (g1, g2, dgamma, dbeta)
            });
            let plain = |v: &[T], less: f64| v.iter().map(|v| v.as_f64() - less).collect::<Vec<_>>();
            assert_near::<T>(&plain(&g1, 0.0), &s1, &format!("S1 {what}"));
            for b in 0..branches {
                assert_near::<T>(&plain(&g2[b], 0.0), &s2[b], &format!("S2 {what}"));
                assert_near::<T>(&plain(&dgamma[b], 1.0), &s2[b], &format!("dgamma {what}"));
                assert_near::<T>(&plain(&dbeta[b], 1.0), &s1, &format!("dbeta {what}"));
            }

            let flags: Vec<bool> = (0..branches).map(|_| rng.below(2) == 0).collect();
            let got = on_both(|| {
                let mut dx: Vec<_> = (0..branches).map(|b| Tensor::<T>::new(&case.dy, shape, b, 1 - b)).collect();
                let mut views: Vec<_> = dx.iter_mut().map(|d| d.view_mut()).collect();
                let sums: Vec<&[T]> = g2.iter().map(|v| &v[..]).collect();
                bn_backward(dyt.view(), &list, eps, case.act, &g1, &sums, n as usize, &mut views, &flags);
                dx.iter().map(|d| d.values()).collect::<Vec<_>>()
            });
            for b in 0..branches {
                let want: Vec<f64> = (0..dz.len())
                    .map(|i| {
                        let k = i % c;
                        let scale = case.gamma[b][k] / (stats[b].1[k] + EPS).sqrt();
                        let old = if flags[b] { case.dy[i] } else { 0.0 };
                        scale * (dz[i] - s1[k] / n - xhat(b, i) * s2[b][k] / n) + old
                    })
                    .collect();
                assert_near::<T>(&got[b], &want, &format!("dx {b} {what}"));
            }
        }
    }
}

#[test]
fn batch_norm_equals_plain_loops_f32() {
    check_batch_norm::<f32>();
}

#[test]
fn batch_norm_equals_plain_loops_f64() {
    check_batch_norm::<f64>();
}

#[test]
fn batch_norm_gradient_equals_central_differences() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for branches in [1, 2] {
        let shape = [2, 3, 4, 3];
        let mut case = BnCase::new(&mut rng, shape, branches, Activation::Silu);
        case.residual = None;
        let stats: Vec<_> = case.xs.iter().map(|x| case.stats(x)).collect();
        let list: Vec<BnBranch<f64>> = (0..branches)
            .map(|b| BnBranch {
                x: View::new(&case.xs[b], shape, 3),
                mean: &stats[b].0,
                var: &stats[b].1,
                gamma: &case.gamma[b],
                beta: &case.beta[b],
            })
            .collect();
        let dy = View::new(&case.dy, shape, 3);
        let (mut s1, mut s2) = (vec![0.0; 3], vec![vec![0.0; 3]; branches]);
        let mut slices: Vec<&mut [f64]> = s2.iter_mut().map(|v| &mut v[..]).collect();
        let mut scratch = vec![0.0; bn_reduce_scratch(shape, branches)];
        let sums = BnSums { s1: &mut s1, s2: &mut slices };
        bn_reduce(dy, &list, EPS, case.act, sums, &mut [], &mut scratch);
        let mut dx = vec![vec![0.0; len(shape)]; branches];
        let mut views: Vec<_> = dx.iter_mut().map(|d| ViewMut::new(d, shape, 3)).collect();
        let sums: Vec<&[f64]> = s2.iter().map(|v| &v[..]).collect();
        bn_backward(dy, &list, EPS, case.act, &s1, &sums, 24, &mut views, &vec![false; branches]);
        for b in 0..branches {
            for i in 0..len(shape) {
                let step = 1e-5;
                let mut moved = case.xs.clone();
                moved[b][i] += step;
                let up = case.loss(&moved);
                moved[b][i] -= 2.0 * step;
                let slope = (up - case.loss(&moved)) / (2.0 * step);
                assert!((slope - dx[b][i]).abs() < 1e-7, "branch {b} element {i}: {} against {slope}", dx[b][i]);
            }
        }
    }
}

#[test]
fn variance_survives_a_mean_a_million_times_larger() {
    let x: Vec<f64> = (0..4096).map(|i| 1e6 + f64::from(i % 2)).collect();
    let data: Vec<f32> = elements(&x);
    let shape = [1, 64, 64, 1];
    let (mut mean, mut var) = ([0.0f32], [0.0f32]);
    bn_stats(View::new(&data, shape, 1), &mut mean, &mut var, &mut vec![0.0; bn_stats_scratch(shape)]);
    assert!((var[0] - 0.25).abs() < 0.01, "variance {}", var[0]);
}
