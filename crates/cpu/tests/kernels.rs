//! Kernels against plain f64 loops on random shapes, pitches and strides, and against themselves on one and two threads.

use cpu::element::Element;
use cpu::kernels::batch_norm::*;
use cpu::kernels::conv::*;
use cpu::kernels::*;

/// A small generator (SplitMix64), so that the cases are the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    fn value(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
    }
    fn values(&mut self, n: usize) -> Vec<f64> {
        // Through f32, so that both element types start from the same numbers.
        (0..n).map(|_| f64::from(self.value() as f32)).collect()
    }
}

const SEED: u64 = 20_240_917;
const CHANNELS: [usize; 7] = [3, 19, 20, 60, 66, 90, 180];
/// What the elements between channels and pitch hold: they must stay.
const GUARD: f64 = 77.0;

fn elements<T: Element>(v: &[f64]) -> Vec<T> {
    v.iter().map(|v| T::of_f64(*v)).collect()
}

/// A tensor with guard elements around each pixel's channels.
struct Tensor<T> {
    data: Vec<T>,
    shape: [usize; 4],
    pitch: usize,
    first: usize,
}

impl<T: Element> Tensor<T> {
    fn new(values: &[f64], shape: [usize; 4], first: usize, after: usize) -> Self {
        let pitch = first + shape[3] + after;
        let mut data = vec![T::of_f64(GUARD); shape[0] * shape[1] * shape[2] * pitch];
        for (p, row) in data.chunks_exact_mut(pitch).enumerate() {
            for c in 0..shape[3] {
                row[first + c] = T::of_f64(values[p * shape[3] + c]);
            }
        }
        Self { data, shape, pitch, first }
    }
    fn random_layout(values: &[f64], shape: [usize; 4], rng: &mut Rng) -> Self {
        let (first, after) = (rng.pick(&[0, 0, 3, 8]), rng.pick(&[0, 0, 1, 5]));
        Self::new(values, shape, first, after)
    }
    fn view(&self) -> View<'_, T> {
        View::new(&self.data[self.first..], self.shape, self.pitch)
    }
    fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut::new(&mut self.data[self.first..], self.shape, self.pitch)
    }
    /// The values, after a look at the guards.
    fn values(&self) -> Vec<f64> {
        let mut out = Vec::new();
        for row in self.data.chunks_exact(self.pitch) {
            for (c, v) in row.iter().enumerate() {
                if (self.first..self.first + self.shape[3]).contains(&c) {
                    out.push(v.as_f64());
                } else {
                    assert_eq!(v.as_f64(), GUARD, "an element outside of the channels was written");
                }
            }
        }
        out
    }
}

fn tolerance<T: Element>() -> f64 {
    if size_of::<T>() == 4 { 2e-5 } else { 1e-12 }
}

#[track_caller]
fn assert_near<T: Element>(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance::<T>() * scale, "{what}: element {i} is {g}, want {w} (scale {scale})");
    }
}

fn pools() -> [rayon::ThreadPool; 2] {
    [1, 2].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool of threads"))
}

/// Runs `f` on one and on two threads, and asks for the same bits.
fn on_both<R: PartialEq + Send + std::fmt::Debug>(f: impl Fn() -> R + Sync) -> R {
    let [one, two] = pools().map(|p| p.install(&f));
    assert!(one == two, "one and two threads differ");
    one
}

fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

struct ConvCase {
    attrs: ConvAttrs,
    x: [usize; 4],
    y: [usize; 4],
}

fn conv_case(
    cin: usize,
    cout: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
    n: usize,
    size: [usize; 2],
) -> ConvCase {
    let attrs = ConvAttrs::square(kernel, stride, kernel / 2, groups);
    let [h, w] = attrs.output_size(size);
    ConvCase { attrs, x: [n, size[0], size[1], cin], y: [n, h, w, cout] }
}

fn conv_cases(rng: &mut Rng) -> Vec<ConvCase> {
    let mut cases = Vec::new();
    for &c in &CHANNELS {
        for (kernel, stride) in [(1, 1), (3, 1), (3, 2), (1, 2)] {
            let other = rng.pick(&[3, 8, 16, 19, 20, 24, 40]);
            let size = rng.pick(&[[7, 5], [1, 1], [6, 9], [13, 4]]);
            let n = 1 + rng.below(2);
            cases.push(conv_case(c, other, kernel, stride, 1, n, size));
            cases.push(conv_case(other, c, kernel, stride, 1, n, size));
        }
    }
    for stride in [1, 2] {
        cases.push(conv_case(60, 20, 3, stride, 4, 2, [7, 5]));
        cases.push(conv_case(64, 64, 3, stride, 4, 1, [9, 8]));
        cases.push(conv_case(12, 180, 1, stride, 4, 2, [5, 7]));
        cases.push(conv_case(6, 6, 3, stride, 6, 2, [5, 7]));
        cases.push(conv_case(5, 7, 5, stride, 1, 2, [9, 11]));
        cases.push(conv_case(4, 9, 2, stride, 1, 2, [6, 7]));
    }
    cases.push(conv_case(16, 16, 3, 1, 1, 3, [40, 41]));
    cases.push(conv_case(2, 3, 11, 1, 1, 1, [12, 12]));
    let attrs = ConvAttrs { kernel: [1, 3], stride: [2, 1], pad: [0, 2], groups: 1 };
    cases.push(ConvCase { attrs, x: [2, 7, 6, 10], y: [2, 4, 8, 11] });
    let attrs = ConvAttrs::square(3, 3, 0, 1);
    cases.push(ConvCase { attrs, x: [1, 11, 10, 9], y: [1, 3, 3, 17] });
    cases
}

