//! How long each op takes, and what the card's arithmetic and memory would allow.

use crate::device::Gpu;
use crate::dispatch::{Launch, Work};
use crate::engine::Engine;
use crate::error::Result;
use crate::view::Format;
use crate::work::{OpWork, work};
use cudarc::driver::{CudaEvent, result};
use graph::{Op, Plan};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// One op of a plan, timed.
#[derive(Clone, Debug, PartialEq)]
pub struct OpTime {
    /// Layer of the model.
    pub scope: String,
    /// Such as `Conv2d`.
    pub op: &'static str,
    /// Extents, such as `64x80x80 64->128 k3 s1`.
    pub shape: String,
    /// Who computed it: a library, an own kernel, the host.
    pub server: String,
    /// Launches it takes.
    pub calls: usize,
    /// Median over the repeats.
    pub ms: f64,
    pub flops: f64,
    /// Each operand once.
    pub bytes: f64,
    /// The longer of arithmetic and traffic at the card's rates.
    pub bound_ms: f64,
    /// Bound by time.
    pub ratio: f64,
    /// Time above the bound.
    pub lost_ms: f64,
}

/// What a card can do at most.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Peaks {
    /// Floating-point operations a second; infinite where not known.
    pub flops: f64,
    /// Bytes a second.
    pub bytes: f64,
    /// Where the numbers are from.
    pub source: String,
}

/// A card's rates: half precision, TF32 and float32 in TFLOP/s, memory in TB/s.
struct Known {
    name: &'static str,
    half: f64,
    tf32: f64,
    single: f64,
    memory: f64,
    source: &'static str,
}

const KNOWN: &[Known] = &[Known {
    name: "H200",
    half: 790.0,
    tf32: 395.0,
    single: 60.0,
    memory: 4.2,
    source: "dense products and copies as measured on one H200 (nominal 990 TFLOP/s and 4.8 TB/s)",
}];

impl Peaks {
    /// Rates of a card: from a table, else memory as a copy shows it and arithmetic unbounded.
    ///
    /// # Errors
    /// What the driver says.
    pub fn of(gpu: &Gpu, format: Format, tf32: bool) -> Result<Self> {
        let card = &gpu.properties().name;
        if let Some(known) = KNOWN.iter().find(|k| card.contains(k.name)) {
            let flops = match format {
                Format::F32 if tf32 => known.tf32,
                Format::F32 => known.single,
                _ => known.half,
            };
            return Ok(Self { flops: 1e12 * flops, bytes: 1e12 * known.memory, source: known.source.to_owned() });
        }
        let bytes = copy_rate(gpu)?;
        Ok(Self { flops: f64::INFINITY, bytes, source: format!("a copy on this {card}; its arithmetic is not known") })
    }

    /// Milliseconds that so much arithmetic and traffic need at least.
    pub fn bound_ms(&self, flops: f64, bytes: f64) -> f64 {
        1e3 * (flops / self.flops).max(bytes / self.bytes)
    }
}

/// Bytes read and written a second by a copy on the card.
fn copy_rate(gpu: &Gpu) -> Result<f64> {
    const BYTES: usize = 128 << 20;
    const REPEATS: usize = 8;
    let (from, to) = (gpu.allocate(BYTES)?, gpu.allocate(BYTES)?);
    // SAFETY: two buffers of this size.
    let copy = || unsafe { result::memcpy_dtod_async(to.address(), from.address(), BYTES, gpu.stream().cu_stream()) };
    copy()?;
    let (start, end) = (gpu.timing_event()?, gpu.timing_event()?);
    start.record(gpu.stream())?;
    (0..REPEATS).try_for_each(|_| copy())?;
    end.record(gpu.stream())?;
    end.synchronize()?;
    Ok((2 * BYTES * REPEATS) as f64 / (1e-3 * f64::from(start.elapsed_ms(&end)?)))
}

/// Ops that are launched behind one pause. The card's queue holds about a thousand entries, and an op takes a few.
const OPS_A_PAUSE: usize = 128;
/// How long the card waits at a pause, so that launches run ahead of it and short kernels follow without gaps.
const PAUSE: Duration = Duration::from_millis(4);

extern "C" fn pause(_: *mut c_void) {
    std::thread::sleep(PAUSE);
}

/// Events around every op of a plan.
pub(crate) struct Timer {
    events: Vec<[CudaEvent; 2]>,
}

