//! Convolution and its two gradients.

use crate::common::*;
use cpu::element::Element;
use cpu::kernels::conv::*;
use cpu::kernels::*;

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
