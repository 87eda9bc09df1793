//! Every op's gradient against central differences in float64, on channel counts that need padding.
//!
//! Each case builds `loss = sum(r * y)` with fixed pseudo-random `r` over what a small graph computes from
//! convolutions of a picture, so that an op's gradient shows in the gradient of the weights before it.

use cpu::external::ExternalIo;
use cpu::{CpuBackend, CpuExecutor};
use graph::ops::{ConvAttrs, External, PoolAttrs};
use graph::{
    Activation, BnParams, CompileOptions, DType, Executor, ExternalSpec, GraphBuilder, GraphError, Kind, Level,
    OptimizerKind, ParamGroup, ParamShape, Precision, Recompute, Region, ScratchSpec, Shape, StateSpec, TensorId,
    compile,
};
use std::any::Any;
use std::sync::Arc;

/// `sum(r * x)` over every logical element of every input.
#[derive(Debug)]
struct WeightedSum;

impl ExternalSpec for WeightedSum {
    fn name(&self) -> &'static str {
        "weighted_sum"
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

fn weighted_sum(op: &External, io: &mut ExternalIo<'_, '_, f64>) {
    let mut loss = 0.0;
    for (i, (&x, gradient)) in op.inputs.iter().zip(&op.gradients).enumerate() {
        let (shape, (pitch, channels)) = (io.shape(x), io.pitch(x));
        let values = io.elements(x);
        let mut gradient = gradient.map(|g| (io.elements_mut(g), io.pitch(g).0));
        for p in 0..shape.pixels() {
            for c in 0..channels {
                let r = if c < shape.c { testkit::fill_v("r", (i * 1000 + p) * 1000 + c) } else { 0.0 };
                loss += r * values[p * pitch + c];
                if let Some((gradient, pitch)) = &mut gradient {
                    gradient[p * *pitch + c] = r;
                }
            }
        }
    }
    io.elements_mut(op.outputs[0])[0] = loss;
}

/// A graph under construction with numbered parameters.
struct Net {
    b: GraphBuilder,
    count: usize,
}

impl Net {
    fn conv(&mut self, x: TensorId, out: usize, kernel: usize, stride: usize, groups: usize, bias: bool) -> TensorId {
        self.count += 1;
        self.b.set_scope(format!("conv{}", self.count));
        let in_per_group = self.b.shape(x).c / groups;
        let shape = ParamShape::Conv { out, in_per_group, kernel };
        let w = self.b.param(&format!("conv{}.weight", self.count), shape, ParamGroup::Weight).expect("new");
        let vector = ParamShape::Vector { channels: out };
        let name = format!("conv{}.bias", self.count);
        let bias = bias.then(|| self.b.param(&name, vector, ParamGroup::Bias).expect("new"));
        self.b.conv(x, w, bias, ConvAttrs { groups, ..ConvAttrs::new(kernel, stride) }).expect("fits")
    }

    fn bn(&mut self, x: TensorId) -> TensorId {
        self.count += 1;
        let vector = ParamShape::Vector { channels: self.b.shape(x).c };
        let mut param =
            |what: &str, group| self.b.param(&format!("bn{}.{what}", self.count), vector, group).expect("new");
        let params = BnParams {
            weight: param("weight", ParamGroup::Norm),
            bias: param("bias", ParamGroup::Bias),
            running_mean: param("running_mean", ParamGroup::Buffer),
            running_var: param("running_var", ParamGroup::Buffer),
        };
        self.b.batch_norm(x, params, 1e-3)
    }

