//! From a recorded graph to a plan.

use crate::executor::Backend;
use crate::graph::{Graph, TensorId};
use crate::memory;
use crate::ops::{Op, RunningEntry, RunningStats};
use crate::params::ParamLayout;
use crate::passes::{autodiff, bytes, fuse, ranges, recompute};
use crate::plan::{Placement, Plan};
use crate::{GraphError, Precision, channels};

/// How much of the forward pass is kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything the backward pass reads: the fastest.
    KeepAll,
    /// Outputs of convolutions; what follows from them (batch norm, activation, pools, concatenations) is
    /// recomputed.
    DropActivations,
    /// Only the last convolution of each block; stem and block interiors are recomputed.
    DropInteriors,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::KeepAll, Level::DropActivations, Level::DropInteriors];
}

/// Which level to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    Level(Level),
    /// The fastest level whose arena is no larger than this many bytes.
    Budget(u64),
}

/// Options of [`compile`].
#[derive(Clone, Debug)]
pub struct CompileOptions {
    pub precision: Precision,
    /// Adds the backward pass and the update of running statistics.
    pub training: bool,
    pub recompute: Recompute,
    /// Momentum of running statistics.
    pub bn_momentum: f64,
    /// Running statistics are left alone when this output (the loss) is not finite.
    pub guard: Option<TensorId>,
}

impl CompileOptions {
    /// Forward pass only.
    pub fn inference(precision: Precision) -> Self {
        let recompute = Recompute::Level(Level::KeepAll);
        Self { precision, training: false, recompute, bn_momentum: 0.03, guard: None }
    }

    /// Forward pass, loss and backward pass, everything kept. `guard` is the loss.
    pub fn training(precision: Precision, guard: TensorId) -> Self {
        Self { training: true, guard: Some(guard), ..Self::inference(precision) }
    }
}

/// Compiles a graph for a backend.
///
/// # Errors
/// A graph whose channels cannot be laid out, a tensor above 2^31 elements, or a budget below what the
/// last level needs.
pub fn compile(mut graph: Graph, backend: &dyn Backend, options: &CompileOptions) -> Result<Plan, GraphError> {
    fuse::run(&mut graph, options.training);
    bytes::run(&mut graph, backend, options.precision);
    ranges::run(&mut graph);
    channels::infer(&mut graph, |channels| backend.padded(channels))?;
    if options.training {
        push_running_stats(&mut graph, options);
    }
    let forward = graph.nodes.len();
    if options.training {
        autodiff::run(&mut graph);
    }
    match options.recompute {
        Recompute::Level(level) => finish(graph, forward, level, backend, options),
        Recompute::Budget(budget) => {
            let mut needed = 0;
            for level in Level::ALL {
                let plan = finish(graph.clone(), forward, level, backend, options)?;
                needed = plan.memory.arena;
                if needed <= budget {
                    return Ok(plan);
                }
            }
            Err(GraphError::Budget { needed, budget })
        }
    }
}

fn finish(
    mut graph: Graph,
    forward: usize,
    level: Level,
    backend: &dyn Backend,
    options: &CompileOptions,
) -> Result<Plan, GraphError> {
    recompute::run(&mut graph, forward, level);
    memory::mark_kept(&mut graph, forward);
    let params = ParamLayout::of(&graph);
    let scratch: Vec<u64> = graph.nodes.iter().map(|n| backend.workspace(&n.op, &graph, options.precision)).collect();
    let (mut slots, memory) = memory::place(&graph, options.precision, &scratch)?;
    if backend.runs_side_by_side() {
        memory::spread(&mut slots, memory.arena);
    }
    let mut placements = vec![Placement::default(); graph.tensors.len()];
    let mut workspace = vec![(0, 0); graph.nodes.len()];
    for slot in &slots {
        match slot.tensor {
            Some(id) => placements[id.index()].offset = slot.offset,
            None => workspace[slot.first] = (slot.offset, slot.bytes),
        }
    }
    for id in graph.tensor_ids() {
        let (root, start) = graph.root(id);
        let (map, tensor) = (&graph.tensor(root).map, graph.tensor(id));
        let element = options.precision.of(tensor.kind).bytes() as u64;
        placements[id.index()] = Placement {
            offset: placements[root.index()].offset + map.index(start) as u64 * element,
            pitch: map.physical(),
            channels: tensor.map.physical(),
        };
    }
    let precision = options.precision;
    Ok(Plan { graph, forward, params, placements, workspace, slots, memory, precision, level })
}

/// One op that folds all batch statistics into the running ones, after the loss.
fn push_running_stats(graph: &mut Graph, options: &CompileOptions) {
    let mut entries = Vec::new();
    for node in &graph.nodes {
        let Op::BnApply(op) = &node.op else { continue };
        for b in &op.branches {
            let (running_mean, running_var) = (b.params.running_mean, b.params.running_var);
            let count = graph.tensor(b.x).shape.pixels();
            entries.push(RunningEntry { mean: b.mean, var: b.var, running_mean, running_var, count });
        }
    }
    let op = RunningStats { entries, momentum: options.bn_momentum, guard: options.guard };
    graph.nodes.push(crate::Node { op: op.into(), scope: "running_stats".to_owned() });
}
