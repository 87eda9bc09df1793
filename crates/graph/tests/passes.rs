//! What the passes make of small graphs, seen through compiled plans. Values are checked where plans run, in the
//! executor's crate.

use graph::ops::{Conv2d, ConvAttrs, PoolAttrs};
use graph::{
    Activation, Backend, BnParams, Category, CompileOptions, DType, Graph, GraphBuilder, Kind, Level, Op, ParamGroup,
    ParamShape, Plan, Precision, Recompute, ScratchSpec, Shape, TensorId, compile, model_flops,
};
use std::any::Any;
use std::sync::Arc;

/// A device whose ops need no scratch.
struct Null;

impl Backend for Null {
    fn workspace(&self, _: &Op, _: &Graph, _: Precision) -> u64 {
        0
    }
}

/// One whose convolutions to 16 channels read bytes.
struct Bytes;

impl Backend for Bytes {
    fn reads_bytes(&self, conv: &Conv2d, graph: &Graph, _: Precision) -> bool {
        assert_eq!(graph.tensor(conv.x).kind, Kind::Raw(DType::U8));
        graph.tensor(conv.y).shape.c == 16
    }

    fn workspace(&self, _: &Op, _: &Graph, _: Precision) -> u64 {
        0
    }
}

#[derive(Debug)]
struct Loss;

impl graph::ExternalSpec for Loss {
    fn name(&self) -> &'static str {
        "loss"
    }
    fn outputs(&self, _: &[Shape]) -> Vec<(&'static str, Shape, Kind)> {
        vec![("loss", Shape::vector(1), Kind::Statistic)]
    }
    fn scratch(&self, _: &[Shape]) -> ScratchSpec {
        ScratchSpec::default()
    }
    fn differentiates(&self, _: usize) -> bool {
        true
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[derive(Default)]
struct Net {
    b: GraphBuilder,
    count: usize,
}

impl Net {
    fn picture(&mut self) -> TensorId {
        let images = self.b.input("images", Shape::new(1, 8, 8, 3), DType::U8);
        self.b.normalize(images)
    }

    fn conv(&mut self, x: TensorId, out: usize) -> TensorId {
        self.count += 1;
        let shape = ParamShape::Conv { out, in_per_group: self.b.shape(x).c, kernel: 1 };
        let w = self.b.param(&format!("conv{}", self.count), shape, ParamGroup::Weight).expect("new");
        self.b.conv(x, w, None, ConvAttrs::new(1, 1)).expect("fits")
    }

    fn bn(&mut self, x: TensorId) -> TensorId {
        self.count += 1;
        let shape = ParamShape::Vector { channels: self.b.shape(x).c };
        let mut param =
            |what: &str, group| self.b.param(&format!("bn{}.{what}", self.count), shape, group).expect("new");
        let params = BnParams {
            weight: param("weight", ParamGroup::Norm),
            bias: param("bias", ParamGroup::Bias),
            running_mean: param("mean", ParamGroup::Buffer),
            running_var: param("var", ParamGroup::Buffer),
        };
        self.b.batch_norm(x, params, 1e-3)
    }

    fn block(&mut self, x: TensorId, out: usize) -> TensorId {
        let y = self.conv(x, out);
        let y = self.bn(y);
        self.b.activation(y, Activation::Silu)
    }

    fn train(self, outputs: &[TensorId], level: Level) -> Plan {
        self.train_on(&Null, outputs, level)
    }

    fn train_on(mut self, backend: &dyn Backend, outputs: &[TensorId], level: Level) -> Plan {
        let loss = self.b.external(Arc::new(Loss), outputs)[0];
        self.b.output(loss);
        let recompute = Recompute::Level(level);
        let options = CompileOptions { recompute, ..CompileOptions::training(Precision::F32, loss) };
        compile(self.b.finish(), backend, &options).expect("compiles")
    }
}

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.graph().nodes().iter().map(|n| n.op.name()).collect()
}

fn count(plan: &Plan, name: &str) -> usize {
    names(plan).iter().filter(|n| **n == name).count()
}

