//! Finding the model of a file's tensors, cutting out the auxiliary branch, and starting a model from another's weights.

use model::weights::{Weights, WeightsMeta};
use model::{Branches, Model, ModelError, NamedTensors, Source, fit, fold, init, transfer};
use testkit::{fixture, json};

fn foreign(tensors: NamedTensors) -> Weights {
    Weights { tensors, meta: None, notes: Vec::new() }
}

fn load(cfg: &str, nc: usize) -> Model {
    Model::load(cfg, Some(nc)).unwrap()
}

fn cmicro() -> String {
    fixture("models/yolov9-cmicro.yaml").to_str().unwrap().to_owned()
}

/// The tensors under other names; those without a new one are left out.
fn renamed(tensors: &NamedTensors, rename: impl Fn(&str) -> Option<String>) -> NamedTensors {
    let mut new = NamedTensors::new();
    for (name, tensor) in tensors.iter() {
        if let Some(name) = rename(name) {
            new.insert(name, tensor.dims.clone(), tensor.values.clone()).unwrap();
        }
    }
    new
}

fn replaced(tensors: &mut NamedTensors, name: &str, dims: &[usize]) {
    let count = dims.iter().product();
    tensors.insert(name, dims.to_vec(), (0..count).map(|i| i as f32 / count as f32).collect()).unwrap();
}

#[test]
fn without_the_auxiliary_branch_a_zoo_model_is_its_gelan_model() {
    for size in ["t", "s", "m", "c", "e"] {
        let single = load(&format!("yolov9-{size}"), 80).single_branch().unwrap().unwrap();
        assert_eq!(single.model.name, format!("gelan-{size}"));
        assert_eq!(single.model.source, load(&format!("gelan-{size}"), 80).source);
        assert!(single.model.single_branch().unwrap().is_none());
    }
}

#[test]
fn converted_tensors_are_the_ones_that_the_fixture_lists() {
    for (name, nc) in [("yolov9-t", 80), ("yolov9-s", 80), ("yolov9-s", 3)] {
        let whole = load(name, nc);
        let tensors = init(&whole, 7).unwrap();
        let converted = whole.single_branch().unwrap().unwrap().convert(&tensors).unwrap();
        let map = json(&format!("models/{name}-nc{nc}.convert.json"));
        let map = map.as_object().unwrap();
        assert_eq!(converted.len(), map.len(), "{name}");
        for (new, old) in map {
            assert_eq!(converted.get(new), tensors.get(old.as_str().unwrap()), "{name} {new}");
        }
        let entries = load(&name.replace("yolov9", "gelan"), nc).training_state().unwrap();
        converted.check(&entries, name).unwrap();
    }
}

#[test]
fn layers_of_m_c_and_e_move_as_the_references_tables_say() {
    let sources = |size: &str| -> Vec<(usize, usize)> {
        match size {
            "m" | "c" => (0..=21).map(|i| (i, i + 1)).chain([(22, 38)]).collect(),
            _ => (0..=41).map(|i| (i, if i < 29 { i } else { i + 7 })).chain([(42, 49)]).collect(),
        }
    };
    for size in ["m", "c", "e"] {
        let whole = load(&format!("yolov9-{size}"), 2);
        let names = |model: &Model| {
            let mut tensors = NamedTensors::new();
            for entry in model.training_state().unwrap() {
                tensors.insert(entry.name, vec![], vec![0.0]).unwrap();
            }
            tensors
        };
        let single = whole.single_branch().unwrap().unwrap();
        let back = single.restore(&names(&single.model)).unwrap();
        let layer = |name: &str| name.split('.').nth(1).unwrap().parse::<usize>().unwrap();
        for ((new, _), (old, _)) in names(&single.model).iter().zip(back.iter()) {
            assert!(sources(size).contains(&(layer(new), layer(old))), "{size}: {new} from {old}");
        }
        assert_eq!(back.len(), single.model.training_state().unwrap().len());
    }
}

#[test]
fn a_users_own_dual_model_converts_and_its_description_reads_back() {
    let whole = load(&cmicro(), 5);
    let single = whole.single_branch().unwrap().unwrap();
    assert_eq!(single.model.name, "yolov9-cmicro-converted");
    let again = Model::from_yaml("again", Source::Text("test".into()), single.model.yaml.clone(), Some(5)).unwrap();
    let converted = single.convert(&init(&whole, 3).unwrap()).unwrap();
    converted.check(&again.training_state().unwrap(), "converted").unwrap();
    assert!(converted.len() < whole.training_state().unwrap().len());
    assert_eq!(single.restore(&converted).unwrap().len(), converted.len());
}

