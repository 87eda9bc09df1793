//! Activations, sums, copies.

use crate::common::*;
use cpu::element::Element;
use cpu::kernels::*;

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
