//! Checkpoints and state dicts of PyTorch against what PyTorch itself says about them, and state dicts written.

use model::pytorch::save_state_dict;
use model::weights::{self, Weights};
use model::{Model, NamedTensors, init};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const CLASSES: [&str; 3] = ["red", "green", "blue cup"];

fn checkpoint(name: &str) -> PathBuf {
    testkit::fixture(&format!("checkpoints/{name}.pt"))
}

fn expectation(name: &str) -> Value {
    testkit::json(&format!("checkpoints/{name}.json"))
}

/// The stated values have seven digits.
fn near(found: f64, want: f64) -> bool {
    (found - want).abs() <= 2e-6 * want.abs().max(1e-3)
}

/// Names in order, shapes, l2 and the largest sampled value of every tensor.
fn compare(tensors: &NamedTensors, want: &Value, what: &str) {
    let want = want.as_object().unwrap();
    let names: Vec<&str> = tensors.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), want.len(), "{what}");
    for (name, tensor) in tensors.iter() {
        let row = want.get(name).unwrap_or_else(|| panic!("{what}: {name} is not expected"));
        let dims: Vec<usize> = row[1].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
        assert_eq!(tensor.dims, dims, "{what}: {name}");
        let l2 = tensor.values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        assert!(near(l2, row[2].as_f64().unwrap()), "{what}: {name}: l2 {l2} instead of {}", row[2]);
        let sample = f64::from(tensor.values[sample_index(name, tensor.values.len())]);
        assert!(near(sample, row[3].as_f64().unwrap()), "{what}: {name}: sample {sample} instead of {}", row[3]);
    }
}