#[test]
fn repconv_and_residual_become_one_apply() {
    let mut n = Net::default();
    let x = n.picture();
    let x = n.block(x, 8);
    let (a, b) = (n.conv(x, 8), n.conv(x, 8));
    let (a, b) = (n.bn(a), n.bn(b));
    let sum = n.b.add(&[a, b]).expect("fits");
    let y = n.b.activation(sum, Activation::Silu);
    let y = n.block(y, 8);
    let y = n.b.add(&[x, y]).expect("fits");
    let plan = n.train(&[y], Level::KeepAll);
    let applies: Vec<_> = plan
        .graph()
        .nodes()
        .iter()
        .filter_map(|n| match &n.op {
            Op::BnApply(op) => Some((op.branches.len(), op.act, op.residual.is_some())),
            _ => None,
        })
        .collect();
    let silu = Activation::Silu;
    assert_eq!(applies, [(1, silu, false), (2, silu, false), (1, silu, true)]);
    assert_eq!((count(&plan, "Add"), count(&plan, "Activate"), count(&plan, "BatchNorm")), (0, 0, 0));
    // The residual's gradient is the sum's own: nothing is copied.
    assert_eq!(count(&plan, "Copy"), 0, "{:?}", names(&plan));
}

#[test]
fn folded_convolutions_take_their_activation() {
    let mut n = Net::default();
    let x = n.picture();
    let y = n.conv(x, 8);
    let y = n.b.activation(y, Activation::Silu);
    n.b.output(y);
    let plan = compile(n.b.finish(), &Null, &CompileOptions::inference(Precision::F32)).expect("compiles");
    assert_eq!(names(&plan), ["Normalize", "Conv2d"]);
    assert!(matches!(&plan.graph().nodes()[1].op, Op::Conv2d(c) if c.act == Activation::Silu && c.y == y));
}

#[test]
fn concatenations_copy_only_what_lies_elsewhere() {
    let mut n = Net::default();
    let x = n.picture();
    let (a, b) = (n.block(x, 20), n.block(x, 12));
    let first = n.b.concat(&[a, b]).expect("fits");
    let second = n.b.concat(&[b, a]).expect("fits");
    let y = n.block(first, 8);
    let z = n.block(second, 8);
    let plan = n.train(&[y, z], Level::KeepAll);
    let forward = &names(&plan)[..plan.forward_ops()];
    assert_eq!(forward.iter().filter(|n| **n == "Copy").count(), 2, "{forward:?}");
    let (a, b, first) = (plan.placement(a), plan.placement(b), plan.placement(first));
    assert_eq!((a.offset, a.pitch, a.channels), (first.offset, 24 + 16, 24));
    assert_eq!(b.offset, first.offset + 24 * 4);
}

#[test]
fn recomputation_drops_what_its_level_says() {
    let build = |level| {
        let mut n = Net::default();
        let mut x = n.picture();
        for _ in 0..4 {
            n.count += 10;
            x = n.block(x, 16);
            x = n.b.max_pool(x, PoolAttrs { kernel: 3, stride: 1, pad: 1 }).expect("fits");
        }
        n.train(&[x], level)
    };
    let [all, activations, interiors] = Level::ALL.map(build);
    let backward = |plan: &Plan, name: &str| names(plan)[plan.forward_ops()..].iter().filter(|n| **n == name).count();
    assert_eq!((backward(&all, "BnApply"), backward(&all, "Conv2d")), (0, 0));
    assert!(backward(&activations, "BnApply") > 0 && backward(&activations, "Conv2d") == 0);
    // No tensor is marked as a boundary here: every convolution runs again.
    assert!(backward(&interiors, "Conv2d") > 0);
    let kept = |plan: &Plan| plan.memory().total_of(Category::Kept);
    assert!(kept(&all) > kept(&activations) && kept(&activations) > kept(&interiors));
    // Statistics are never computed twice.
    assert!([&all, &activations, &interiors].iter().all(|p| count(p, "BnStats") == 4));
}

#[test]
fn the_arithmetic_of_a_step_is_the_same_at_every_level() {
    let plan = |level| {
        let mut n = Net::default();
        let x = n.picture();
        let x = n.block(x, 16);
        let x = n.block(x, 16);
        n.train(&[x], level)
    };
    let plans = Level::ALL.map(plan);
    assert!(count(&plans[2], "Conv2d") > count(&plans[0], "Conv2d"), "some are computed twice");
    let (pixels, weights) = (64, [3 * 16, 16 * 16]);
    // The picture needs no gradient; what the second convolution reads does.
    let flops = 2 * pixels * (2 * weights[0] + 3 * weights[1]);
    assert_eq!(plans.map(|plan| model_flops(&plan)), [flops; 3]);
}

#[test]
fn frozen_layers_get_no_gradient() {
    let mut n = Net::default();
    let x = n.picture();
    let x = n.block(x, 8);
    n.b.freeze(|_| true);
    let y = n.conv(x, 8);
    let plan = n.train(&[y], Level::KeepAll);
    assert_eq!((count(&plan, "ConvWeightGrad"), count(&plan, "ConvDataGrad"), count(&plan, "BnReduce")), (1, 0, 0));
}