#[test]
fn keys_beside_the_rows_survive_the_cut() {
    let text = "nc: 2\ndepth_multiple: 0.5\nwidth_multiple: 0.3\nanchors: 3\nactivation: nn.LeakyReLU(0.2)\nbackbone:\n\
        - [-1, 1, Conv, [32, 3, 8]]\n- [-1, 4, Conv, [40, 3, 1]]\n- [-1, 1, Conv, [40, 3, 2]]\n- [-1, 1, nn.Upsample, [None, 2, nearest]]\n\
        head:\n- [0, 1, Conv, [24, 3, 1]]\n- [[4, 1], 1, DualDDetect, [nc]]\n";
    let whole = Model::from_yaml("own", Source::Text("test".into()), text.to_owned(), None).unwrap();
    let single = whole.single_branch().unwrap().unwrap();
    assert_eq!(single.model.layers.len(), 3);
    let converted = single.convert(&init(&whole, 0).unwrap()).unwrap();
    converted.check(&single.model.training_state().unwrap(), "converted").unwrap();
    assert!(single.model.yaml.contains("nn.LeakyReLU(0.2)"), "{}", single.model.yaml);
    assert!(single.model.yaml.contains("width_multiple: 0.3"), "{}", single.model.yaml);
}

#[test]
fn plain_tensors_find_classes_and_branches_by_themselves() {
    let whole = load("yolov9-t", 3);
    let tensors = init(&whole, 1).unwrap();
    let fitted = fit(&foreign(tensors.clone()), Some("yolov9-t"), "w").unwrap();
    assert_eq!((fitted.model.nc, fitted.folded, fitted.branches), (3, false, Branches::All));
    assert_eq!(fitted.names, ["class0", "class1", "class2"]);
    assert_eq!(fitted.tensors, tensors);
    assert!(fitted.notes.is_empty(), "{:?}", fitted.notes);

    let single = whole.single_branch().unwrap().unwrap();
    let fitted = fit(&foreign(single.convert(&tensors).unwrap()), Some("yolov9-t"), "w").unwrap();
    assert_eq!((fitted.model.name.as_str(), fitted.model.nc), ("gelan-t", 3));
}

#[test]
fn folded_files_and_files_of_a_main_branch_fit() {
    let model = load(&cmicro(), 5);
    let folded = fold(&init(&model, 1).unwrap()).unwrap();
    let fitted = fit(&foreign(folded.clone()), Some(&cmicro()), "w").unwrap();
    assert!(fitted.folded);
    assert_eq!(fitted.tensors, folded);
    let head = format!("model.{}.cv2.", model.layers.len() - 1);
    let main = renamed(&folded, |n| (!n.starts_with(&head)).then(|| n.to_owned()));
    let fitted = fit(&foreign(main), Some(&cmicro()), "w").unwrap();
    assert_eq!((fitted.folded, fitted.branches), (true, Branches::Main));
}

#[test]
fn counters_and_bins_need_not_be_in_the_file() {
    let model = load(&cmicro(), 5);
    let tensors = init(&model, 1).unwrap();
    let bare =
        renamed(&tensors, |n| (!n.ends_with("num_batches_tracked") && !n.contains(".dfl")).then(|| n.to_owned()));
    assert!(bare.len() < tensors.len());
    assert_eq!(fit(&foreign(bare), Some(&cmicro()), "w").unwrap().tensors, tensors);
}

#[test]
fn wrappers_before_the_names_do_not_matter() {
    let tensors = init(&load(&cmicro(), 5), 1).unwrap();
    for wrapper in ["module.", "model.", "ema.module.", "_orig_mod.", "module._orig_mod.model."] {
        let wrapped = renamed(&tensors, |n| Some(format!("{wrapper}{n}")));
        assert_eq!(fit(&foreign(wrapped), Some(&cmicro()), "w").unwrap().tensors, tensors, "{wrapper}");
    }
    let bare = renamed(&tensors, |n| n.strip_prefix("model.").map(str::to_owned));
    assert_eq!(fit(&foreign(bare), Some(&cmicro()), "w").unwrap().tensors, tensors);
}