/// The largest of the three sample indices of the parity README.
fn sample_index(name: &str, elements: usize) -> usize {
    let z = |k: u64| {
        testkit::mix(testkit::fnv(&format!("sample.{name}")).wrapping_add(k.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    };
    (0..3).map(|k| (z(k) % elements as u64) as usize).max().unwrap()
}

fn check_meta(weights: &Weights, want: &Value, model: &str, part: &str) {
    let meta = weights.meta.as_ref().unwrap_or_else(|| panic!("{:?}", weights.notes));
    assert_eq!((meta.nc, meta.names.as_slice()), (3, &CLASSES.map(String::from)[..]));
    assert_eq!(meta.model, model);
    assert_eq!((meta.strides.as_slice(), meta.folded), (&[8, 16, 32][..], false));
    assert_eq!(meta.extra["part"], part);
    let epoch = want["epoch"].as_i64().unwrap();
    assert_eq!(meta.extra.get("epochs").cloned(), (epoch >= 0).then(|| (epoch + 1).to_string()));
    let fitness = want["best_fitness"].as_f64().map(|f| f.to_string());
    assert_eq!(meta.extra.get("best_fitness").cloned(), fitness);
    // The description gives the model whose state dict these tensors are.
    let model = model::fit(weights, None, "the checkpoint").unwrap().model;
    weights.tensors.check(&model.training_state().unwrap(), "the checkpoint").unwrap();
    let counted: usize = model.training_state().unwrap().iter().filter(|e| e.counted()).map(|e| e.elements()).sum();
    assert_eq!(counted as u64, want["parameters"].as_u64().unwrap());
}

#[test]
fn a_training_checkpoint_gives_its_averaged_weights() {
    let want = expectation("checkpoint-micro-nc3");
    let weights = weights::load(&checkpoint("checkpoint-micro-nc3")).unwrap();
    compare(&weights.tensors, &want["ema"], "checkpoint-micro");
    check_meta(&weights, &want, "yolov9-micro", "ema");
    assert_eq!(weights.notes, ["the averaged weights (ema) of epoch 3 are taken"]);
    // Which are not the raw ones.
    let raw = &want["model"]["model.0.conv.weight"][2];
    assert_ne!(raw, &want["ema"]["model.0.conv.weight"][2]);
}

#[test]
fn a_stripped_checkpoint_gives_its_model() {
    for (name, model) in [("stripped-micro-nc3", "yolov9-micro"), ("converted-gelan-micro-nc3", "gelan-micro")] {
        let want = expectation(name);
        let weights = weights::load(&checkpoint(name)).unwrap();
        compare(&weights.tensors, &want["model"], name);
        check_meta(&weights, &want, model, "model");
        assert_eq!(weights.notes, ["the weights under 'model' are taken"]);
    }
}

#[test]
fn a_state_dict_gives_tensors_without_a_description() {
    if !testkit::has("checkpoints/state_dict-micro-nc3.pt") {
        return;
    }
    let weights = weights::load(&checkpoint("state_dict-micro-nc3")).unwrap();
    compare(&weights.tensors, &expectation("state_dict-micro-nc3"), "state_dict");
    assert_eq!(weights.meta, None);
}

#[test]
fn storages_shared_between_model_and_average_are_read_for_both() {
    if !testkit::has("checkpoint-yolov9-t-nc3.pt") {
        return;
    }
    let path = testkit::fixture("checkpoint-yolov9-t-nc3.pt");
    let want = testkit::json("checkpoint-yolov9-t-nc3.json");
    let weights = weights::load(&path).unwrap();
    compare(&weights.tensors, &want["ema"], "checkpoint-yolov9-t");
    check_meta(&weights, &want, "yolov9-t", "ema");
    // The embedded description makes the same state dict.
    let model = Model::load("yolov9-t", Some(3)).unwrap();
    weights.tensors.check(&model.training_state().unwrap(), "the checkpoint").unwrap();
}

#[test]
fn the_name_of_a_file_does_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let (pt, safetensors) = (folder.path().join("a.safetensors"), folder.path().join("b.pt"));
    std::fs::copy(checkpoint("stripped-micro-nc3"), &pt).unwrap();
    let weights = weights::load(&pt).unwrap();
    weights::save(&safetensors, &weights.tensors, weights.meta.as_ref().unwrap()).unwrap();
    let again = weights::load(&safetensors).unwrap();
    assert_eq!((again.tensors, again.meta), (weights.tensors, weights.meta));
}

#[test]
fn written_state_dicts_are_read_back_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pt");
    for name in ["converted-gelan-micro-nc3", "checkpoint-micro-nc3"] {
        let tensors = weights::load(&checkpoint(name)).unwrap().tensors;
        save_state_dict(&path, &tensors, false).unwrap();
        assert_eq!(weights::load(&path).unwrap().tensors, tensors, "{name}");
        let bytes = std::fs::read(&path).unwrap();
        save_state_dict(&path, &tensors, false).unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes, "{name}: other bytes for the same tensors");
    }
    // What came out of halves goes back into halves without a change.
    let tensors = weights::load(&checkpoint("stripped-micro-nc3")).unwrap().tensors;
    save_state_dict(&path, &tensors, true).unwrap();
    assert_eq!(weights::load(&path).unwrap().tensors, tensors);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn halves_are_rounded_to_nearest_even_and_infinities_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pt");
    let mut tensors = NamedTensors::new();
    // 1 + 2^-11 and 1 + 3 * 2^-11 lie halfway between two halves.
    tensors.insert("a", vec![2, 2], vec![1.000_488_3, 1.001_464_8, 65504.0, f32::NEG_INFINITY]).unwrap();
    tensors.insert("empty", vec![0, 3], vec![]).unwrap();
    tensors.insert("a.num_batches_tracked", vec![], vec![70_001.0]).unwrap();
    save_state_dict(&path, &tensors, true).unwrap();
    let read = weights::load(&path).unwrap().tensors;
    assert_eq!(read.get("a").unwrap().values, [1.0, 1.001_953_1, 65504.0, f32::NEG_INFINITY]);
    assert_eq!(read.get("empty").unwrap().dims, [0, 3]);
    assert_eq!(read.get("a.num_batches_tracked").unwrap().values, [70_001.0]);
    tensors.insert("b", vec![1], vec![65520.0]).unwrap();
    let error = save_state_dict(&path, &tensors, true).unwrap_err().to_string();
    assert!(error.contains("tensor b: 65520"), "{error}");
    assert_eq!(weights::load(&path).unwrap().tensors, read, "a refused write changes nothing");
}

#[test]
fn written_archives_have_pytorchs_layout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.pt");
    let tensors = init(&Model::load("gelan-t", Some(3)).unwrap(), 1).unwrap();
    save_state_dict(&path, &tensors, false).unwrap();
    let mut zip = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
    let mut texts = BTreeMap::new();
    for i in 0..zip.len() {
        let mut entry = zip.by_index(i).unwrap();
        let name = entry.name().unwrap().strip_prefix("archive/").unwrap().to_owned();
        assert_eq!(entry.compression(), zip::CompressionMethod::Stored, "{name}");
        if name.starts_with("data/") {
            assert_eq!(entry.data_start().unwrap() % 64, 0, "{name}");
        } else if name != "data.pkl" {
            texts.insert(name, std::io::read_to_string(&mut entry).unwrap());
        }
    }
    assert_eq!((texts["version"].as_str(), texts["byteorder"].as_str()), ("3\n", "little"));
    let id = &texts[".data/serialization_id"];
    assert!(id.len() == 40 && id.bytes().all(|b| b.is_ascii_digit()), "{id}");
    assert_eq!(zip.len(), tensors.len() + 6);
}