/// Calls `f(x index, w index, y index)` for every product of a convolution.
fn each_product(case: &ConvCase, mut f: impl FnMut(usize, usize, usize)) {
    let ConvCase { attrs, x, y } = case;
    let (cpg, opg) = (x[3] / attrs.groups, y[3] / attrs.groups);
    for n in 0..y[0] {
        for oy in 0..y[1] {
            for ox in 0..y[2] {
                for ky in 0..attrs.kernel[0] {
                    for kx in 0..attrs.kernel[1] {
                        let iy = (oy * attrs.stride[0] + ky) as isize - attrs.pad[0] as isize;
                        let ix = (ox * attrs.stride[1] + kx) as isize - attrs.pad[1] as isize;
                        if iy < 0 || ix < 0 || iy >= x[1] as isize || ix >= x[2] as isize {
                            continue;
                        }
                        let xp = ((n * x[1] + iy as usize) * x[2] + ix as usize) * x[3];
                        let yp = ((n * y[1] + oy) * y[2] + ox) * y[3];
                        for co in 0..y[3] {
                            for ci in 0..cpg {
                                let w = ((co * attrs.kernel[0] + ky) * attrs.kernel[1] + kx) * cpg + ci;
                                f(xp + co / opg * cpg + ci, w, yp + co);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn act_f64(act: Activation, z: f64) -> f64 {
    match act {
        Activation::Identity => z,
        Activation::Silu => z / (1.0 + (-z).exp()),
        Activation::Relu => z.max(0.0),
        Activation::LeakyRelu(s) => {
            if z > 0.0 {
                z
            } else {
                z * f64::from(s)
            }
        }
    }
}

fn act_grad_f64(act: Activation, z: f64) -> f64 {
    match act {
        Activation::Identity => 1.0,
        Activation::Silu => {
            let s = 1.0 / (1.0 + (-z).exp());
            s * (1.0 + z * (1.0 - s))
        }
        Activation::Relu => {
            if z > 0.0 {
                1.0
            } else {
                0.0
            }
        }
        Activation::LeakyRelu(s) => {
            if z > 0.0 {
                1.0
            } else {
                f64::from(s)
            }
        }
    }
}

const ACTS: [Activation; 4] = [Activation::Identity, Activation::Silu, Activation::Relu, Activation::LeakyRelu(0.1)];

fn check_convolutions<T: Element>() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for case in conv_cases(&mut rng) {
        let ConvCase { attrs, x, y } = case;
        let what = format!("{attrs:?} {x:?} -> {y:?}");
        let weights = attrs.weight_len(x[3], y[3]);
        let (xs, ws, dys) = (rng.values(len(x)), rng.values(weights), rng.values(len(y)));
        let (bias, old_dx, old_dw, old_db) =
            (rng.values(y[3]), rng.values(len(x)), rng.values(weights), rng.values(y[3]));
        let (with_bias, act) = (rng.below(2) == 0, rng.pick(&ACTS));

        let mut want_y: Vec<f64> = (0..len(y)).map(|i| if with_bias { bias[i % y[3]] } else { 0.0 }).collect();
        let (mut want_dx, mut want_dw) = (vec![0.0; len(x)], old_dw.clone());
        each_product(&case, |xi, wi, yi| {
            want_y[yi] += xs[xi] * ws[wi];
            want_dx[xi] += dys[yi] * ws[wi];
            want_dw[wi] += dys[yi] * xs[xi];
        });
        want_y.iter_mut().for_each(|v| *v = act_f64(act, *v));
        let mut want_db = old_db.clone();
        dys.iter().enumerate().for_each(|(i, d)| want_db[i % y[3]] += d);

        let xt = Tensor::<T>::random_layout(&xs, x, &mut rng);
        let dyt = Tensor::<T>::random_layout(&dys, y, &mut rng);
        let (w, b) = (elements::<T>(&ws), elements::<T>(&bias));

        let layout = (rng.pick(&[0, 4]), rng.pick(&[0, 3]));
        let got = on_both(|| {
            let mut yt = Tensor::<T>::new(&vec![GUARD; len(y)], y, layout.0, layout.1);
            let mut scratch = vec![T::nan(); conv_forward_scratch(x[3], y[3], attrs)];
            conv_forward(xt.view(), &w, with_bias.then_some(&b[..]), Some(act), yt.view_mut(), attrs, &mut scratch);
            yt.values()
        });
        assert_near::<T>(&got, &want_y, &format!("forward {what} {act:?}"));

        for accumulate in [false, true] {
            let got = on_both(|| {
                let mut dx = Tensor::<T>::new(&old_dx, x, layout.0, layout.1);
                let mut scratch = vec![T::nan(); conv_data_grad_scratch(x[3], y[3], attrs)];
                conv_data_grad(dyt.view(), &w, dx.view_mut(), attrs, accumulate, &mut scratch);
                dx.values()
            });
            let want: Vec<f64> =
                want_dx.iter().zip(&old_dx).map(|(d, o)| if accumulate { d + o } else { *d }).collect();
            assert_near::<T>(&got, &want, &format!("data gradient {what}, accumulate {accumulate}"));
        }

        let (dw, db) = on_both(|| {
            let (mut dw, mut db) = (elements::<T>(&old_dw), elements::<T>(&old_db));
            let mut scratch = vec![T::nan(); conv_weight_grad_scratch(x, y[3], attrs)];
            conv_weight_grad(xt.view(), dyt.view(), &mut dw, with_bias.then_some(&mut db[..]), attrs, &mut scratch);
            (dw, db)
        });
        let dw: Vec<f64> = dw.iter().map(|v| v.as_f64()).collect();
        assert_near::<T>(&dw, &want_dw, &format!("weight gradient {what}"));
        if with_bias {
            let db: Vec<f64> = db.iter().map(|v| v.as_f64()).collect();
            assert_near::<T>(&db, &want_db, &format!("bias gradient {what}"));
        }
    }
}

#[test]
fn convolution_and_its_gradients_equal_plain_loops_f32() {
    check_convolutions::<f32>();
}

#[test]
fn convolution_and_its_gradients_equal_plain_loops_f64() {
    check_convolutions::<f64>();
}

#[test]
fn convolution_reads_and_writes_two_channel_ranges_of_one_buffer() {
    let mut rng = Rng(SEED);
    let (shape, pitch) = ([2, 5, 6, 8], 24);
    let mut buffer: Vec<f64> = rng.values(2 * 5 * 6 * pitch);
    let before = buffer.clone();
    let (attrs, w) = (ConvAttrs::square(3, 1, 1, 1), rng.values(8 * 9 * 8));
    let mut scratch = vec![0.0; conv_forward_scratch(8, 8, attrs)];
    let base = buffer.as_mut_ptr();
    // SAFETY: channels 0..8 are only read, 16..24 only written.
    let (x, y) = unsafe { (View::from_raw(base, shape, pitch), ViewMut::from_raw(base.add(16), shape, pitch)) };
    conv_forward(x, &w, None, None, y, attrs, &mut scratch);
    let case = ConvCase { attrs, x: shape, y: shape };
    let mut want = before.clone();
    (0..60).for_each(|p| want[p * pitch + 16..][..8].fill(0.0));
    each_product(&case, |x, wi, y| want[y / 8 * pitch + 16 + y % 8] += before[x / 8 * pitch + x % 8] * w[wi]);
    assert_near::<f64>(&buffer, &want, "ranges of one buffer");
}

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

fn check_pointwise<T: Element>() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for &c in &CHANNELS {
        let shape = [2, 7, 5, c];
        let (a, b, old) = (rng.values(len(shape)), rng.values(len(shape)), rng.values(len(shape)));
        for dense in [false, true] {
            let mut tensor = |v: &[f64]| match dense {
                true => Tensor::<T>::new(v, shape, 0, 0),
                false => Tensor::<T>::random_layout(v, shape, &mut rng),
            };
            let (at, bt, mut out) = (tensor(&a), tensor(&b), tensor(&old));
            for accumulate in [false, true] {
                let base = |i: usize| if accumulate { old[i] } else { 0.0 };
                for act in ACTS {
                    copy(Tensor::<T>::new(&old, shape, 0, 0).view(), out.view_mut(), false);
                    activation(at.view(), out.view_mut(), act, accumulate);
                    let want: Vec<f64> = (0..a.len()).map(|i| base(i) + act_f64(act, a[i])).collect();
                    assert_near::<T>(&out.values(), &want, "activation");
                    copy(Tensor::<T>::new(&old, shape, 0, 0).view(), out.view_mut(), false);
                    activation_grad(at.view(), bt.view(), out.view_mut(), act, accumulate);
                    let want: Vec<f64> = (0..a.len()).map(|i| base(i) + b[i] * act_grad_f64(act, a[i])).collect();
                    assert_near::<T>(&out.values(), &want, "activation gradient");
                }
                copy(Tensor::<T>::new(&old, shape, 0, 0).view(), out.view_mut(), false);
                add(&[at.view(), bt.view(), at.view()], out.view_mut(), accumulate);
                let want: Vec<f64> = (0..a.len()).map(|i| base(i) + 2.0 * a[i] + b[i]).collect();
                assert_near::<T>(&out.values(), &want, "sum");
            }
            fill(out.view_mut(), T::of_f64(3.0));
            assert!(out.values().iter().all(|v| *v == 3.0));
        }
    }
}

#[test]
fn pointwise_passes_equal_plain_loops() {
    check_pointwise::<f32>();
    check_pointwise::<f64>();
}

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