#[test]
fn a_narrow_class_tower_and_ungrouped_boxes_are_taken_from_the_tensors() {
    let model = load("gelan-t", 80);
    let mut tensors = init(&model, 1).unwrap();
    for level in 0..3 {
        let c_in = model.layers[[15, 18, 21][level]].channels;
        let name = |part: &str, rest: &str| format!("model.22.{part}.{level}.{rest}");
        replaced(&mut tensors, &name("cv3", "0.conv.weight"), &[80, c_in, 3, 3]);
        replaced(&mut tensors, &name("cv3", "1.conv.weight"), &[80, 80, 3, 3]);
        for unit in 0..2 {
            for part in ["weight", "bias", "running_mean", "running_var"] {
                replaced(&mut tensors, &name("cv3", &format!("{unit}.bn.{part}")), &[80]);
            }
        }
        replaced(&mut tensors, &name("cv3", "2.weight"), &[80, 80, 1, 1]);
        replaced(&mut tensors, &name("cv2", "1.conv.weight"), &[64, 64, 3, 3]);
        replaced(&mut tensors, &name("cv2", "2.weight"), &[64, 64, 1, 1]);
    }
    let fitted = fit(&foreign(tensors.clone()), Some("gelan-t"), "w").unwrap();
    assert_eq!(fitted.tensors, tensors);
    assert_eq!(fitted.notes.len(), 2, "{:?}", fitted.notes);
    assert!(fitted.notes[0].contains("80, the description's rule gives 128"), "{:?}", fitted.notes);

    // Trained for other classes, the towers stay as they are and only the last convolution is new.
    let started = transfer(load("gelan-t", 3), &foreign(tensors), 0, "w").unwrap();
    assert_eq!(started.report.total - started.report.transferred, 6);
    assert_eq!(started.tensors.get("model.22.cv3.0.2.weight").unwrap().dims, [3, 80, 1, 1]);
    // What was trained is found again in a file of this program.
    let meta = WeightsMeta::of(&started.model, vec!["a".into(), "b".into(), "c".into()], false);
    let again =
        fit(&Weights { tensors: started.tensors.clone(), meta: Some(meta), notes: Vec::new() }, None, "w").unwrap();
    assert_eq!((again.tensors, again.names.len()), (started.tensors, 3));
}

#[test]
fn what_does_not_fit_is_told_with_counts_and_what_to_do() {
    let tensors = init(&load("gelan-t", 3), 1).unwrap();
    let message = |result: Result<model::Fitted, ModelError>| result.unwrap_err().to_string();
    let text = message(fit(&foreign(tensors.clone()), Some("gelan-s"), "w.pt"));
    assert!(text.contains("w.pt does not fit gelan-s: 36 of 1117"), "{text}");
    assert!(text.contains("--cfg"), "{text}");
    let text = message(fit(&foreign(tensors.clone()), None, "w.pt"));
    assert!(text.contains("does not say which model") && text.contains("--cfg"), "{text}");
    let meta = WeightsMeta::of(&load("gelan-t", 3), vec![String::new(); 3], false);
    let text =
        message(fit(&Weights { tensors: tensors.clone(), meta: Some(meta), notes: Vec::new() }, Some("yolov9-c"), "w"));
    assert!(text.contains("leave --cfg out"), "{text}");
    let broken = renamed(&tensors, |n| (n != "model.0.conv.weight").then(|| n.to_owned()));
    let text = message(fit(&foreign(broken), Some("gelan-t"), "w"));
    assert!(text.contains("1 missing (model.0.conv.weight)"), "{text}");
    assert!(fit(&foreign(NamedTensors::new()), Some("gelan-t"), "w").is_err());
}

#[test]
fn training_starts_from_either_form_of_a_model() {
    let whole = load("yolov9-t", 3);
    let dual = init(&whole, 1).unwrap();
    let single = whole.single_branch().unwrap().unwrap().convert(&dual).unwrap();
    let started = transfer(load("yolov9-t", 3), &foreign(single.clone()), 0, "w").unwrap();
    assert_eq!(started.report.transferred, single.len());
    assert!(started.notes.iter().any(|n| n.contains("auxiliary branch")), "{:?}", started.notes);
    assert_eq!(started.tensors.get("model.29.cv5.0.2.weight"), dual.get("model.29.cv5.0.2.weight"));
    let started = transfer(load("gelan-t", 3), &foreign(dual), 0, "w").unwrap();
    assert_eq!(started.tensors, single);
}

#[test]
fn other_classes_and_other_models_leave_what_does_not_fit_behind() {
    let tensors = init(&load("yolov9-s", 80), 1).unwrap();
    let started = transfer(load("yolov9-s", 3), &foreign(tensors.clone()), 0, "w").unwrap();
    // The last convolution of three levels in two branches: weight and bias.
    assert_eq!(started.report.total - started.report.transferred, 12);
    assert!(started.report.to_string().contains("instead of [3, 128, 1, 1]"), "{}", started.report);
    let other = transfer(load("gelan-c", 3), &foreign(tensors.clone()), 0, "w").unwrap();
    assert!(other.report.transferred * 2 < other.report.total, "{}", other.report);
    assert!(transfer(load("yolov9-s", 3), &foreign(fold(&tensors).unwrap()), 0, "w").is_err());
}
