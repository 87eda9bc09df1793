//! The zoo's layers, parameter counts and costs against the layer tables.

use graph::{DType, GraphBuilder, Op, Shape};
use model::{Branches, BuildOptions, Mode, Model, Source, StateKind, zoo};

fn convolutions_and_norms(model: &Model) -> (usize, usize) {
    let mut b = GraphBuilder::new();
    let image = b.input("image", Shape::new(1, 64, 64, 3), DType::F32);
    model.build(&mut b, image, BuildOptions::default()).unwrap();
    let graph = b.finish();
    let count = |f: fn(&Op) -> bool| graph.nodes().iter().filter(|n| f(&n.op)).count();
    (count(|op| matches!(op, Op::Conv2d(_))), count(|op| matches!(op, Op::BatchNorm(_))))
}

#[test]
fn every_layer_has_the_tables_arguments_and_parameters() {
    let table = include_str!("zoo-layers.txt");
    let mut info = None;
    let mut models = 0;
    let mut row = 0;
    for line in table.lines().filter(|l| !l.starts_with('#')) {
        let cells: Vec<&str> = line.split('|').collect();
        if let ["model", name, total] = cells[..] {
            let found = Model::load(name, None).unwrap().info(640, 640).unwrap();
            assert_eq!(found.training.parameters, total.parse::<u64>().unwrap(), "{name}");
            assert_eq!(found.rows.iter().map(|r| r.parameters).sum::<u64>(), found.training.parameters, "{name}");
            (info, row) = (Some(found), 0);
            models += 1;
            continue;
        }
        let [index, module, arguments, parameters] = cells[..] else { panic!("{line}") };
        let info = info.as_ref().expect("a model comes first");
        let got = &info.rows[row];
        assert_eq!(got.index.to_string(), index, "{}", info.name);
        let want = (module.to_owned(), arguments.to_owned(), parameters.parse().unwrap());
        assert_eq!((got.module.clone(), got.arguments.clone(), got.parameters), want, "{} row {index}", info.name);
        row += 1;
    }
    assert_eq!(models, 10);
}

#[test]
fn totals_after_folding_and_costs_are_the_published_ones() {
    // Name, rows, parameters, folded, GFLOPs folded, convolutions (without the fixed ones), norms, entries.
    let table = [
        ("gelan-t", 23, 2_442_640, 2_407_632, 9.8, 227, 221, 1339),
        ("gelan-s", 23, 7_226_208, 7_105_888, 26.4, 227, 221, 1339),
        ("gelan-m", 23, 20_124_000, 19_978_672, 76.3, 155, 149, 907),
        ("gelan-c", 23, 25_498_752, 25_288_768, 102.1, 160, 154, 937),
        ("gelan-e", 43, 58_114_432, 57_345_920, 188.9, 309, 298, 1811),
        ("yolov9-t", 30, 3_717_680, 3_674_576, 16.2, 303, 291, 1772),
        ("yolov9-s", 30, 9_804_512, 9_659_168, 39.0, 303, 291, 1772),
        ("yolov9-m", 39, 32_878_432, 32_667_400, 131.3, 245, 230, 1412),
        ("yolov9-c", 39, 51_182_080, 50_880_768, 237.6, 253, 238, 1460),
        ("yolov9-e", 50, 69_529_664, 68_669_632, 241.3, 373, 356, 2172),
    ];
    for (name, rows, parameters, folded, gflops, convolutions, norms, entries) in table {
        let model = Model::load(name, None).unwrap();
        let info = model.info(640, 640).unwrap();
        assert_eq!(info.rows.len(), rows, "{name}");
        assert_eq!((info.training.parameters, info.folded.parameters), (parameters, folded), "{name}");
        assert!((info.folded.gflops() - gflops).abs() <= 0.0501, "{name}: {}", info.folded.gflops());
        let state = model.training_state().unwrap();
        let bins = state.iter().filter(|e| e.kind == StateKind::Fixed).count();
        assert_eq!(info.training.parameters - info.training.trained, 16 * bins as u64, "{name}");
        let (plain, found_norms) = convolutions_and_norms(&model);
        // CBLinear's convolution is built once, whatever the length of its list.
        assert_eq!((plain, found_norms), (convolutions, norms), "{name}");
        assert_eq!(state.len(), entries, "{name}");
        assert_eq!(model.strides, [8, 16, 32], "{name}");
    }
}

#[test]
fn dropping_the_auxiliary_branch_leaves_the_gelan_model() {
    for size in ["t", "s", "m", "c", "e"] {
        let dual = Model::load(&format!("yolov9-{size}"), None).unwrap().info(640, 640).unwrap();
        let gelan = Model::load(&format!("gelan-{size}"), None).unwrap().info(640, 640).unwrap();
        assert_eq!((dual.main, dual.main_folded), (gelan.training, gelan.folded), "{size}");
        assert!(dual.has_aux() && !gelan.has_aux());
        assert!(dual.rows.iter().any(|r| !r.main) && gelan.rows.iter().all(|r| r.main));
    }
}

