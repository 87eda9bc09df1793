//! Initial weights, weight files and transfer between models.

use model::{Model, ModelError, NamedTensors, Source, StateKind, fold, init, weights};
use std::path::Path;
use weights::WeightsMeta;

const SMALL: &str = "nc: 3\nbackbone:\n  - [-1, 1, Conv, [8, 3, 2]]\n  - [-1, 1, Conv, [16, 3, 2]]\n  \
    - [-1, 1, RepConvN, [16, 3, 2]]\n  - [-1, 1, Conv, [24, 3, 2]]\n  - [-1, 1, ADown, [32]]\nhead:\n  \
    - [[2, 3, 4], 1, DDetect, [nc]]\n";

fn small(nc: usize) -> Model {
    Model::from_yaml("small", Source::Text("small.yaml".into()), SMALL.into(), Some(nc)).unwrap()
}

fn names(nc: usize) -> Vec<String> {
    (0..nc).map(|i| format!("class \"{i}\" é")).collect()
}

fn saved(folder: &Path, model: &Model) -> (std::path::PathBuf, NamedTensors, WeightsMeta) {
    let path = folder.join("weights.safetensors");
    let tensors = init(model, 7).unwrap();
    let mut meta = WeightsMeta::of(model, names(model.nc), false);
    meta.extra.insert("epoch".into(), "12".into());
    weights::save(&path, &tensors, &meta).unwrap();
    (path, tensors, meta)
}

#[test]
fn initial_weights_are_bounded_by_fan_in_and_head_biases_expect_few_objects() {
    let model = small(3);
    let tensors = init(&model, 1).unwrap();
    let stem = tensors.get("model.0.conv.weight").unwrap();
    let bound = (1.0f32 / 27.0).sqrt();
    let largest = stem.values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    assert!(largest <= bound && largest > 0.9 * bound, "{largest} {bound}");
    let mean = stem.values.iter().sum::<f32>() / stem.values.len() as f32;
    assert!(mean.abs() < 0.15 * bound, "{mean}");
    // Groups: one output sees 16 of 64 channels.
    let grouped = tensors.get("model.5.cv2.0.1.conv.weight").unwrap();
    assert_eq!(grouped.dims, [64, 16, 3, 3]);
    let bound = 1.0 / (16.0f32 * 9.0).sqrt();
    assert!(grouped.values.iter().all(|v| v.abs() <= bound) && grouped.values.iter().any(|v| v.abs() > 0.99 * bound));
    for (name, want) in [("bn.weight", 1.0), ("bn.bias", 0.0), ("bn.running_mean", 0.0), ("bn.running_var", 1.0)] {
        assert!(tensors.get(&format!("model.1.{name}")).unwrap().values.iter().all(|&v| v == want), "{name}");
    }
    assert!(tensors.get("model.5.cv2.1.2.bias").unwrap().values.iter().all(|&v| v == 1.0));
    let class = (5.0f64 / 3.0 / (640.0f64 / 16.0).powi(2)).ln() as f32;
    assert_eq!(tensors.get("model.5.cv3.1.2.bias").unwrap().values, [class; 3]);
    let bins: Vec<f32> = (0..16).map(|i| i as f32).collect();
    assert_eq!(tensors.get("model.5.dfl.conv.weight").unwrap().values, bins);
}

#[test]
fn initial_weights_depend_on_seed_and_name_only() {
    let (a, b) = (init(&small(3), 1).unwrap(), init(&small(3), 2).unwrap());
    assert_eq!(a, init(&small(3), 1).unwrap());
    let values = |t: &NamedTensors, name: &str| t.get(name).unwrap().values.clone();
    let name = "model.1.conv.weight";
    assert_ne!(values(&a, name), values(&b, name));
    // Another number of classes changes other tensors' shapes, not these values.
    assert_eq!(values(&a, name), values(&init(&small(9), 1).unwrap(), name));
    let (left, right) = ("model.5.cv3.0.1.conv.weight", "model.5.cv3.1.1.conv.weight");
    assert_eq!(a.get(left).unwrap().dims, a.get(right).unwrap().dims);
    assert_ne!(values(&a, left), values(&a, right));
}

