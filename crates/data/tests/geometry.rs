//! Letterbox, rectangular batches, random perspective, mosaic and box filter against recorded numbers.

use data::geometry::{MIN_AREA_BOX, MIN_AREA_POLYGON, PerspectiveDraw, is_candidate};
use data::labels::{Label, Polygon};
use data::letterbox::{LetterboxOptions, letterbox};
use data::mosaic::{CanvasRow, place, rows_on_canvas};
use data::recipe::{flipped, warped};
use data::rect::rect_plan;
use data::scan::Sample;
use data::validation::ValGeometry;
use testkit::assert_close;

type Json = serde_json::Value;

fn numbers(v: &Json) -> Vec<f64> {
    match v {
        Json::Array(items) => items.iter().flat_map(numbers).collect(),
        other => vec![other.as_f64().unwrap_or_else(|| panic!("{other} is not a number"))],
    }
}

fn pair(v: &Json) -> [u32; 2] {
    let n = numbers(v);
    [n[0] as u32, n[1] as u32]
}

fn polygons(v: &Json) -> Vec<Polygon> {
    let polygon = |p: &Json| {
        p.as_array().unwrap().iter().map(|q| [q[0].as_f64().unwrap() as f32, q[1].as_f64().unwrap() as f32]).collect()
    };
    v.as_array().unwrap().iter().map(polygon).collect()
}

