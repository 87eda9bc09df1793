//! Names, shapes, order, groups, counts and folded values against the reference's fixtures.

use graph::ParamGroup;
use model::{Branches, BuildOptions, Mode, Model, NamedTensors, StateKind, fold};
use serde_json::Value;
use std::collections::HashMap;
use testkit::{assert_close, fill, fixture, json};

const CASES: [(&str, usize); 6] =
    [("yolov9-t", 80), ("yolov9-s", 80), ("gelan-t", 80), ("gelan-s", 80), ("yolov9-s", 3), ("yolov9-cmicro", 5)];

fn load(name: &str, nc: usize) -> Model {
    let cfg = match name {
        "yolov9-cmicro" => fixture("models/yolov9-cmicro.yaml").to_str().unwrap().to_owned(),
        name => name.to_owned(),
    };
    Model::load(&cfg, Some(nc)).unwrap()
}

/// The model's training state by the fill rule.
fn filled(model: &Model, case: &str) -> NamedTensors {
    let gains = json(&format!("models/{case}.gains.json"));
    let head = model.layers.len() - 1;
    let mut class_bias = HashMap::new();
    for tower in ["cv3", "cv5"] {
        for (level, stride) in model.strides.iter().enumerate() {
            let bias = (5.0 / model.nc as f64 / (640.0 / *stride as f64).powi(2)).ln();
            class_bias.insert(format!("model.{head}.{tower}.{level}.2.bias"), bias);
        }
    }
    let mut tensors = NamedTensors::new();
    for entry in model.training_state().unwrap() {
        let values = fill(&entry.name, &entry.dims, gains[&entry.name].as_f64(), |name| class_bias.get(name).copied());
        tensors.insert(entry.name, entry.dims, values).unwrap();
    }
    tensors
}

fn dims(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect()
}

#[test]
fn state_dicts_have_the_references_names_shapes_order_and_groups() {
    for (name, nc) in CASES {
        let case = format!("{name}-nc{nc}");
        let want = json(&format!("models/{case}.json"));
        let want = want["state_dict"].as_array().unwrap();
        let state = load(name, nc).training_state().unwrap();
        for (entry, row) in state.iter().zip(want) {
            let label = format!("{case} {}", row[0]);
            assert_eq!(entry.name, row[0].as_str().unwrap(), "{label}");
            assert_eq!(entry.dims, dims(&row[1]), "{label}");
            assert_eq!(entry.kind == StateKind::Counter, row[2] == "int64", "{label}");
            assert_eq!(entry.counted(), row[3] == "param", "{label}");
            assert_eq!(entry.group.index().map(|g| g as u64), row[4].as_u64(), "{label}");
            assert_eq!(entry.group == ParamGroup::Buffer, row[3] == "buffer", "{label}");
        }
        assert_eq!(state.len(), want.len(), "{case}");
    }
}

#[test]
fn counts_and_macs_equal_the_references() {
    for (name, nc) in CASES {
        let case = format!("{name}-nc{nc}");
        let want = json(&format!("models/{case}.json"));
        let info = load(name, nc).info(640, 640).unwrap();
        let mut checked = 0;
        for (key, got) in [
            ("parameters", info.training.parameters),
            ("parameters_with_gradient", info.training.trained),
            ("parameters_fused", info.folded.parameters),
            ("conv_macs_640", info.training.macs),
            ("conv_macs_640_fused", info.folded.macs),
            ("converted_parameters", info.main.parameters),
            ("converted_fused_parameters", info.main_folded.parameters),
            ("converted_fused_conv_macs_640", info.main_folded.macs),
        ] {
            if let Some(value) = want[key].as_u64() {
                assert_eq!(got, value, "{case} {key}");
                checked += 1;
            }
        }
        let converted = want.get("converted_to").is_some();
        assert_eq!(checked, if converted { 8 } else { 5 }, "{case}");
        assert_eq!(info.rows.iter().map(|r| r.macs).sum::<u64>(), info.training.macs, "{case}");
    }
}

