//! Decoding and non-maximum suppression against `detect`.

mod kernels_common;

use cuda::kernels::{Decode, DecodeLevel, Nms, NmsBuffers, Predictions};
use cuda::{Format, Gpu};
use detect::external::DetectionTensors;
use detect::nms::{COLUMNS, Detection, NmsConfig, most_detections, suppress};
use detect::{Branch, MapRef};
use kernels_common::*;

/// Pictures, height, width and stride of each level, classes.
type Heads = (usize, Vec<(usize, usize, usize)>, usize);

#[test]
fn head_maps_decode_to_boxes_and_scores() {
    let Some(gpu) = gpu() else { return };
    check_decoding(
        &gpu,
        vec![
            (1, vec![(1, 1, 32)], 1),
            (2, vec![(8, 8, 8), (4, 4, 16), (2, 2, 32)], 80),
            (3, vec![(13, 21, 8), (7, 11, 16), (4, 6, 32)], 3),
            (1, vec![(20, 12, 8), (10, 6, 16), (5, 3, 32), (3, 2, 64)], 20),
        ],
    );
}

/// Decoding and suppression of few boxes: what compute-sanitizer gets through.
#[test]
fn small_shapes() {
    let Some(gpu) = gpu() else { return };
    check_decoding(&gpu, vec![(1, vec![(1, 1, 32)], 1), (2, vec![(4, 6, 8), (2, 3, 16)], 3)]);
    assert!(check_suppression(&gpu, &[(1, 1, 1), (2, 60, 3), (1, 40, 80)]) > 100);
}

fn check_decoding(gpu: &Gpu, cases: Vec<Heads>) {
    let (kernel, mut r) = (Decode::load(gpu).unwrap(), Random::new());
    for (images, sizes, nc) in cases {
        let maps: Vec<[(Tensor, Vec<f64>); 2]> = sizes
            .iter()
            .map(|&(h, w, _)| {
                [64, nc].map(|channels| {
                    let strided = r.flag();
                    Tensor::filled(gpu, Format::F32, [images, h, w], channels, strided, || r.normal() * 4.0)
                })
            })
            .collect();
        let levels: Vec<DecodeLevel> = maps
            .iter()
            .zip(&sizes)
            .map(|([b, c], size)| DecodeLevel { boxes: b.0.view, classes: c.0.view, stride: size.2 })
            .collect();
        let anchors: usize = sizes.iter().map(|s| s.0 * s.1).sum();
        let pitch = (4 + nc).next_multiple_of(8);
        let out = Vector::poison(gpu, images * anchors * pitch);
        // SAFETY: buffers of these extents.
        unsafe { kernel.run(&levels, nc, out.at(), pitch) }.unwrap();

        let narrow = |v: &[f64]| v.iter().map(|&v| v as f32).collect::<Vec<f32>>();
        let host: Vec<[Vec<f32>; 2]> = maps.iter().map(|m| m.each_ref().map(|t| narrow(&t.1))).collect();
        let of = |part: usize| -> Vec<MapRef<'_, f32>> {
            host.iter()
                .zip(&maps)
                .map(|(values, map)| {
                    let view = map[part].0.view;
                    MapRef { data: &values[part], pitch: view.c, h: view.h, w: view.w }
                })
                .collect()
        };
        let (boxes, classes) = (of(0), of(1));
        let strides: Vec<usize> = sizes.iter().map(|s| s.2).collect();
        // What lies beyond the scores is zero.
        let mut want = vec![0.0f32; images * anchors * pitch];
        let branch = Branch { boxes: &boxes, classes: &classes };
        detect::decode::decode(&branch, &strides, images, nc, &mut want, pitch).unwrap();
        for (i, (got, want)) in out.read().iter().zip(&want).enumerate() {
            let want = f64::from(*want);
            // Boxes are sums and differences of distances of up to 15 cells.
            let scale = if i % pitch < 4 { want.abs().max(100.0) } else { want.abs() };
            assert!((got - want).abs() <= 4e-6 * scale, "row {} column {}: {got} {want}", i / pitch, i % pitch);
        }
    }
}

/// Elements from one detection to the next.
const APART: usize = 8;