#[test]
fn files_give_back_tensors_order_and_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let model = small(3);
    let (path, tensors, meta) = saved(folder.path(), &model);
    let read = weights::load(&path).unwrap();
    assert_eq!(read.tensors, tensors);
    assert_eq!(read.meta.as_ref(), Some(&meta));
    let again = model::fit(&read, None, "the file").unwrap().model;
    assert_eq!(again.training_state().unwrap(), model.training_state().unwrap());
    assert_eq!((again.nc, again.strides), (3, vec![8, 16, 32]));
    // Nothing but the file is left in the folder, and the same content gives the same bytes.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let bytes = std::fs::read(&path).unwrap();
    weights::save(&path, &tensors, &meta).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn other_readers_of_the_format_accept_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, tensors, _) = saved(folder.path(), &small(3));
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.len(), tensors.len());
    let counter = file.tensor("model.0.bn.num_batches_tracked").unwrap();
    assert_eq!((counter.dtype(), counter.shape()), (safetensors::Dtype::I64, &[] as &[usize]));
    let weight = file.tensor("model.0.conv.weight").unwrap();
    let first = f32::from_le_bytes(weight.data()[..4].try_into().unwrap());
    assert_eq!(first, tensors.get("model.0.conv.weight").unwrap().values[0]);
}

#[test]
fn truncated_files_say_how_many_bytes_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, ..) = saved(folder.path(), &small(3));
    let bytes = std::fs::read(&path).unwrap();
    for cut in [5, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let error = weights::load(&path).unwrap_err();
        assert!(matches!(error, ModelError::Truncated { have, .. } if have == cut as u64), "{cut}: {error}");
    }
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = weights::load(&path).unwrap_err().to_string();
    assert!(error.contains(&format!("{} of {} bytes", bytes.len() - 1, bytes.len())), "{error}");
}

