//! Launches recorded once and repeated as one: a CUDA graph costs the host some 100 us however many launches it holds,
//! and runs side by side what does not wait for each other.

use crate::device::Gpu;
use crate::error::{CudaError, Result};
use crate::schedule::Step;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUgraphNode, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};

/// Graphs that are kept at most. Each costs memory on the card.
const MOST: usize = 8;
/// Runs after which a graph that was not used makes room.
const IDLE: u64 = 64;

/// Records what `launch` launches on the card's stream, without running it.
///
/// # Errors
/// Those of `launch`, something in it that cannot be recorded, or what the driver says.
pub(crate) fn capture(gpu: &Gpu, launch: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    let stream = gpu.stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let launched = launch();
    // Ends in any case, so that the stream can be used again.
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    launched?;
    let graph = graph?.ok_or(CudaError::Capture)?;
    graph.upload()?;
    Ok(graph)
}

/// Records steps, each behind those that it waits for and behind nothing else. `launch` launches an op by its index.
///
/// One stream records all of them: before each step, the stream is told which nodes of the graph the next one follows.
/// So libraries stay on the stream that their handles know, and lanes exist in the graph only. What waits for nothing,
/// which is the first op of a plan, follows what was recorded before it.
///
/// # Errors
/// As [`capture`].
pub(crate) fn capture_steps(
    gpu: &Gpu,
    steps: &[Step],
    mut launch: impl FnMut(usize) -> Result<()>,
) -> Result<CudaGraph> {
    // By op, the nodes that are over when it is.
    let mut ends: Vec<Vec<CUgraphNode>> = vec![Vec::new(); steps.len()];
    capture(gpu, || {
        steps.iter().try_for_each(|step| {
            let mut after: Vec<CUgraphNode> = step.waits.iter().flat_map(|&wait| ends[wait].iter().copied()).collect();
            after.sort_unstable();
            after.dedup();
            if !after.is_empty() {
                follow(gpu.stream(), &mut after)?;
            }
            launch(step.op)?;
            ends[step.op] = followed(gpu.stream())?;
            Ok(())
        })
    })
}

/// What is recorded next follows these nodes.
fn follow(stream: &CudaStream, nodes: &mut [CUgraphNode]) -> Result<()> {
    let flags = sys::CUstreamUpdateCaptureDependencies_flags_enum::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
    let (at, count) = (nodes.as_mut_ptr(), nodes.len());
    // SAFETY: nodes of the graph that the stream records, copied by the call; edges without annotations.
    let status =
        unsafe { sys::cuStreamUpdateCaptureDependencies_v2(stream.cu_stream(), at, std::ptr::null(), count, flags) };
    Ok(status.result()?)
}

/// The nodes that what is recorded next would follow: the last ones of what was recorded.
fn followed(stream: &CudaStream) -> Result<Vec<CUgraphNode>> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut nodes, mut count, none) = (std::ptr::null(), 0, std::ptr::null_mut());
    // SAFETY: the call writes three values; null asks for no others.
    unsafe {
        let get = sys::cuStreamGetCaptureInfo_v3;
        get(stream.cu_stream(), &mut status, none, none.cast(), &mut nodes, none.cast(), &mut count).result()?;
    }
    if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Err(CudaError::Capture);
    }
    match count {
        0 => Ok(Vec::new()),
        // SAFETY: so many nodes, which stay there until the next call on this stream.
        _ => Ok(unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()),
    }
}

/// Which plans have graphs: those that were used last, by their number of uses and the time of the last one.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    clock: u64,
    plans: Vec<PlanUse>,
}

#[derive(Clone, Copy, Debug, Default)]
struct PlanUse {
    runs: u64,
    last: u64,
    captured: bool,
}

/// What is to be done about a plan's graph before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It has a graph, or runs without one.
    AsItIs,
    /// Its launches are recorded, and the graph of another plan is dropped first.
    Capture { instead_of: Option<usize> },
}

impl Usage {
    /// Takes note of a run. The first run of a plan is never recorded: libraries load code in it.
    pub fn run(&mut self, plan: usize) -> Decision {
        if self.plans.len() <= plan {
            self.plans.resize(plan + 1, PlanUse::default());
        }
        self.clock += 1;
        let now = self.clock;
        let this = &mut self.plans[plan];
        (this.runs, this.last) = (this.runs + 1, now);
        if this.captured || this.runs < 2 {
            return Decision::AsItIs;
        }
        let captured = self.plans.iter().enumerate().filter(|(_, p)| p.captured);
        let instead_of = match captured.clone().count() < MOST {
            true => None,
            false => {
                let oldest = captured.min_by_key(|(_, p)| p.last).filter(|(_, p)| now - p.last > IDLE);
                let Some((oldest, _)) = oldest else { return Decision::AsItIs };
                self.plans[oldest].captured = false;
                Some(oldest)
            }
        };
        self.plans[plan].captured = true;
        Decision::Capture { instead_of }
    }

    /// A plan that has no graph any more, and has its next run as if it were the first.
    pub fn forget(&mut self, plan: usize) {
        if let Some(plan) = self.plans.get_mut(plan) {
            *plan = PlanUse::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_recorded_at_its_second_run() {
        let mut usage = Usage::default();
        assert_eq!(usage.run(3), Decision::AsItIs);
        assert_eq!(usage.run(3), Decision::Capture { instead_of: None });
        assert_eq!(usage.run(3), Decision::AsItIs);
        usage.forget(3);
        assert_eq!(usage.run(3), Decision::AsItIs);
        assert_eq!(usage.run(3), Decision::Capture { instead_of: None });
    }

    #[test]
    fn many_plans_in_turn_do_not_push_each_other_out() {
        let mut usage = Usage::default();
        let mut recorded = 0;
        for _ in 0..10 {
            for plan in 0..20 {
                recorded += usize::from(usage.run(plan) != Decision::AsItIs);
            }
        }
        assert_eq!(recorded, MOST);
    }

    #[test]
    fn a_graph_that_is_not_used_makes_room() {
        let mut usage = Usage::default();
        for plan in 0..MOST {
            usage.run(plan);
            usage.run(plan);
        }
        for _ in 0..IDLE {
            for plan in 1..MOST {
                usage.run(plan);
            }
        }
        assert_eq!(usage.run(MOST), Decision::AsItIs);
        assert_eq!(usage.run(MOST), Decision::Capture { instead_of: Some(0) });
        assert_eq!(usage.run(0), Decision::AsItIs, "its place is taken");
    }
}