/// Suppresses on the card. What is left of the rows must be zero, and what lies between rows untouched.
fn on_card(gpu: &Gpu, kernel: &Nms, config: &NmsConfig, shape: Predictions, rows: &[f32]) -> Vec<Vec<Detection>> {
    let mut predictions = gpu.allocate(size_of_val(rows)).unwrap();
    predictions.write(0, rows).unwrap();
    let most = most_detections(config, shape.rows, shape.nc);
    let room = scratch(gpu, Nms::scratch(shape, config));
    let detections = Vector::poison(gpu, shape.images * most * APART);
    let found = Vector::poison(gpu, shape.images);
    let wanted = Nms::wanted(config, shape.nc).map(|table| {
        let mut buffer = gpu.allocate(table.len()).unwrap();
        buffer.write(0, &table).unwrap();
        buffer
    });
    let buffers = NmsBuffers {
        predictions: predictions.address(),
        wanted: wanted.as_ref().map(|b| b.address()),
        scratch: room.address(),
        detections: detections.at(),
        detections_pitch: APART,
        found: found.at(),
    };
    // SAFETY: buffers of these extents.
    unsafe { kernel.run(shape, config, &buffers) }.unwrap();
    let narrow = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect::<Vec<_>>();
    let (physical, found) = (narrow(detections.read()), narrow(found.read()));
    for (image, &count) in physical.chunks(most * APART).zip(&found) {
        let (all, rest) = (image.chunks(APART), image.chunks(APART).skip(count as usize));
        assert!(all.into_iter().all(|row| row[COLUMNS..].iter().all(|v| v.is_nan())), "{config:?}: between rows");
        assert!(rest.into_iter().all(|row| row[..COLUMNS] == [0.0; COLUMNS]), "{config:?}: after {count} rows");
    }
    let dense: Vec<f32> = physical.chunks(APART).flat_map(|row| row[..COLUMNS].iter().copied()).collect();
    DetectionTensors::read(&dense, &found)
}

fn check(gpu: &Gpu, kernel: &Nms, config: &NmsConfig, shape: Predictions, rows: &[f32]) -> usize {
    let per_image = shape.rows * shape.pitch;
    let got = on_card(gpu, kernel, config, shape, rows);
    for (i, got) in got.iter().enumerate() {
        let want = suppress(config, &rows[i * per_image..(i + 1) * per_image], shape.pitch, shape.nc);
        // By bits, so that corners that are not numbers compare too.
        let bits = |d: &[Detection]| -> Vec<([u32; 4], u32, u32)> {
            let corner = |v: f32| if v.is_nan() { u32::MAX } else { v.to_bits() };
            d.iter().map(|d| (d.corners.map(corner), d.score.to_bits(), d.class)).collect()
        };
        assert!(bits(got) == bits(&want), "image {i} {config:?} {shape:?}: {} and {}", got.len(), want.len());
    }
    got.iter().map(Vec::len).sum()
}

/// Boxes in clusters, so that many overlap; scores by `score`.
fn predictions(shape: Predictions, r: &mut Random, mut score: impl FnMut(&mut Random) -> f32) -> Vec<f32> {
    let mut rows = Vec::new();
    for _ in 0..shape.images {
        let centres: Vec<[f64; 2]> = (0..20).map(|_| [r.range(0.0, 640.0), r.range(0.0, 640.0)]).collect();
        for _ in 0..shape.rows {
            let centre = centres[r.below(centres.len())];
            rows.extend(centre.map(|v| (v + r.normal() * 6.0) as f32));
            rows.extend([r.range(20.0, 60.0) as f32, r.range(20.0, 60.0) as f32]);
            rows.extend((0..shape.nc).map(|_| score(r)));
            rows.extend(vec![f32::NAN; shape.pitch - 4 - shape.nc]);
        }
    }
    rows
}

#[test]
fn suppression_finds_what_the_cpu_finds() {
    let Some(gpu) = gpu() else { return };
    let total = check_suppression(&gpu, &[(1, 1, 1), (3, 77, 1), (2, 500, 3), (2, 1500, 20), (1, 40, 80)]);
    assert!(total > 1000, "{total} detections are too few to mean anything");
}

