//! Evaluation decoding against plain formulas, its layout and refusals.

use detect::decode::{DecodeError, anchors_per_image, decode};
use detect::{Branch, MapRef, Real};
use testkit::assert_close;

const SIZES: [(usize, usize); 2] = [(3, 4), (2, 2)];
const STRIDES: [usize; 2] = [8, 16];
const NC: usize = 3;
const BATCH: usize = 2;
const BOX_PITCH: usize = 68;
const CLASS_PITCH: usize = 5;

fn maps<T: Real>() -> Vec<(Vec<T>, Vec<T>)> {
    let fill = |name: String, n: usize| (0..n).map(|i| T::of(3.0 * testkit::fill_v(&name, i))).collect();
    let cells = |l: usize| BATCH * SIZES[l].0 * SIZES[l].1;
    // The last row ends with its channels, not with the pitch.
    (0..2)
        .map(|l| {
            let (boxes, classes) = ((cells(l) - 1) * BOX_PITCH + 64, (cells(l) - 1) * CLASS_PITCH + NC);
            (fill(format!("box.{l}"), boxes), fill(format!("class.{l}"), classes))
        })
        .collect()
}

fn check<T: Real>(tolerance: f64) {
    let data = maps::<T>();
    let boxes: Vec<_> =
        (0..2).map(|l| MapRef { data: &data[l].0, pitch: BOX_PITCH, h: SIZES[l].0, w: SIZES[l].1 }).collect();
    let classes: Vec<_> =
        (0..2).map(|l| MapRef { data: &data[l].1, pitch: CLASS_PITCH, h: SIZES[l].0, w: SIZES[l].1 }).collect();
    let branch = Branch { boxes: &boxes, classes: &classes };
    let anchors = anchors_per_image(&branch);
    assert_eq!(anchors, 16);
    let pitch = 9;
    let mut out = vec![T::of(-5.0); BATCH * anchors * pitch - 2];
    decode(&branch, &STRIDES, BATCH, NC, &mut out, pitch).unwrap();
    let mut row = 0;
    for image in 0..BATCH {
        for level in 0..2 {
            let (h, w) = SIZES[level];
            for cell in 0..h * w {
                let at = image * h * w + cell;
                let logits: Vec<f64> = data[level].0[at * BOX_PITCH..][..64].iter().map(|v| v.wide()).collect();
                let distance = |side: usize| {
                    let e: Vec<f64> = logits[side * 16..][..16].iter().map(|x| x.exp()).collect();
                    e.iter().enumerate().map(|(i, e)| i as f64 * e).sum::<f64>() / e.iter().sum::<f64>()
                };
                let stride = STRIDES[level] as f64;
                let (x, y) = ((cell % w) as f64 + 0.5, (cell / w) as f64 + 0.5);
                let (l, t, r, b) = (distance(0), distance(1), distance(2), distance(3));
                let mut want = vec![x + (r - l) / 2.0, y + (b - t) / 2.0, l + r, t + b];
                want.iter_mut().for_each(|v| *v *= stride);
                for logit in &data[level].1[at * CLASS_PITCH..][..NC] {
                    want.push(1.0 / (1.0 + (-logit.wide()).exp()));
                }
                let got: Vec<f64> = out[row * pitch..][..4 + NC].iter().map(|v| v.wide()).collect();
                assert_close(&format!("row {row}"), &got, &want, tolerance, tolerance);
                row += 1;
            }
        }
    }
    let padding = out.chunks(pitch).flat_map(|row| &row[4 + NC..]);
    assert!(padding.into_iter().all(|&v| v == T::of(-5.0)));
}

#[test]
fn boxes_and_scores_follow_the_formulas_in_both_precisions() {
    check::<f64>(1e-12);
    check::<f32>(1e-5);
}

#[test]
fn maps_and_outputs_that_do_not_fit_are_refused() {
    let data = maps::<f32>();
    let map = |v, pitch, l: usize| MapRef { data: v, pitch, h: SIZES[l].0, w: SIZES[l].1 };
    let boxes = [map(&data[0].0[..], BOX_PITCH, 0), map(&data[1].0[..], BOX_PITCH, 1)];
    let classes = [map(&data[0].1[..], CLASS_PITCH, 0), map(&data[1].1[..], CLASS_PITCH, 1)];
    let branch = Branch { boxes: &boxes, classes: &classes };
    let mut out = vec![0.0; BATCH * 16 * 7];
    assert_eq!(decode(&branch, &STRIDES, BATCH, NC, &mut out, 7), Ok(()));
    assert!(matches!(decode(&branch, &[8], BATCH, NC, &mut out, 7), Err(DecodeError::Levels { .. })));
    assert!(matches!(decode(&branch, &[8, 0], BATCH, NC, &mut out, 7), Err(DecodeError::Levels { .. })));
    assert!(matches!(decode(&branch, &STRIDES, BATCH, NC, &mut out, 6), Err(DecodeError::Output { .. })));
    let short = &mut out[..BATCH * 16 * 7 - 1];
    assert!(matches!(decode(&branch, &STRIDES, BATCH, NC, short, 7), Err(DecodeError::Output { .. })));
    let bigger = decode(&branch, &STRIDES, BATCH + 1, NC, &mut out, 7);
    assert!(matches!(bigger, Err(DecodeError::Map { level: 0, what: "box logits", .. })));
    let more = decode(&branch, &STRIDES, BATCH, NC + 3, &mut out, 10);
    assert!(matches!(more, Err(DecodeError::Map { level: 0, what: "class logits", .. })));
}