#[test]
fn folded_weights_equal_the_references() {
    for (name, nc) in CASES {
        let case = format!("{name}-nc{nc}");
        let model = load(name, nc);
        let folded = fold(&filled(&model, &case)).unwrap();
        let want = json(&format!("models/{case}.fused.json"));
        let want = want.as_object().unwrap();
        assert_eq!(folded.len(), want.len(), "{case}");
        for (tensor, row) in want {
            let label = format!("{case} {tensor}");
            let got = folded.get(tensor).unwrap_or_else(|| panic!("{label} is missing"));
            assert_eq!(got.dims, dims(&row["shape"]), "{label}");
            let values = || got.values.iter().map(|&v| f64::from(v));
            let l2 = values().map(|v| v * v).sum::<f64>().sqrt();
            let mass = values().map(f64::abs).sum::<f64>();
            assert_close(&format!("{label} l2"), &[l2], &[row["l2"].as_f64().unwrap()], 0.0, 1e-5);
            // A sum cancels: its rounding scales with the sum of magnitudes.
            assert_close(
                &format!("{label} sum"),
                &[values().sum()],
                &[row["sum"].as_f64().unwrap()],
                1e-6 * mass,
                1e-5,
            );
            let list = |key: &str| row[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>();
            let at: Vec<f64> = list("idx").iter().map(|&i| f64::from(got.values[i as usize])).collect();
            assert_close(&label, &at, &list("val"), 1e-7, 1e-5);
        }
    }
}

#[test]
fn folded_tensors_are_those_of_a_folded_build_in_its_order() {
    for (name, nc) in CASES {
        let model = load(name, nc);
        let folded = fold(&filled(&model, &format!("{name}-nc{nc}"))).unwrap();
        let entries = model.state(BuildOptions { mode: Mode::Folded, branches: Branches::All }).unwrap();
        assert_eq!(
            folded.iter().map(|t| t.0).collect::<Vec<_>>(),
            entries.iter().map(|e| &e.name[..]).collect::<Vec<_>>()
        );
        folded.check(&entries, name).unwrap();
    }
}

#[test]
fn a_main_only_build_has_the_converted_models_tensors() {
    for (name, nc) in [("yolov9-t", 80), ("yolov9-s", 80), ("yolov9-s", 3)] {
        let map = json(&format!("models/{name}-nc{nc}.convert.json"));
        let state = load(name, nc).state(BuildOptions { mode: Mode::Training, branches: Branches::Main }).unwrap();
        let mut want: Vec<&str> = map.as_object().unwrap().values().map(|v| v.as_str().unwrap()).collect();
        let mut got: Vec<&str> = state.iter().map(|e| e.name.as_str()).collect();
        want.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn strides_and_parameters_without_a_gradient_are_the_references() {
    for (name, nc) in CASES {
        let (case, model) = (format!("{name}-nc{nc}"), load(name, nc));
        let strides: Vec<f64> = model.strides.iter().map(|&s| s as f64).collect();
        assert_eq!(json(&format!("models/{case}.json"))["strides"], serde_json::json!(strides), "{case}");
        if !fixture(&format!("train/{case}.json")).exists() {
            continue;
        }
        let want = json(&format!("train/{case}.json"));
        let names = |key: &str| -> Vec<String> {
            want[key].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect()
        };
        let state = model.training_state().unwrap();
        let of = |keep: &dyn Fn(&model::StateEntry) -> bool| -> Vec<String> {
            state.iter().filter(|e| keep(e)).map(|e| e.name.clone()).collect()
        };
        assert_eq!(of(&|e| e.kind == StateKind::Fixed), names("parameters_without_gradient"), "{case}");
        assert_eq!(of(&|e| e.kind == StateKind::Param), names("params"), "{case}");
        assert_eq!(of(&|e| e.kind == StateKind::Buffer), names("stats"), "{case}");
    }
}

#[test]
fn every_convolution_has_a_gain() {
    for (name, nc) in CASES {
        let gains = json(&format!("models/{name}-nc{nc}.gains.json"));
        let state = load(name, nc).training_state().unwrap();
        let convolutions = state.iter().filter(|e| e.dims.len() == 4 && e.kind == StateKind::Param);
        let names: Vec<&str> = convolutions.map(|e| e.name.as_str()).collect();
        assert_eq!(names.len(), gains.as_object().unwrap().len(), "{name}");
        assert!(names.iter().all(|n| gains.get(n).is_some()), "{name}");
    }
}