    fn block(&mut self, x: TensorId, out: usize, kernel: usize, stride: usize) -> TensorId {
        let y = self.conv(x, out, kernel, stride, 1, false);
        let y = self.bn(y);
        self.b.activation(y, Activation::Silu)
    }
}

const PICTURE: Shape = Shape::new(2, 7, 6, 3);

/// Compiles a net at a level; returns loss and gradients as functions of its flat weights.
fn compiled(
    build: &dyn Fn(&mut Net, TensorId) -> Vec<TensorId>,
    level: Level,
) -> (CpuExecutor<f64>, graph::PlanId, TensorId, Arc<graph::Plan>) {
    let mut net = Net { b: GraphBuilder::new(), count: 0 };
    let images = net.b.input("images", PICTURE, DType::U8);
    let x = net.b.normalize(images);
    let outputs = build(&mut net, x);
    net.b.set_scope("loss");
    let loss = net.b.external(Arc::new(WeightedSum), &outputs)[0];
    net.b.output(loss);
    let options =
        CompileOptions { recompute: Recompute::Level(level), ..CompileOptions::training(Precision::F64, loss) };
    let plan = Arc::new(compile(net.b.finish(), &CpuBackend, &options).expect("compiles"));
    let layout = plan.params().clone();
    let mut weights = vec![0.0f64; layout.weight_elements()];
    for slot in layout.slots().iter().filter(|s| s.param.group != ParamGroup::Buffer) {
        let fan_in = slot.param.shape.elements() / slot.param.shape.dims()[0];
        let scale = (3.0 / fan_in as f64).sqrt();
        let base = if slot.param.name.ends_with("weight") && slot.param.name.starts_with("bn") { 1.0 } else { 0.0 };
        let values: Vec<f64> = (0..slot.param.shape.elements())
            .map(|i| base + testkit::fill_v(&slot.param.name, i) * if base == 1.0 { 0.3 } else { scale })
            .collect();
        slot.scatter(&values, &mut weights);
    }
    let mut executor = CpuExecutor::<f64>::new(StateSpec { layout, optimizer: Some(OptimizerKind::Sgd), ema: false });
    executor.register("weighted_sum", weighted_sum);
    let id = executor.prepare(plan.clone()).expect("prepared");
    executor.region_mut(Region::Weights).expect("kept").copy_from_slice(&weights);
    (executor, id, loss, plan)
}

/// Writes the picture, whose memory the last run has reused, and runs.
fn run(executor: &mut CpuExecutor<f64>, id: graph::PlanId, plan: &graph::Plan) {
    let pixels = crate::common::pictures("image", 2, PICTURE.h, PICTURE.w);
    executor.upload_u8(id, plan.graph().inputs()[0], &pixels).expect("pixels");
    executor.run(id).expect("runs");
}

fn check(name: &str, build: impl Fn(&mut Net, TensorId) -> Vec<TensorId>) {
    let mut reference: Option<Vec<f64>> = None;
    for level in Level::ALL {
        let (mut executor, id, loss, plan) = compiled(&build, level);
        run(&mut executor, id, &plan);
        let gradients = executor.region(Region::Gradients).expect("kept").to_vec();
        match &reference {
            Some(first) => assert!(*first == gradients, "{name}: {level:?} gives other gradients"),
            None => {
                let start = executor.region(Region::Weights).expect("kept").to_vec();
                let mut at_loss = |index: usize, delta: f64| {
                    let weights = executor.region_mut(Region::Weights).expect("kept");
                    weights.copy_from_slice(&start);
                    weights[index] += delta;
                    run(&mut executor, id, &plan);
                    executor.download_elements(id, loss)[0]
                };
                for slot in plan.params().slots().iter().filter(|s| s.param.group != ParamGroup::Buffer) {
                    let mut physical = Vec::new();
                    slot.for_each(|_, p| physical.push(p));
                    // A handful spread over each parameter: every output channel range and tap gets its turn.
                    let samples = physical.len().min(if plan.params().slots().len() > 20 { 2 } else { 4 });
                    for k in 0..samples {
                        let index = physical[k * (physical.len() - 1) / (samples.max(2) - 1)];
                        let eps = 1e-5;
                        let numeric = (at_loss(index, eps) - at_loss(index, -eps)) / (2.0 * eps);
                        let got = gradients[index];
                        let bound = 1e-6 * (1.0 + numeric.abs());
                        assert!(
                            (got - numeric).abs() <= bound,
                            "{name}: gradient of {}[{index}] is {got}, differences say {numeric}",
                            slot.param.name
                        );
                    }
                    let padding = slot.range().filter(|p| !physical.contains(p));
                    padding.for_each(|p| assert_eq!(gradients[p], 0.0, "{name}: padding of {}", slot.param.name));
                }
            }
        }
        reference.get_or_insert(gradients);
    }
}

const CHANNELS: [usize; 6] = [3, 20, 60, 66, 90, 180];

#[test]
fn convolutions() {
    for c in CHANNELS {
        check(&format!("3x3 of {c}"), |n, x| {
            let y = n.conv(x, c, 3, 1, 1, true);
            vec![n.conv(y, 12, 3, 2, 1, false)]
        });
        check(&format!("1x1 of {c}"), |n, x| {
            let y = n.conv(x, c, 1, 2, 1, false);
            vec![n.conv(y, c, 1, 1, 1, true)]
        });
    }
    for (c, groups) in [(20, 4), (60, 4), (66, 2), (180, 4), (64, 4)] {
        check(&format!("{groups} groups of {c}"), |n, x| {
            let y = n.conv(x, c, 1, 1, 1, false);
            let y = n.conv(y, c, 3, 1, groups, true);
            vec![n.conv(y, 16, 1, 1, groups.min(16), true)]
        });
    }
}

#[test]
fn batch_norm_with_activation() {
    for c in CHANNELS {
        check(&format!("bn silu of {c}"), |n, x| {
            let y = n.block(x, c, 3, 1);
            vec![n.block(y, 8, 1, 2)]
        });
    }
    for act in [Activation::Identity, Activation::Relu, Activation::LeakyRelu(0.1)] {
        check(&format!("bn {act:?}"), |n, x| {
            let y = n.conv(x, 20, 3, 1, 1, false);
            let y = n.bn(y);
            let y = n.b.activation(y, act);
            vec![n.conv(y, 3, 1, 1, 1, true)]
        });
    }
}

#[test]
fn activation_without_batch_norm() {
    check("silu after a biased convolution", |n, x| {
        let y = n.conv(x, 20, 3, 1, 1, true);
        let y = n.b.activation(y, Activation::Silu);
        vec![n.conv(y, 4, 1, 1, 1, false), y]
    });
}

#[test]
fn two_branches_and_a_residual() {
    for c in CHANNELS {
        check(&format!("RepConv and sum of {c}"), |n, x| {
            let mut x = n.block(x, c, 1, 1);
            for _ in 0..2 {
                let three = n.conv(x, c, 3, 1, 1, false);
                let three = n.bn(three);
                let one = n.conv(x, c, 1, 1, 1, false);
                let one = n.bn(one);
                let sum = n.b.add(&[three, one]).expect("fits");
                let y = n.b.activation(sum, Activation::Silu);
                let y = n.block(y, c, 3, 1);
                x = n.b.add(&[x, y]).expect("fits");
            }
            vec![n.conv(x, 5, 1, 1, 1, false)]
        });
    }
}

#[test]
fn sums_of_several_and_of_one_twice() {
    check("sums", |n, x| {
        let a = n.block(x, 20, 1, 1);
        let b = n.block(x, 20, 3, 1);
        let c = n.conv(x, 20, 1, 1, 1, true);
        let three = n.b.add(&[a, b, c]).expect("fits");
        let twice = n.b.add(&[three, three]).expect("fits");
        let again = n.b.add(&[twice, a]).expect("fits");
        vec![n.conv(again, 6, 1, 1, 1, false)]
    });
}

#[test]
fn pools() {
    for c in CHANNELS {
        check(&format!("pools of {c}"), |n, x| {
            let y = n.block(x, c, 1, 1);
            let a = n.b.max_pool(y, PoolAttrs { kernel: 5, stride: 1, pad: 2 }).expect("fits");
            let b = n.b.max_pool(a, PoolAttrs { kernel: 3, stride: 2, pad: 1 }).expect("fits");
            let d = n.b.avg_pool(y, PoolAttrs { kernel: 2, stride: 1, pad: 0 }).expect("fits");
            vec![n.conv(a, 3, 1, 1, 1, false), n.conv(b, 3, 1, 1, 1, false), n.conv(d, 3, 3, 2, 1, false)]
        });
    }
}

#[test]
fn resizing() {
    for (h, w) in [(14, 12), (3, 4), (7, 12), (16, 13)] {
        check(&format!("resize to {h}x{w}"), |n, x| {
            let y = n.block(x, 20, 3, 1);
            let up = n.b.resize(y, h, w);
            vec![n.conv(up, 3, 1, 1, 1, false), n.conv(y, 2, 1, 1, 1, false)]
        });
    }
}

#[test]
fn concatenations_and_ranges() {
    for c in CHANNELS.into_iter().filter(|c| c % 2 == 0) {
        check(&format!("ELAN wiring of {c}"), |n, x| {
            let t = n.block(x, c, 1, 1);
            let half = n.b.slice(t, c / 2, c / 2).expect("inside");
            let y2 = n.block(half, c / 2 + 1, 3, 1);
            let y3 = n.block(y2, 5, 3, 1);
            let whole = n.b.concat(&[t, y2, y3]).expect("fits");
            vec![n.block(whole, 9, 1, 1)]
        });
        check(&format!("halves of {c}, one used twice and one only here"), |n, x| {
            let t = n.block(x, c, 1, 1);
            let (a, b) = (n.b.slice(t, 0, c / 2).expect("inside"), n.b.slice(t, c / 2, c / 2).expect("inside"));
            let a = n.block(a, 7, 3, 2);
            let pooled = n.b.max_pool(b, PoolAttrs { kernel: 3, stride: 2, pad: 1 }).expect("fits");
            let b = n.block(pooled, 6, 1, 1);
            let whole = n.b.concat(&[a, b]).expect("fits");
            vec![n.conv(whole, 5, 1, 1, 1, false)]
        });
    }
    check("one tensor in two concatenations and twice in one", |n, x| {
        let a = n.block(x, 20, 1, 1);
        let b = n.block(a, 12, 3, 1);
        let first = n.b.concat(&[a, b]).expect("fits");
        let c = n.block(first, 10, 1, 1);
        let second = n.b.concat(&[c, a, c]).expect("fits");
        let third = n.b.concat(&[second, b]).expect("fits");
        vec![n.block(third, 4, 1, 1), n.conv(a, 3, 1, 1, 1, false)]
    });
    check("the picture itself in a concatenation", |n, x| {
        let a = n.block(x, 20, 3, 1);
        let whole = n.b.concat(&[a, x]).expect("fits");
        vec![n.block(whole, 6, 3, 1)]
    });
    check("a part that is only half used", |n, x| {
        let a = n.block(x, 20, 1, 1);
        let half = n.b.slice(a, 4, 11).expect("inside");
        vec![n.conv(half, 3, 1, 1, 1, false)]
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_both() {
    let mut net = Net { b: GraphBuilder::new(), count: 0 };
    let images = net.b.input("images", PICTURE, DType::U8);
    let x = net.b.normalize(images);
    let a = net.conv(x, 4, 1, 1, 1, false);
    let b = net.conv(x, 4, 1, 2, 1, false);
    net.b.set_scope("model.7");
    let left = net.b.shape(a);
    match net.b.add(&[a, b]) {
        Err(GraphError::Shapes { scope, left: l, right, .. }) => {
            assert_eq!((scope.as_str(), l, right), ("model.7", left, net.b.shape(b)));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(net.b.concat(&[a, b]), Err(GraphError::Shapes { .. })));
    assert!(matches!(net.b.slice(a, 3, 2), Err(GraphError::Range { .. })));
    let pool = PoolAttrs { kernel: 30, stride: 1, pad: 0 };
    assert!(matches!(net.b.max_pool(a, pool), Err(GraphError::Window { .. })));
}