#[test]
fn compiling_twice_gives_the_same_plan() {
    let build = || {
        let mut n = Net::default();
        let x = n.picture();
        let (a, b, c) = (n.conv(x, 20), n.conv(x, 20), n.conv(x, 20));
        let (a, b, c) = (n.bn(a), n.bn(b), n.bn(c));
        n.train(&[a, b, c], Level::KeepAll)
    };
    let (one, two) = (build(), build());
    assert_eq!(format!("{:?}", one.graph()), format!("{:?}", two.graph()));
    assert_eq!(one.slots(), two.slots());
}

/// Two stems over one picture, as in models that read it twice.
fn two_stems(backend: &dyn Backend, outputs: usize, level: Level) -> Plan {
    let mut n = Net::default();
    let x = n.picture();
    let (a, b) = (n.block(x, 16), n.block(x, outputs));
    let (a, b) = (n.block(a, 24), n.block(b, 24));
    n.train_on(backend, &[a, b], level)
}

#[test]
fn stems_that_read_bytes_need_no_normalised_picture() {
    for level in Level::ALL {
        let (bytes, plain) = (two_stems(&Bytes, 16, level), two_stems(&Null, 16, level));
        assert_eq!((count(&bytes, "Normalize"), count(&plain, "Normalize") > 0), (0, true));
        let images = bytes.graph().inputs()[0];
        let reads = |op: &Op| match op {
            Op::Conv2d(c) => c.x == images,
            Op::ConvWeightGrad(c) => c.x == images,
            _ => false,
        };
        let kinds: Vec<&str> =
            bytes.graph().nodes().iter().map(|n| &n.op).filter(|op| reads(op)).map(Op::name).collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "ConvWeightGrad").count(), 2, "{kinds:?}");
        // The last level runs the stems again for the backward pass.
        let forward = if level == Level::DropInteriors { 4 } else { 2 };
        assert_eq!(kinds.len(), forward + 2, "{kinds:?}");
        // The picture stays 3 channels wide, and is there for the backward pass; weights are as they always were.
        let at = bytes.placement(images);
        assert_eq!((at.pitch, at.channels), (3, 3));
        let last = bytes.graph().nodes().iter().rposition(|n| n.op.reads().contains(&images)).expect("read");
        let slot = bytes.slots().iter().find(|s| s.tensor == Some(images)).expect("a place");
        assert_eq!((slot.first, slot.last), (0, last));
        assert_eq!(bytes.params(), plain.params());
        assert_eq!(bytes.params().find("conv1").expect("the stem").len, 16 * 8);
        assert!(bytes.memory().arena <= plain.memory().arena);
    }
}

#[test]
fn one_reader_that_wants_normalised_pictures_keeps_them() {
    let count_of = |plan: &Plan| count(plan, "Normalize");
    assert_eq!(count_of(&two_stems(&Bytes, 24, Level::KeepAll)), 1, "a stem that the device does not run on bytes");
    let mut n = Net::default();
    let x = n.picture();
    let y = n.conv(x, 16);
    let z = n.b.max_pool(x, PoolAttrs { kernel: 2, stride: 2, pad: 0 }).expect("fits");
    n.b.output(y);
    n.b.output(z);
    let plan = compile(n.b.finish(), &Bytes, &CompileOptions::inference(Precision::F32)).expect("compiles");
    assert_eq!(count_of(&plan), 1, "a pool");
    let mut n = Net::default();
    let x = n.picture();
    let y = n.conv(x, 16);
    n.b.output(y);
    n.b.output(x);
    let plan = compile(n.b.finish(), &Bytes, &CompileOptions::inference(Precision::F32)).expect("compiles");
    assert_eq!(count_of(&plan), 1, "an output of the plan");
}

#[test]
fn folded_stems_over_bytes_take_their_activation() {
    let mut n = Net::default();
    let x = n.picture();
    let y = n.conv(x, 16);
    let y = n.b.activation(y, Activation::Silu);
    n.b.output(y);
    let plan = compile(n.b.finish(), &Bytes, &CompileOptions::inference(Precision::F32)).expect("compiles");
    assert_eq!(names(&plan), ["Conv2d"]);
    assert!(matches!(&plan.graph().nodes()[0].op, Op::Conv2d(c) if c.act == Activation::Silu && c.y == y));
}
