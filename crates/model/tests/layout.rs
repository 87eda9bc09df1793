//! Compiled models: every build has a plan, and weights survive the way into its padded layout and back.

use graph::{Backend, CompileOptions, DType, Graph, GraphBuilder, Op, Plan, Precision, Shape, compile};
use model::{Branches, BuildOptions, Mode, Model, NamedTensors, fold, init, zoo};

struct NoScratch;

impl Backend for NoScratch {
    fn workspace(&self, _: &Op, _: &Graph, _: Precision) -> u64 {
        0
    }
}

fn plan(model: &Model, options: BuildOptions) -> Plan {
    let mut b = GraphBuilder::new();
    let image = b.input("image", Shape::new(2, 64, 64, 3), DType::F32);
    let heads = model.build(&mut b, image, options).unwrap();
    for level in heads.branches.iter().flat_map(|branch| &branch.levels) {
        b.output(level.boxes);
        b.output(level.classes);
    }
    compile(b.finish(), &NoScratch, &CompileOptions::inference(Precision::F32)).unwrap()
}

fn builds() -> impl Iterator<Item = BuildOptions> {
    let modes = [Mode::Training, Mode::Folded];
    modes.into_iter().flat_map(|mode| [Branches::All, Branches::Main].map(|branches| BuildOptions { mode, branches }))
}

#[test]
fn every_build_of_every_model_compiles() {
    for (name, _) in zoo::ZOO {
        let model = Model::load(name, None).unwrap();
        for options in builds() {
            let plan = plan(&model, options);
            let heads = model.state(options).unwrap();
            let wanted = heads.iter().filter(|e| !e.name.contains(".dfl") && !e.dims.is_empty()).count();
            assert_eq!(plan.params().slots().len(), wanted, "{name} {options:?}");
        }
    }
}

#[test]
fn weights_survive_the_padded_layout() {
    // Its channels are no multiples of 8.
    let model = Model::load(testkit::fixture("models/yolov9-cmicro.yaml").to_str().unwrap(), None).unwrap();
    let trained = init(&model, 5).unwrap();
    for options in builds() {
        let source = if options.mode == Mode::Folded { fold(&trained).unwrap() } else { trained.clone() };
        let plan = plan(&model, options);
        let layout = plan.params();
        let mut weights = vec![0f32; layout.weight_elements()];
        let mut buffers = vec![0f32; layout.buffer_elements()];
        source.scatter(layout, &mut weights, &mut buffers).unwrap();
        let entries = model.state(options).unwrap();
        let mut back = NamedTensors::zeros(&entries);
        back.gather(layout, &weights, &buffers);
        back.check(&entries, "gathered").unwrap();
        for (name, tensor) in back.iter() {
            assert_eq!(Some(tensor), source.get(name), "{name}");
        }
    }
}

#[test]
fn scattering_names_the_missing_tensor() {
    let model = Model::load("gelan-t", Some(2)).unwrap();
    let plan = plan(&model, BuildOptions::default());
    let layout = plan.params();
    let mut weights = vec![0f64; layout.weight_elements()];
    let mut buffers = vec![0f64; layout.buffer_elements()];
    let other = init(&Model::load("gelan-t", Some(80)).unwrap(), 1).unwrap();
    let error = other.scatter(layout, &mut weights, &mut buffers).unwrap_err().to_string();
    assert!(error.contains("model.22.cv3.0.0.conv.weight [128, 64, 3, 3] instead of [64, 64, 3, 3]"), "{error}");
    assert!(weights.iter().all(|&v| v == 0.0), "a failed scatter wrote something");
}