#[test]
fn letterbox_agrees_exactly() {
    let file = testkit::json("pieces/letterbox.json");
    let rows = file["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 360);
    for row in rows {
        let v = &file["variants"][row["variant"].as_u64().unwrap() as usize];
        let frame_hw = if v["new_shape"].is_array() {
            pair(&v["new_shape"])
        } else {
            [v["new_shape"].as_u64().unwrap() as u32; 2]
        };
        let options = LetterboxOptions {
            frame_hw,
            minimum_rectangle: v["auto"].as_bool().unwrap_or(false),
            scale_up: v["scaleup"].as_bool().unwrap_or(true),
            stretch: v["scaleFill"].as_bool().unwrap_or(false),
            stride: v["stride"].as_u64().unwrap_or(32) as u32,
        };
        let [w, h] = pair(&row["wh"]);
        let fit = letterbox(w, h, &options);
        assert_eq!(fit.out_wh, pair(&row["out_wh"]), "{row}");
        // JSON numbers are read to the last bit but one.
        assert_close("ratio", &fit.ratio, &numbers(&row["ratio"]), 0.0, 1e-15);
        assert_eq!(fit.pad.to_vec(), numbers(&row["pad_dw_dh"]), "{row}");
        let [x, y] = fit.content_xy;
        let content = [x, y, x + fit.content_wh[0], y + fit.content_wh[1]].map(f64::from);
        assert_eq!(content.to_vec(), numbers(&row["content_x0y0x1y1"]), "{row}");
    }
}

#[test]
fn rectangular_batches_agree() {
    for case in testkit::json("pieces/rect_batches.json").as_array().unwrap() {
        let wh: Vec<[u32; 2]> = case["wh"].as_array().unwrap().iter().map(pair).collect();
        let int = |key: &str| case[key].as_u64().unwrap() as u32;
        let size = int("img_size");
        let plan = rect_plan(&wh, size, int("batch_size") as usize, int("stride"), case["pad"].as_f64().unwrap());
        let order: Vec<usize> = numbers(&case["order"]).iter().map(|&v| v as usize).collect();
        let shapes: Vec<[u32; 2]> = case["batch_shapes_hw"].as_array().unwrap().iter().map(pair).collect();
        assert_eq!(plan.batch_shapes_hw, shapes);
        let batches: Vec<usize> = numbers(&case["batch_of_position"]).iter().map(|&v| v as usize).collect();
        assert_eq!(plan.batch_of_position, batches);
        // Case 1 has equal ratios, which the reference's sort leaves in no particular order.
        if int("case") != 1 {
            assert_eq!(plan.order, order);
        }
        for ((item, &id), &batch) in case["items"].as_array().unwrap().iter().zip(&order).zip(&batches) {
            let mut labels = Vec::new();
            if id % 4 != 0 {
                labels.push(Label { class: id as u32 % 3, cx: 0.5, cy: 0.4, w: 0.3, h: 0.2 });
                labels.push(Label { class: 1, cx: 0.25, cy: 0.75, w: 0.5, h: 0.5 });
            }
            let [w, h] = wh[id];
            let geometry = ValGeometry::new(w, h, size, shapes[batch]);
            assert_eq!([geometry.fit.out_wh[1], geometry.fit.out_wh[0]], pair(&item["net_hw"]));
            assert_close("ratio", &geometry.ratio_hw, &numbers(&item["ratio_h_w"]), 0.0, 1e-15);
            assert_eq!(geometry.fit.pad.to_vec(), numbers(&item["pad_w_h"]));
            let sample =
                Sample { path: "x.jpg".into(), width: w, height: h, segments: vec![None; labels.len()], labels };
            let got: Vec<f64> = geometry
                .boxes(&sample, id)
                .iter()
                .flat_map(|b| std::iter::once(f64::from(b.class)).chain(b.xywh.map(f64::from)))
                .collect();
            assert_close("labels", &got, &numbers(&item["labels"]), 1e-6, 1e-5);
        }
    }
}

#[test]
fn a_box_that_sticks_out_does_not_reach_into_the_border_of_a_validation_frame() {
    let labels = vec![Label { class: 0, cx: 0.95, cy: 0.0, w: 0.2, h: 1.0 }];
    let sample = Sample { path: "x.jpg".into(), width: 100, height: 50, segments: vec![None], labels };
    // The picture fills 100 x 50 of a frame of 200 x 100, from (50, 25).
    let boxes = ValGeometry::new(100, 50, 100, [100, 200]).boxes(&sample, 0);
    let want = [(135.0 + 150.0) / 2.0 / 200.0, (25.0 + 50.0) / 2.0 / 100.0, 15.0 / 200.0, 25.0 / 100.0];
    assert_close("clipped", &boxes[0].xywh.map(f64::from), &want, 1e-6, 0.0);
}

#[test]
fn random_perspective_agrees() {
    let cases = testkit::json("pieces/random_perspective.json");
    assert_eq!(cases.as_array().unwrap().len(), 20);
    for case in cases.as_array().unwrap() {
        let d = |key: &str| case["drawn"][key].as_f64().unwrap();
        let draw = PerspectiveDraw {
            perspective: [d("perspective_x"), d("perspective_y")],
            angle: d("angle_deg"),
            scale: d("scale"),
            shear: [d("shear_x_deg"), d("shear_y_deg")],
            translate: [d("translate_x_fraction"), d("translate_y_fraction")],
        };
        let [h, w] = pair(&case["image_hw"]);
        let border = numbers(&case["border_yx"]);
        let out_wh = [(f64::from(w) + 2.0 * border[1]) as u32, (f64::from(h) + 2.0 * border[0]) as u32];
        assert_eq!(out_wh, pair(&case["out_wh"]));
        let matrix = draw.matrix([w, h], out_wh);
        assert_close("matrix", &matrix.concat(), &numbers(&case["matrix"]), 1e-9, 1e-9);
        let segments = polygons(&case["segments"]);
        let rows = case["targets"].as_array().unwrap().iter().enumerate().map(|(i, t)| {
            let t = numbers(t);
            let xyxy = [t[1], t[2], t[3], t[4]].map(|v| v as f32);
            CanvasRow { class: t[0] as u32, xyxy, polygon: segments.get(i).cloned(), sample: 0 }
        });
        let got: Vec<f64> = warped(rows.collect(), &matrix, draw.scale, out_wh)
            .iter()
            .flat_map(|r| std::iter::once(f64::from(r.class)).chain(r.xyxy.map(f64::from)))
            .collect();
        assert_close("boxes", &got, &numbers(&case["result"]), 1e-3, 0.0);
    }
}

#[test]
fn box_filter_agrees() {
    let c = &testkit::json("pieces/augment.json")["candidates"];
    for (key, min_area) in [("keep_area_0_10", MIN_AREA_BOX), ("keep_area_0_01", MIN_AREA_POLYGON)] {
        let keep = c[key].as_array().unwrap();
        assert_eq!(keep.len(), 40);
        for (i, want) in keep.iter().enumerate() {
            let corners = |k: &str| -> [f64; 4] { numbers(&c[k][i]).try_into().unwrap() };
            let got = is_candidate(corners("before"), corners("after"), min_area);
            assert_eq!(got, want.as_bool().unwrap(), "{key} {i}");
        }
    }
}

#[test]
fn flips_of_labels_agree() {
    let f = &testkit::json("pieces/augment.json")["flip"];
    for (i, row) in f["labels"].as_array().unwrap().iter().enumerate() {
        let row = numbers(row);
        let xywh = [row[1], row[2], row[3], row[4]].map(|v| v as f32);
        for (key, ud, lr) in [("flipud", true, false), ("fliplr", false, true)] {
            assert_close(key, &flipped(xywh, ud, lr).map(f64::from), &numbers(&f[key][i])[1..], 1e-7, 1e-6);
        }
    }
}

#[test]
fn mosaic_places_pictures_labels_and_outlines() {
    let mut outlines_seen = 0;
    for case in testkit::json("pieces/mosaic.json").as_array().unwrap() {
        let s = case["s"].as_u64().unwrap() as u32;
        let centre = pair(&case["centre_xy"]).map(|v| v as i32);
        let mut rows = Vec::new();
        for k in 0..4 {
            let wh = pair(&case["sizes_wh_TL_TR_BL_BR"][k]);
            let at = place(k, centre, wh, s);
            match &case["placed_x0y0x1y1"][k] {
                Json::Null => assert!(at.is_empty()),
                want => assert_eq!(at.visible.map(f64::from).to_vec(), numbers(want)),
            }
            let labels: Vec<Label> = case["labels"][k]
                .as_array()
                .unwrap()
                .iter()
                .map(|row| {
                    let n = numbers(row);
                    let v = |i: usize| n[i] as f32;
                    Label { class: n[0] as u32, cx: v(1), cy: v(2), w: v(3), h: v(4) }
                })
                .collect();
            let segments: Vec<Option<Polygon>> = polygons(&case["segments"][k]).into_iter().map(Some).collect();
            let offset = at.offset.map(f64::from);
            rows_on_canvas(&labels, &segments, k, wh.map(f64::from), offset, Some([2 * s, 2 * s]), &mut rows);
        }
        let got: Vec<f64> =
            rows.iter().flat_map(|r| std::iter::once(f64::from(r.class)).chain(r.xyxy.map(f64::from))).collect();
        assert_close("labels", &got, &numbers(&case["labels_px"]), 1e-4, 1e-5);
        let got: Vec<f64> =
            rows.iter().filter_map(|r| r.polygon.as_ref()).flatten().flatten().map(|&v| f64::from(v)).collect();
        assert_close("outlines", &got, &numbers(&case["segments_px"]), 1e-4, 1e-5);
        outlines_seen += got.len();
    }
    assert!(outlines_seen > 100);
}