#[test]
fn counts_follow_the_number_of_classes() {
    let total = |name, nc| Model::load(name, Some(nc)).unwrap().info(64, 64).unwrap();
    assert_eq!(total("gelan-t", 1).training.parameters, 1_913_443);
    assert_eq!(total("gelan-t", 64).training.parameters, 2_436_448);
    assert_eq!(total("yolov9-c", 3).training.parameters, 51_004_210);
    assert_eq!(total("yolov9-c", 3).rows[38].parameters, 21_547_442);
    let one = Model::load("yolov9-c", Some(1)).unwrap().info(640, 640).unwrap();
    assert_eq!(one.folded.parameters, 50_698_278);
    assert!((one.folded.gflops() - 236.6).abs() < 0.06, "{}", one.folded.gflops());
}

#[test]
fn names_with_folder_and_extension_find_the_embedded_model() {
    for cfg in ["yolov9-s", "yolov9-s.yaml", "models/detect/yolov9-s.yaml", "yolov9-s.yml"] {
        let model = Model::load(cfg, None).unwrap();
        assert_eq!((model.name.as_str(), &model.source), ("yolov9-s", &Source::Embedded("yolov9-s")));
    }
    assert_eq!(zoo::ZOO.len(), 10);
}

#[test]
fn an_existing_file_wins_over_the_embedded_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("yolov9-s.yaml");
    let text = zoo::find("gelan-t").unwrap().text;
    std::fs::write(&path, text).unwrap();
    let model = Model::load(path.to_str().unwrap(), None).unwrap();
    assert_eq!((model.layers.len(), model.source), (23, Source::File(path)));
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = Model::load("models/detect/yolov9-x.yaml", None).unwrap_err().to_string();
    assert!(error.contains("yolov9-x") && error.contains("gelan-e") && error.contains("hint"), "{error}");
}

#[test]
fn sizes_off_the_grid_are_refused_with_the_next_size() {
    let model = Model::load("yolov9-t", None).unwrap();
    let error = model.info(640, 500).unwrap_err().to_string();
    assert!(error.contains("640x500") && error.contains("32") && error.contains("640x512"), "{error}");
    assert!(model.info(0, 32).is_err());
    assert!(model.size(32, 32, BuildOptions { mode: Mode::Folded, branches: Branches::Main }).is_ok());
}

#[test]
fn heads_hand_out_split_logits_per_level() {
    let model = Model::load("yolov9-t", Some(7)).unwrap();
    for (branches, names) in [(Branches::All, vec!["aux", "main"]), (Branches::Main, vec!["main"])] {
        let mut b = GraphBuilder::new();
        let image = b.input("image", Shape::new(2, 64, 96, 3), DType::F32);
        let heads = model.build(&mut b, image, BuildOptions { mode: Mode::Training, branches }).unwrap();
        assert_eq!(heads.branches.iter().map(|x| x.name).collect::<Vec<_>>(), names);
        for branch in &heads.branches {
            for (level, stride) in branch.levels.iter().zip([8, 16, 32]) {
                assert_eq!(level.stride, stride);
                assert_eq!(b.shape(level.boxes), Shape::new(2, 64 / stride, 96 / stride, 64));
                assert_eq!(b.shape(level.classes), Shape::new(2, 64 / stride, 96 / stride, 7));
            }
        }
    }
}

#[test]
fn layers_end_in_a_boundary_except_the_stem() {
    use graph::Keep;
    let model = Model::load("yolov9-c", None).unwrap();
    let mut b = GraphBuilder::new();
    let image = b.input("image", Shape::new(1, 64, 64, 3), DType::F32);
    model.build(&mut b, image, BuildOptions::default()).unwrap();
    let graph = b.finish();
    let mut kept = vec![0; model.layers.len()];
    for node in graph.nodes() {
        if let Op::Conv2d(conv) = &node.op {
            let layer: usize = node.scope.strip_prefix("model.").unwrap().parse().unwrap();
            kept[layer] += usize::from(graph.tensor(conv.y).keep == Keep::Boundary);
        }
    }
    for layer in &model.layers {
        let want = match layer.module.as_str() {
            _ if layer.stride < 8 => 0,
            "Upsample" | "Concat" | "CBFuse" | "Silence" => 0,
            "ADown" => 2,
            "DualDDetect" => 12,
            _ => 1,
        };
        assert_eq!(kept[layer.index], want, "layer {} {}", layer.index, layer.module);
    }
}

#[test]
fn the_table_shows_rows_sums_and_marks_the_auxiliary_branch() {
    let info = Model::load("yolov9-t", None).unwrap().info(640, 640).unwrap();
    let table = info.table();
    let line =
        |start: &str| table.lines().find(|l| l.trim_start().starts_with(start)).unwrap_or_else(|| panic!("{table}"));
    assert!(line("21 ").contains("RepNCSPELAN4") && line("21 ").contains("266624"), "{table}");
    assert!(line("22a").contains("SPPELAN") && line("11 ").contains("[-1, 6]"), "{table}");
    assert!(line("folded, main branch only").contains("2407632 parameters     9.8 GFLOPs"), "{table}");
    let single = Model::load("gelan-t", None).unwrap().info(640, 640).unwrap().table();
    assert!(!single.contains("main branch only"), "{single}");
}
