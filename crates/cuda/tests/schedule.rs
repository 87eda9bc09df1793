//! Schedules of real plans, on any machine: what conflicts stays in order, and what nobody waits for runs beside the rest.

use cuda::schedule::{Access, Step, microseconds, steps, uses};
use cuda::{CudaBackend, CudaOptions};
use detect::external::LevelTensors;
use graph::ops::Conv2d;
use graph::{
    Backend, CompileOptions, DType, Graph, GraphBuilder, Level, Op, Plan, Precision, Recompute, Shape, compile,
};
use model::{BuildOptions, Model};

const OPTIONS: CudaOptions = CudaOptions { precision: Precision::BF16, tf32: false, tune: false, capture: true };

/// The training step of a model, laid out for a backend.
fn plan(name: &str, [batch, side]: [usize; 2], level: Level, backend: &dyn Backend) -> Plan {
    let model = Model::load(name, None).expect("a model of the zoo");
    let mut b = GraphBuilder::new();
    let images = b.input("images", Shape::new(batch, side, side, 3), DType::U8);
    let x = b.normalize(images);
    let heads = model.build(&mut b, x, BuildOptions::default()).expect("builds");
    let maps = |l: &model::HeadLevel| LevelTensors { boxes: l.boxes, classes: l.classes };
    let branches: Vec<Vec<_>> = heads.branches.iter().map(|b| b.levels.iter().map(maps).collect()).collect();
    let weights = if branches.len() == 2 { vec![0.25, 1.0] } else { vec![1.0] };
    let config = detect::LossConfig::new(model.nc, weights);
    let (loss, _) = detect::external::loss(&mut b, config, &branches, 7 * batch, (side, side));
    let recompute = Recompute::Level(level);
    let options = CompileOptions { recompute, ..CompileOptions::training(OPTIONS.precision, loss) };
    compile(b.finish(), backend, &options).expect("a plan")
}

fn reserved(plan: &Plan) -> impl Fn(usize) -> u64 {
    |op| plan.workspace(op).1
}

/// By op, which ops are over when it starts.
fn over(steps: &[Step]) -> Vec<Vec<bool>> {
    let mut over = vec![Vec::new(); steps.len()];
    for step in steps {
        let mut own = vec![false; steps.len()];
        for &wait in &step.waits {
            assert!(!over[wait].is_empty(), "{step:?} is recorded before what it waits for");
            own.iter_mut().zip(&over[wait]).for_each(|(own, earlier): (&mut bool, &bool)| *own |= earlier);
            own[wait] = true;
        }
        over[step.op] = own;
    }
    over
}

fn conflict(a: &[Access], b: &[Access]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.conflicts(b)))
}

/// Microseconds from the start to the end were every lane a card of its own.
fn way(steps: &[Step], cost: &[f64]) -> f64 {
    let mut end = vec![0.0f64; cost.len()];
    for step in steps {
        end[step.op] = cost[step.op] + step.waits.iter().map(|&wait| end[wait]).fold(0.0, f64::max);
    }
    end.into_iter().fold(0.0, f64::max)
}

#[test]
fn conflicting_ops_of_real_plans_are_ordered_on_any_number_of_lanes() {
    let backend = CudaBackend::new(OPTIONS);
    for (name, level) in [
        ("yolov9-s", Level::KeepAll),
        ("yolov9-s", Level::DropInteriors),
        ("gelan-c", Level::KeepAll),
        ("gelan-c", Level::DropActivations),
    ] {
        let plan = plan(name, [2, 64], level, &backend);
        let uses = uses(&plan, reserved(&plan));
        let ops = plan.graph().nodes().len();
        let pairs = (0..ops).flat_map(|op| (0..op).map(move |earlier| (earlier, op)));
        let conflicting: Vec<_> = pairs.filter(|&(earlier, op)| conflict(&uses[earlier], &uses[op])).collect();
        assert!(conflicting.len() > 2 * ops);
        for lanes in [1, 2, 3, 4] {
            let steps = steps(&plan, lanes, reserved(&plan));
            assert!(steps.iter().all(|step| step.lane < lanes));
            let over = over(&steps);
            for &(earlier, op) in &conflicting {
                assert!(over[op][earlier], "{name} {level:?}, {lanes} lanes: {earlier} and {op}");
            }
        }
    }
}

#[test]
fn weight_gradients_leave_the_chain() {
    let plan = plan("yolov9-s", [16, 640], Level::KeepAll, &CudaBackend::new(OPTIONS));
    let cost = microseconds(&plan);
    let serial: f64 = cost.iter().sum();
    // With every byte of scratch that is reserved, and with none, which is what most products take.
    for (scratch, most) in [(1, 0.76), (0, 0.66)] {
        for lanes in [2, 3, 4] {
            let steps = steps(&plan, lanes, |op| scratch * plan.workspace(op).1);
            let ratio = way(&steps, &cost) / serial;
            let is_gradient = |s: &&Step| matches!(plan.graph().nodes()[s.op].op, Op::ConvWeightGrad(_));
            let gradients = steps.iter().filter(is_gradient);
            let beside = gradients.clone().filter(|s| s.lane != 0).count();
            println!(
                "{lanes} lanes: {ratio:.3} of {serial:.0} us, {beside} of {} weight gradients beside",
                gradients.count()
            );
            assert!(ratio < most, "{lanes} lanes take {ratio} of the time of one");
            assert!(beside >= 250, "{lanes} lanes: {beside} weight gradients beside the chain");
        }
    }
}

/// The same card, ops one after the other.
struct Serial(CudaBackend);

impl Backend for Serial {
    fn padded(&self, channels: usize) -> usize {
        self.0.padded(channels)
    }

    fn reads_bytes(&self, conv: &Conv2d, graph: &Graph, precision: Precision) -> bool {
        self.0.reads_bytes(conv, graph, precision)
    }

    fn workspace(&self, op: &Op, graph: &Graph, precision: Precision) -> u64 {
        self.0.workspace(op, graph, precision)
    }
}

#[test]
fn buffers_that_leave_room_for_each_other_take_no_byte_more() {
    let card = CudaBackend::new(OPTIONS);
    for (name, batch, level) in
        [("yolov9-s", 16, Level::KeepAll), ("yolov9-s", 8, Level::DropInteriors), ("gelan-t", 3, Level::KeepAll)]
    {
        let (packed, spread) = (plan(name, [batch, 320], level, &Serial(card)), plan(name, [batch, 320], level, &card));
        assert_eq!(spread.memory(), packed.memory(), "{name}");
        let slots = spread.slots();
        for (at, a) in slots.iter().enumerate() {
            assert!(a.offset + a.bytes <= spread.memory().arena);
            for b in slots[..at].iter().filter(|b| a.first <= b.last && b.first <= a.last) {
                assert!(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset, "{name}: {a:?} {b:?}");
            }
        }
        let way = |plan: &Plan| way(&steps(plan, 3, reserved(plan)), &microseconds(plan));
        let ratio = way(&spread) / way(&packed);
        println!("{name}: {ratio:.3}");
        assert!(ratio < 0.95, "{name}: {ratio}");
    }
}