/// Pictures, rows and classes of each case; how many detections there were.
fn check_suppression(gpu: &Gpu, cases: &[(usize, usize, usize)]) -> usize {
    let (kernel, mut r) = (Nms::load(gpu).unwrap(), Random::new());
    let base = NmsConfig { conf_threshold: 0.3, ..NmsConfig::default() };
    let mut total = 0;
    for &(images, rows, nc) in cases {
        let shape = Predictions { images, rows, pitch: (4usize + nc).next_multiple_of(8), nc };
        for multi_label in [false, true] {
            for agnostic in [false, true] {
                let config = NmsConfig { multi_label, agnostic, ..base.clone() };
                // Most scores are low, as in a trained network.
                let low = |r: &mut Random| (r.unit() * r.unit()) as f32;
                let values = predictions(shape, &mut r, low);
                total += check(gpu, &kernel, &config, shape, &values);
                // Few different scores: ties are ordered by row, then class.
                let values = predictions(shape, &mut r, |r| r.below(5) as f32 / 5.0);
                total += check(gpu, &kernel, &config, shape, &values);
                let few = NmsConfig { max_det: 7, iou_threshold: 0.7, ..config.clone() };
                total += check(gpu, &kernel, &few, shape, &values);
                let named = NmsConfig { classes: Some(vec![0, 2, 19]), ..config };
                total += check(gpu, &kernel, &named, shape, &values);
            }
        }
    }
    total
}

#[test]
fn nothing_above_the_threshold_gives_nothing() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Nms::load(&gpu).unwrap(), Random::new());
    let shape = Predictions { images: 2, rows: 100, pitch: 8, nc: 3 };
    let values = predictions(shape, &mut r, |_| 0.2);
    assert_eq!(check(&gpu, &kernel, &NmsConfig::default(), shape, &values), 0);
    let none = NmsConfig { max_det: 0, conf_threshold: 0.1, ..NmsConfig::default() };
    assert_eq!(check(&gpu, &kernel, &none, shape, &values), 0);
}

#[test]
fn of_more_than_thirty_thousand_candidates_the_best_enter() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Nms::load(&gpu).unwrap(), Random::new());
    let shape = Predictions { images: 2, rows: 900, pitch: 48, nc: 40 };
    let config = NmsConfig { conf_threshold: 0.001, iou_threshold: 0.7, multi_label: true, ..NmsConfig::default() };
    // All pass, with ties at the border of the thirty thousand; then the same with a limit that reaches it.
    let values = predictions(shape, &mut r, |r| (1 + r.below(50)) as f32 / 50.0);
    assert!(check(&gpu, &kernel, &config, shape, &values) > 0);
    // Boxes far apart from each other: none is suppressed, all of the best thirty thousand are asked for.
    let mut apart = values;
    for (i, row) in apart.chunks_exact_mut(shape.pitch).enumerate() {
        let i = i % shape.rows;
        row[..4].copy_from_slice(&[(i % 30 * 20) as f32, (i / 30 * 20) as f32, 10.0, 10.0]);
    }
    let all = NmsConfig { max_det: 30_100, ..config };
    let one = Predictions { images: 1, ..shape };
    assert_eq!(check(&gpu, &kernel, &all, one, &apart[..shape.rows * shape.pitch]), 30_000);
}

#[test]
fn boxes_and_scores_that_are_not_numbers_suppress_nothing() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Nms::load(&gpu).unwrap(), Random::new());
    let shape = Predictions { images: 2, rows: 300, pitch: 8, nc: 2 };
    for multi_label in [false, true] {
        let config = NmsConfig { multi_label, ..NmsConfig::default() };
        let mut values = predictions(shape, &mut r, |r| if r.below(5) == 0 { f32::NAN } else { r.unit() as f32 });
        for row in values.chunks_exact_mut(shape.pitch) {
            match r.below(8) {
                0 => row[r.below(4)] = f32::NAN,
                1 => row[r.below(4)] = f32::INFINITY,
                2 => row[2] = 0.0,
                _ => {}
            }
        }
        assert!(check(&gpu, &kernel, &config, shape, &values) > 0);
    }
}
