//! Warp, colours, blending and copy-paste against recorded pictures. The recordings are BGR.

use data::copy_paste;
use data::geometry::PerspectiveDraw;
use data::mosaic::CanvasRow;
use data::picture::Picture;
use data::render::{blend, flip_lr, flip_ud, hsv_to_rgb, paste_mirrored, rgb_to_hsv, scale_hsv, warp};
use testkit::Array;

fn rgb(a: &Array) -> Picture {
    let bytes: Vec<u8> = a.data.iter().map(|&v| v as u8).collect();
    let data = bytes.chunks_exact(3).flat_map(|p| [p[2], p[1], p[0]]).collect();
    Picture::from_data(a.shape[1] as u32, a.shape[0] as u32, data).unwrap()
}

/// Share of values further apart than `levels`.
fn share_beyond(a: &[u8], b: &[u8], levels: u8) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).filter(|(a, b)| a.abs_diff(**b) > levels).count() as f64 / a.len() as f64
}

#[test]
fn warp_agrees_within_two_levels() {
    let arrays = testkit::arrays("pieces/augment.safetensors");
    let input = rgb(&arrays["warp.input_hwc"]);
    let cases = testkit::json("pieces/augment.json");
    for (i, case) in cases["warp"].as_array().unwrap().iter().enumerate() {
        let d: Vec<f64> = case["drawn"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        let draw = PerspectiveDraw {
            perspective: [d[0], d[1]],
            angle: d[2],
            scale: d[3],
            shear: [d[4], d[5]],
            translate: [d[6], d[7]],
        };
        let size = [input.width, input.height];
        let mut out = vec![0; input.data.len()];
        warp(&input, &draw.matrix(size, size), size, &mut out);
        let want = rgb(&arrays[&format!("warp.output{i}_hwc")]);
        let beyond = share_beyond(&out, &want.data, 2);
        assert!(beyond <= 0.01, "draw {i}: {:.3} % of values are more than 2 levels off", beyond * 100.0);
    }
}

#[test]
fn hsv_agrees_within_one_level() {
    let arrays = testkit::arrays("pieces/augment.safetensors");
    let input = rgb(&arrays["hsv.input_bgr_hwc"]);
    let want: Vec<u8> = arrays["hsv.as_hsv_hwc"].data.iter().map(|&v| v as u8).collect();
    let got: Vec<u8> = input.data.chunks_exact(3).flat_map(|p| rgb_to_hsv([p[0], p[1], p[2]])).collect();
    assert_eq!(share_beyond(&got, &want, 1), 0.0);
    let gains = testkit::json("pieces/augment.json")["hsv_gains"].clone();
    for (i, g) in gains.as_array().unwrap().iter().enumerate() {
        let mut pixels = input.data.clone();
        scale_hsv(&mut pixels, [0, 1, 2].map(|k| g[k].as_f64().unwrap()));
        let want = rgb(&arrays[&format!("hsv.output{i}_bgr_hwc")]);
        assert_eq!(share_beyond(&pixels, &want.data, 1), 0.0, "gains {i}");
    }
}

#[test]
fn hsv_of_primary_colours() {
    let table = [([255, 0, 0], [0, 255, 255]), ([0, 255, 0], [60, 255, 255]), ([0, 0, 255], [120, 255, 255])];
    for (rgb, hsv) in table {
        assert_eq!(rgb_to_hsv(rgb), hsv);
        assert_eq!(hsv_to_rgb(hsv), rgb);
    }
    assert_eq!(rgb_to_hsv([77, 77, 77]), [0, 0, 77]);
}

#[test]
fn mixup_truncates_exactly() {
    let arrays = testkit::arrays("pieces/augment.safetensors");
    let bytes = |name: &str| -> Vec<u8> { arrays[name].data.iter().map(|&v| v as u8).collect() };
    for (i, ratio) in testkit::json("pieces/augment.json")["mixup_ratio"].as_array().unwrap().iter().enumerate() {
        let mut a = bytes("mixup.a");
        blend(&mut a, &bytes("mixup.b"), ratio.as_f64().unwrap());
        assert_eq!(a, bytes(&format!("mixup.out{i}")));
    }
}

#[test]
fn flips_move_every_pixel() {
    let mut pixels: Vec<u8> = (0..3 * 2 * 3).collect();
    flip_lr(&mut pixels, 3);
    assert_eq!(pixels, [6, 7, 8, 3, 4, 5, 0, 1, 2, 15, 16, 17, 12, 13, 14, 9, 10, 11]);
    flip_ud(&mut pixels, 3);
    assert_eq!(pixels, [15, 16, 17, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2]);
}

#[test]
fn copy_paste_agrees() {
    let arrays = testkit::arrays("pieces/copy_paste.safetensors");
    for (i, case) in testkit::json("pieces/copy_paste.json").as_array().unwrap().iter().enumerate() {
        let f = |v: &serde_json::Value| v.as_f64().unwrap() as f32;
        let rows_of = |key: &str| -> Vec<[f32; 5]> {
            case[key].as_array().unwrap().iter().map(|r| [0, 1, 2, 3, 4].map(|k| f(&r[k]))).collect()
        };
        let polygons_of = |key: &str| -> Vec<Vec<[f32; 2]>> {
            let points = |p: &serde_json::Value| p.as_array().unwrap().iter().map(|q| [f(&q[0]), f(&q[1])]).collect();
            case[key].as_array().unwrap().iter().map(points).collect()
        };
        let width = case["hw"][1].as_u64().unwrap() as u32;
        let outlines = polygons_of("segments");
        let mut rows: Vec<CanvasRow> = rows_of("labels")
            .iter()
            .zip(&outlines)
            .map(|(r, p)| CanvasRow {
                class: r[0] as u32,
                xyxy: [r[1], r[2], r[3], r[4]],
                polygon: Some(p.clone()),
                sample: 0,
            })
            .collect();
        let candidates = copy_paste::candidates(&rows, width);
        let want: Vec<usize> =
            case["candidates"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
        assert_eq!(candidates, want, "case {i}");
        let count = copy_paste::count(case["p"].as_f64().unwrap(), candidates.len());
        assert_eq!(count as u64, case["count"].as_u64().unwrap());
        let before = rows.len();
        let pasted = copy_paste::paste(&mut rows, &candidates[..count], width);
        let got: Vec<[f32; 5]> =
            rows.iter().map(|r| [r.class as f32, r.xyxy[0], r.xyxy[1], r.xyxy[2], r.xyxy[3]]).collect();
        for (g, w) in got.iter().zip(&rows_of("labels_after")) {
            testkit::assert_close("labels", &g.map(f64::from), &w.map(f64::from), 1e-4, 1e-6);
        }
        assert_eq!(got.len(), case["labels_after"].as_array().unwrap().len());
        for (row, want) in rows[before..].iter().zip(&polygons_of("segments_after_new")) {
            for (g, w) in row.polygon.as_ref().unwrap().iter().zip(want) {
                testkit::assert_close("outline", &g.map(f64::from), &w.map(f64::from), 1e-4, 1e-6);
            }
        }
        let mut canvas = rgb(&arrays[&format!("case{i}.input_hwc")]);
        paste_mirrored(&mut canvas, &pasted, &mut Vec::new());
        let want = rgb(&arrays[&format!("case{i}.output_hwc")]);
        let wrong = canvas.data.chunks_exact(3).zip(want.data.chunks_exact(3)).filter(|(a, b)| a != b).count();
        let corners: usize = pasted.iter().map(Vec::len).sum();
        assert!(wrong <= 2 * corners, "case {i}: {wrong} pixels differ");
    }
}