#[test]
fn files_that_are_no_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let refused = |content: &[u8]| {
        std::fs::write(&path, content).unwrap();
        weights::load(&path).unwrap_err().to_string()
    };
    assert!(refused(b"").contains("it is empty"));
    assert!(refused(b"PK\x03\x04 some checkpoint of another program").contains("not a weight file"));
    let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    assert!(refused(&header("{]")).contains("header"));
    // Offsets that overlap, go backwards, or overflow the shape.
    for text in [
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}"#,
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
    ] {
        let mut content = header(text);
        content.extend([0; 64]);
        assert!(refused(&content).contains("not a weight file"), "{text}");
    }
    let mut bool_tensor = header(r#"{"a":{"dtype":"BOOL","shape":[4],"data_offsets":[0,4]}}"#);
    bool_tensor.extend([0; 4]);
    assert!(refused(&bool_tensor).contains("BOOL"));
    bool_tensor.push(0);
    assert!(refused(&bool_tensor).contains("1 bytes follow"));
    let huge = header(r#"{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}"#);
    assert!(refused(&huge).contains("of 4000000000"));
    assert!(matches!(weights::load(&folder.path().join("absent")), Err(ModelError::Io { .. })));
}

#[test]
fn newer_and_foreign_metadata_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let write = |meta: &str| {
        let text = format!(r#"{{"__metadata__":{meta},"a":{{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}}}"#);
        std::fs::write(&path, [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[0, 0x3C]].concat()).unwrap();
        weights::load(&path)
    };
    let foreign = write(r#"{"format":"pt"}"#).unwrap();
    assert_eq!((foreign.meta, foreign.tensors.get("a").unwrap().values[0]), (None, 1.0));
    assert!(write("{}").unwrap().meta.is_none());
    let error = write(r#"{"format":"2"}"#).unwrap_err();
    assert!(matches!(error, ModelError::Version { found: 2, known: 1, .. }), "{error}");
    let error = write(r#"{"format":"1","nc":"2"}"#).unwrap_err().to_string();
    assert!(error.contains("lack 'names'"), "{error}");
    let error = write(r#"{"format":"1","nc":"2","names":"[\"a\"]"}"#).unwrap_err().to_string();
    assert!(error.contains("1 class names for 2 classes"), "{error}");
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = small(3);
    let (tensors, meta) = (init(&model, 1).unwrap(), WeightsMeta::of(&model, names(3), false));
    let path = folder.path().join("taken");
    std::fs::create_dir_all(path.join("inside")).unwrap();
    assert!(matches!(weights::save(&path, &tensors, &meta), Err(ModelError::Io { .. })));
    assert!(path.join("inside").exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left behind");
    assert!(weights::save(&folder.path().join("no/such/folder"), &tensors, &meta).is_err());
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let model = small(3);
    let entries = model.training_state().unwrap();
    init(&model, 1).unwrap().check(&entries, "x").unwrap();
    let mut wrong = NamedTensors::new();
    for (name, tensor) in init(&model, 1).unwrap().iter() {
        match name {
            "model.0.conv.weight" => wrong.insert(name, vec![1], vec![0.0]).unwrap(),
            _ if name.starts_with("model.1.") => {
                wrong.insert(format!("other.{name}"), tensor.dims.clone(), tensor.values.clone()).unwrap()
            }
            _ => wrong.insert(name, tensor.dims.clone(), tensor.values.clone()).unwrap(),
        }
    }
    let error = wrong.check(&entries, "best.safetensors").unwrap_err().to_string();
    assert!(error.starts_with("best.safetensors does not fit"), "{error}");
    assert!(error.contains("6 missing (model.1.conv.weight, ") && error.contains("and 1 more"), "{error}");
    assert!(error.contains("6 foreign (other.model.1.conv.weight"), "{error}");
    assert!(error.contains("model.0.conv.weight [1] instead of [8, 3, 3, 3]"), "{error}");
    assert!(NamedTensors::new().insert("a", vec![2, 2], vec![0.0; 3]).is_err());
    assert!(NamedTensors::new().insert("a", vec![usize::MAX, 2], vec![0.0; 2]).is_err());
}

#[test]
fn transfer_copies_what_matches_and_says_why_the_rest_stayed() {
    let (from, mut into) = (init(&small(3), 1).unwrap(), init(&small(40), 2).unwrap());
    let before = into.clone();
    let report = into.transfer_from(&from);
    // Above 32 classes the class tower gets wider: both convolutions, their norms and the last one change.
    assert_eq!(report.total, into.len());
    assert_eq!(report.transferred + report.shapes.len(), report.total);
    assert!(report.missing.is_empty() && report.foreign.is_empty());
    assert!(report.to_string().starts_with(&format!("Transferred {}/{} tensors: ", report.transferred, report.total)));
    for (name, tensor) in into.iter() {
        let source = from.get(name).unwrap();
        let want = if source.dims == tensor.dims { source } else { before.get(name).unwrap() };
        assert_eq!(tensor, want, "{name}");
    }
    let dual = init(&Model::load("yolov9-t", Some(3)).unwrap(), 1).unwrap();
    let mut gelan = init(&Model::load("gelan-t", Some(3)).unwrap(), 1).unwrap();
    let report = gelan.transfer_from(&dual);
    assert!(report.transferred < report.total && !report.missing.is_empty() && !report.foreign.is_empty());
}

#[test]
fn folding_an_incomplete_norm_names_the_tensor() {
    let mut broken = NamedTensors::new();
    for (name, tensor) in init(&small(3), 1).unwrap().iter().filter(|(n, _)| *n != "model.1.bn.running_var") {
        broken.insert(name, tensor.dims.clone(), tensor.values.clone()).unwrap();
    }
    let error = fold(&broken).unwrap_err().to_string();
    assert!(error.contains("model.1.bn.running_var"), "{error}");
    broken.insert("model.1.bn.running_var", vec![3], vec![1.0; 3]).unwrap();
    assert!(fold(&broken).unwrap_err().to_string().contains("[3]"));
}

#[test]
fn folding_twice_changes_nothing() {
    let folded = fold(&init(&small(3), 1).unwrap()).unwrap();
    assert_eq!(fold(&folded).unwrap(), folded);
    assert!(folded.get("model.2.conv.weight").is_some() && folded.get("model.2.conv1.conv.weight").is_none());
    let kinds = small(3).training_state().unwrap();
    assert!(kinds.iter().any(|e| e.kind == StateKind::Counter) && !folded.iter().any(|t| t.0.contains(".bn.")));
}

#[test]
fn a_flipped_bit_in_the_data_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, tensors, meta) = saved(folder.path(), &small(3));
    let bytes = std::fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for (at, bit) in [(data, 0), (data + (bytes.len() - data) / 2, 3), (bytes.len() - 1, 7)] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << bit;
        std::fs::write(&path, &flipped).unwrap();
        let error = weights::load(&path).unwrap_err();
        assert!(matches!(error, ModelError::Damaged { .. }), "{error}");
        let want = format!("{}: its data do not match their checksum: the file is damaged", path.display());
        assert_eq!(error.to_string(), want);
    }
    // Files from before there was a checksum, and foreign ones that call something else so.
    let header = String::from_utf8(bytes[8..data].to_vec()).unwrap();
    let at = header.find(r#""crc32":""#).unwrap();
    for (from, to) in [(r#""crc32":"#, r#""other":"#), (r#""format":"1""#, r#""format":"x""#)] {
        let mut old = bytes.clone();
        old[8..data].copy_from_slice(header.replace(from, to).as_bytes());
        old[8 + at + 9] ^= 1;
        std::fs::write(&path, &old).unwrap();
        let read = weights::load(&path).unwrap();
        assert_eq!(read.tensors, tensors);
        assert_eq!(read.meta.is_some(), from.contains("crc32"));
    }
    assert!(!meta.extra.contains_key("crc32"));
}