/// A small file of `tests/fixtures`, described there.
fn small(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn every_type_and_view_is_read_in_every_protocol() {
    for name in ["types-p2.pt", "types-p5.pt"] {
        let weights = weights::load(&small(name)).unwrap();
        let get = |tensor: &str| {
            let tensor = weights.tensors.get(tensor).unwrap();
            (tensor.dims.clone(), tensor.values.clone())
        };
        for kind in ["half", "bfloat16", "float", "double", "long", "int", "short", "char", "byte"] {
            assert_eq!(get(kind), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]), "{name}: {kind}");
        }
        assert_eq!(get("bool"), (vec![3], vec![1.0, 0.0, 1.0]));
        // (i, j, k) is element (j, k, i + 1) of (2, 3, 4).
        let strided = (0..3).flat_map(|i| (0..6).map(move |jk| (jk * 4 + i + 1) as f32)).collect();
        assert_eq!(get("strided"), (vec![3, 2, 3], strided));
        assert_eq!(get("view"), (vec![4], vec![5.0, 6.0, 7.0, 8.0]));
        assert_eq!(get("whole").1, (0..24).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(get("scalar"), (vec![], vec![7.0]));
        assert_eq!(get("empty"), (vec![0, 3], vec![]));
        assert_eq!(get("parameter"), (vec![2], vec![1.5, 2.5]));
        assert_eq!(get("expanded"), (vec![2, 2], vec![9.0; 4]));
        assert_eq!(get("channels_last"), (vec![1, 3, 2, 2], (0..12).map(|i| i as f32).collect()));
        assert_eq!(weights.notes[0], "the weights under 'model_state_dict' of epoch 4 are taken");
    }
}

#[test]
fn a_module_of_any_class_gives_the_names_of_its_state_dict() {
    let weights = weights::load(&small("module.pt")).unwrap();
    let names: Vec<&str> = weights.tensors.iter().map(|(name, _)| name).collect();
    let bn = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"].map(|n| format!("bn.{n}"));
    let mut want = vec!["kept", "conv.weight"];
    want.extend(bn.iter().map(String::as_str));
    want.extend(["list.0.weight", "list.0.bias", "tied.weight", "tied.bias"]);
    assert_eq!(names, want);
    assert_eq!(weights.tensors.get("tied.bias"), weights.tensors.get("list.0.bias"));
    assert_eq!((weights.meta, weights.notes), (None, vec!["its model has no description (attribute yaml)".to_owned()]));
}

#[test]
fn a_fused_model_with_a_description_of_its_own_is_described() {
    let weights = weights::load(&small("fused.pt")).unwrap();
    let meta = weights.meta.unwrap();
    assert_eq!((meta.model.as_str(), meta.nc, meta.folded), ("tiny-d", 3, true));
    assert_eq!(meta.names, ["a", "b", "2"]);
    assert_eq!(meta.strides, [8, 16, 32]);
    let extra = [("best_fitness", "0.125"), ("date", "2026-01-02T03:04:05"), ("epochs", "1"), ("part", "model")];
    assert_eq!(meta.extra, extra.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    let want = "nc: 3\ndepth_multiple: 1.0\nwidth_multiple: 1\nanchors: [[10, 13, 16, 30], [1, 2, 3, 4]]\n\
                activation: \"nn.LeakyReLU(0.1)\"\nch: 3\nbackbone:\n  - [-1, 1, Conv, [8, 3, 2]]\n";
    assert!(meta.yaml.starts_with(want), "{}", meta.yaml);
    assert!(meta.yaml.ends_with("  - [[2, 3, 4], 1, DDetect, [nc]]\n"), "{}", meta.yaml);
    assert!(meta.yaml.contains("  - [-1, 1, nn.Upsample, [null, 2, nearest]]\n"), "{}", meta.yaml);
    let folder = tempfile::tempdir().unwrap();
    let cfg = folder.path().join("tiny-d.yaml");
    std::fs::write(&cfg, meta.yaml).unwrap();
    assert_eq!(Model::load(cfg.to_str().unwrap(), None).unwrap().layers.len(), 8);
}

#[test]
fn an_unknown_architecture_gives_its_tensors_and_says_so() {
    let weights = weights::load(&small("unknown-block.pt")).unwrap();
    assert_eq!((weights.tensors.len(), weights.meta), (4, None));
    assert!(weights.notes[0].contains("not one that this program knows") && weights.notes[0].contains("Mystery"));
}

#[test]
fn formats_that_are_not_read_are_named() {
    for (name, want) in [("before-1.6.pt", "before 1.6\n  hint: re-save it"), ("torchscript.pt", "TorchScript archive")]
    {
        let error = weights::load(&small(name)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}