impl Timer {
    /// For plans of so many ops.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu, ops: usize) -> Result<Self> {
        let pair = |_| Ok([gpu.timing_event()?, gpu.timing_event()?]);
        Ok(Self { events: (0..ops).map(pair).collect::<Result<_>>()? })
    }

    /// Runs all launches of a plan and waits; milliseconds of each op. Ops on the host are timed by the clock.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The arena that the launches were made for is still there.
    pub unsafe fn run(&self, engine: &Engine, launches: &mut [Launch]) -> Result<Vec<f64>> {
        let gpu = engine.gpu();
        gpu.context().bind_to_thread()?;
        let mut times = vec![0.0; self.events.len()];
        let mut timed = Vec::with_capacity(self.events.len());
        let mut since_pause = OPS_A_PAUSE;
        for part in launches.chunk_by_mut(|a, b| a.op == b.op) {
            if since_pause >= OPS_A_PAUSE {
                let stream = gpu.stream().cu_stream();
                // SAFETY: the function takes no argument and does not call the driver.
                unsafe { result::stream::launch_host_function(stream, pause, std::ptr::null_mut()) }?;
                since_pause = 0;
            }
            since_pause += 1;
            let op = part[0].op;
            let [start, end] = &self.events[op];
            let on_host = part.iter().any(|l| matches!(l.work, Work::Host(_)));
            if on_host {
                gpu.synchronize()?;
            }
            let clock = Instant::now();
            start.record(gpu.stream())?;
            for launch in part {
                match &mut launch.work {
                    Work::Card(work) => work(engine)?,
                    // SAFETY: the caller's promise.
                    Work::Host(host) => unsafe { host.run(gpu) }?,
                }
            }
            end.record(gpu.stream())?;
            if on_host {
                gpu.synchronize()?;
                times[op] = 1e3 * clock.elapsed().as_secs_f64();
                since_pause = OPS_A_PAUSE;
            } else {
                timed.push(op);
            }
        }
        gpu.synchronize()?;
        for op in timed {
            let [start, end] = &self.events[op];
            times[op] = f64::from(start.elapsed_ms(end)?);
        }
        Ok(times)
    }
}

/// What the times of several runs say of each op: medians.
pub(crate) fn summary(plan: &Plan, launches: &[Launch], runs: &[Vec<f64>], peaks: &Peaks) -> Vec<OpTime> {
    let of = |op: usize| runs.iter().map(|times| times[op]).collect();
    (0..plan.graph().nodes().len()).map(|op| op_time(plan, launches, op, of(op), peaks)).collect()
}

fn op_time(plan: &Plan, launches: &[Launch], op: usize, mut times: Vec<f64>, peaks: &Peaks) -> OpTime {
    times.sort_by(f64::total_cmp);
    let ms = times.get(times.len() / 2).copied().unwrap_or(0.0);
    let node = &plan.graph().nodes()[op];
    let OpWork { flops, bytes } = work(plan, &node.op);
    let bound_ms = peaks.bound_ms(flops, bytes);
    let mut servers: Vec<&str> = Vec::new();
    let own = launches.iter().filter(|l| l.op == op);
    for launch in own.clone().filter(|l| !l.server.is_empty()) {
        if !servers.contains(&launch.server.as_str()) {
            servers.push(&launch.server);
        }
    }
    OpTime {
        scope: node.scope.clone(),
        op: node.op.name(),
        shape: shape(plan, &node.op),
        server: servers.join(" + "),
        calls: own.count(),
        ms,
        flops,
        bytes,
        bound_ms,
        ratio: if ms > 0.0 { bound_ms / ms } else { 0.0 },
        lost_ms: (ms - bound_ms).max(0.0),
    }
}

/// Extents of an op in words, the same for all that cost the same.
fn shape(plan: &Plan, op: &Op) -> String {
    use graph::ops::ConvAttrs;
    let map = |id| {
        let (s, place) = (plan.shape(id), plan.placement(id));
        let pitch = if place.pitch == place.channels { String::new() } else { format!("/{}", place.pitch) };
        (format!("{}x{}x{}", s.n, s.h, s.w), format!("{}{pitch}", s.c))
    };
    let conv = |x, y, attrs: ConvAttrs, add: bool| {
        let ((size, input), (_, output)) = (map(x), map(y));
        let groups = if attrs.groups == 1 { String::new() } else { format!(" g{}", attrs.groups) };
        let add = if add { " add" } else { "" };
        format!("{size} {input}->{output} k{} s{}{groups}{add}", attrs.kernel, attrs.stride)
    };
    match op {
        Op::Conv2d(c) => conv(c.x, c.y, c.attrs, false),
        Op::ConvDataGrad(c) => conv(c.dx, c.dy, c.attrs, c.accumulate),
        Op::ConvWeightGrad(c) => conv(c.x, c.dy, c.attrs, false),
        Op::RunningStats(r) => format!("{} batch norms", r.entries.len()),
        Op::External(e) => e.spec.name().to_owned(),
        _ => {
            let operands = op.operands();
            let Some(first) = operands.first() else { return String::new() };
            let (size, channels) = map(first.0);
            let maps = operands.iter().filter(|o| plan.shape(o.0).pixels() > 1).count();
            format!("{size} {channels} ({maps} maps)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_longer_of_arithmetic_and_traffic() {
        let peaks = Peaks { flops: 1e12, bytes: 1e9, source: String::new() };
        assert_eq!(peaks.bound_ms(2e9, 1e6), 2.0);
        assert_eq!(peaks.bound_ms(2e9, 3e6), 3.0);
        let unknown = Peaks { flops: f64::INFINITY, ..peaks };
        assert_eq!(unknown.bound_ms(2e12, 1e6), 1.0);
    }
}
