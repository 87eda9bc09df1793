//! What every op of a plan reads and writes, and how long it takes about.

use super::hazards::Access;
use super::span::{Space, Span};
use graph::{Op, ParamId, Plan, TensorId, cost, ops};

/// Memory that each op uses: its tensors, `scratch` bytes of its workspace, and what it adds to flat buffers. Weights are
/// left out: nothing in a plan writes them.
pub fn uses(plan: &Plan, scratch: impl Fn(usize) -> u64) -> Vec<Vec<Access>> {
    let nodes = plan.graph().nodes().iter().enumerate();
    nodes.map(|(at, node)| op_uses(plan, &node.op, (plan.workspace(at).0, scratch(at)))).collect()
}

fn op_uses(plan: &Plan, op: &Op, (start, bytes): (u64, u64)) -> Vec<Access> {
    let operand = |(id, access)| Access { span: tensor(plan, id), write: access != ops::Access::Read };
    let mut uses: Vec<Access> = op.operands().into_iter().map(operand).collect();
    uses.push(Access { span: Span::flat(Space::Arena, start, bytes), write: true });
    let mut adds = |space, id: ParamId| {
        let slot = plan.params().slot(id);
        let span = Span::flat(space, 4 * slot.offset as u64, 4 * slot.len as u64);
        uses.push(Access { span, write: true });
    };
    match op {
        Op::ConvWeightGrad(c) => [Some(c.w), c.bias].into_iter().flatten().for_each(|id| adds(Space::Gradients, id)),
        Op::BnReduce(r) => {
            for params in r.branches.iter().map(|b| b.params) {
                adds(Space::Gradients, params.weight);
                adds(Space::Gradients, params.bias);
            }
        }
        Op::RunningStats(r) => {
            for entry in &r.entries {
                adds(Space::Buffers, entry.running_mean);
                adds(Space::Buffers, entry.running_var);
            }
        }
        // Nothing but tensors and weights.
        Op::Normalize(_)
        | Op::Conv2d(_)
        | Op::BatchNorm(_)
        | Op::BnStats(_)
        | Op::BnApply(_)
        | Op::Activate(_)
        | Op::Add(_)
        | Op::MaxPool(_)
        | Op::AvgPool(_)
        | Op::Resize(_)
        | Op::Concat(_)
        | Op::Slice(_)
        | Op::Copy(_)
        | Op::Fill(_)
        | Op::External(_)
        | Op::ConvDataGrad(_)
        | Op::BnBackward(_)
        | Op::ActivateGrad(_)
        | Op::MaxPoolGrad(_)
        | Op::AvgPoolGrad(_)
        | Op::ResizeGrad(_) => {}
    }
    uses
}

/// All physical channels of a tensor.
fn tensor(plan: &Plan, id: TensorId) -> Span {
    let (place, tensor) = (plan.placement(id), plan.graph().tensor(id));
    let element = plan.precision().of(tensor.kind).bytes();
    let (width, pitch) = ((place.channels * element) as u64, (place.pitch * element) as u64);
    Span { space: Space::Arena, start: place.offset, rows: tensor.shape.pixels() as u64, width, pitch }
}

/// About how many microseconds each op takes on a card of the kind that this is tuned for: the order of ops rests on
/// them, results do not.
pub fn microseconds(plan: &Plan) -> Vec<f64> {
    /// Arithmetic and bytes a microsecond that convolutions and passes over memory reach on one H200.
    const FLOPS: f64 = 500e6;
    const BYTES: f64 = 3.6e6;
    /// What any op costs.
    const LEAST: f64 = 4.0;
    let (graph, precision) = (plan.graph(), plan.precision());
    let of = |op: &Op| {
        let cost = cost(op, graph, precision);
        LEAST + (2.0 * cost.macs as f64 / FLOPS).max(cost.bytes as f64 / BYTES)
    };
    graph.nodes().iter().map(|node| of(&node.op)).collect()
}
