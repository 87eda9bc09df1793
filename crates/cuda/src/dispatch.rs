//! Which kernel serves which op: one exhaustive match, run once when a plan is prepared.
//!
//! An op becomes a few launches with all addresses in them, so that running a plan looks nothing up.

use crate::backend::{format, predictions, request};
use crate::conv::{ConvId, Places};
use crate::engine::Engine;
use crate::error::{CudaError, Result};
use crate::executor::{CudaOptions, device};
use crate::external::{Body, HostOp, Registry};
use crate::kernels::loss::{DeviceTargets, Head, LevelMaps};
use crate::kernels::{Branch, BranchGrad, BranchSums, DecodeLevel, Nms, NmsBuffers, RunningEntry};
use crate::regions::Regions;
use crate::transfer::Rows;
use crate::view::View;
use detect::external::{DetectionLoss, Suppress};
use graph::ops::{self, ConvAttrs, External, Op};
use graph::{Activation, ExecError, ParamId, Plan, Region, TensorId};

/// Work on the card.
pub(crate) type CardWork = Box<dyn Fn(&Engine) -> Result<()>>;

/// A part of an op.
pub(crate) struct Launch {
    /// Index of the op in the plan.
    pub op: usize,
    /// Who computes it.
    pub server: String,
    pub work: Work,
}

pub(crate) enum Work {
    Card(CardWork),
    Host(Box<HostOp>),
}

/// Where everything is that ops touch.
pub(crate) struct Memory<'a> {
    pub regions: &'a Regions,
    pub registry: &'a Registry,
    /// Address of the arena.
    pub base: u64,
    /// Address of the loss scale, where there is one.
    pub loss_scale: Option<u64>,
}

/// Prepares the convolutions of a plan, which takes memory of the card for a while: to be called before the arena grows.
pub(crate) fn prepare_convolutions(engine: &Engine, plan: &Plan, options: &CudaOptions) -> Result<()> {
    engine.gpu().context().bind_to_thread()?;
    for node in plan.graph().nodes() {
        if let Some(request) = request(&node.op, plan.graph(), plan.precision(), options.tf32) {
            engine.convolutions_mut().prepare(request, options.tune)?;
        }
    }
    Ok(())
}

/// All launches of a plan, in order.
pub(crate) fn lower(
    engine: &Engine,
    plan: &Plan,
    memory: &Memory<'_>,
    options: &CudaOptions,
) -> std::result::Result<Vec<Launch>, ExecError> {
    let mut lowering = Lowering { engine, plan, memory, options, at: 0, launches: Vec::new() };
    for (at, node) in plan.graph().nodes().iter().enumerate() {
        lowering.at = at;
        lowering.op(&node.op)?;
    }
    Ok(lowering.launches)
}

struct Lowering<'a> {
    engine: &'a Engine,
    plan: &'a Plan,
    memory: &'a Memory<'a>,
    options: &'a CudaOptions,
    at: usize,
    launches: Vec<Launch>,
}

/// Own kernels, in tables.
const OWN: &str = "own";

impl Lowering<'_> {
    fn card(&mut self, server: impl Into<String>, work: impl Fn(&Engine) -> Result<()> + 'static) {
        self.launches.push(Launch { op: self.at, server: server.into(), work: Work::Card(Box::new(work)) });
    }

    fn op(&mut self, op: &Op) -> std::result::Result<(), ExecError> {
        match op {
            Op::Normalize(op) => {
                let (x, channels, y) = (self.address(op.x), self.plan.shape(op.x).c, self.view(op.y)?);
                // SAFETY: here and below, operands are tensors of the plan, which lie in the arena at their offsets with
                // their extents, parameters, which lie in the flat buffers, and the op's own workspace.
                self.card(OWN, move |e| unsafe { e.kernels().normalize.run(x, channels, y) });
            }
            Op::Conv2d(op) => self.convolution(op)?,
            Op::ConvDataGrad(c) => {
                let places = self.places(c.dx, self.memory.regions.operand(c.w), c.dy);
                self.pass(op, places)?;
                if !c.accumulate {
                    self.clear_padding(c.dx, c.attrs)?;
                }
            }
            Op::ConvWeightGrad(c) => {
                let gradient = self.gradient(c.w)?;
                self.pass(op, self.places(c.x, gradient, c.dy))?;
                if let Some(bias) = c.bias {
                    let (dy, scratch, gradient) = (self.view(c.dy)?, self.scratch(), self.gradient(bias)?);
                    // SAFETY: as above.
                    self.card(OWN, move |e| unsafe { e.kernels().bias.gradient(dy, gradient, scratch) });
                }
            }
            Op::BnStats(op) => {
                let (x, mean, var) = (self.view(op.x)?, self.address(op.mean), self.address(op.var));
                let scratch = self.scratch();
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().bn_stats.run(x, mean, var, scratch) });
            }
            Op::BnApply(op) => {
                let (branches, y) = (self.branches(&op.branches)?, self.view(op.y)?);
                let residual = op.residual.map(|r| self.view(r)).transpose()?;
                let (eps, act) = (op.eps as f32, op.act);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().bn_apply.run(&branches, eps, act, residual, y) });
            }
            Op::BnReduce(op) => self.bn_reduce(op)?,
            Op::BnBackward(op) => {
                let (dy, branches, s1) = (self.view(op.dy)?, self.branches(&op.branches)?, self.address(op.s1));
                let (eps, act, count) = (op.eps as f32, op.act, dy.pixels());
                let mut grads = Vec::with_capacity(op.dx.len());
                for (&s2, &(dx, accumulate)) in op.s2.iter().zip(&op.dx) {
                    grads.push(BranchGrad { s2: self.address(s2), dx: self.view(dx)?, accumulate });
                }
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe {
                    e.kernels().bn_backward.run(dy, &branches, eps, act, s1, count, &grads)
                });
            }
            Op::RunningStats(op) => self.running_stats(op)?,
            Op::Activate(op) => self.activate(op.x, op.act, op.y)?,
            Op::ActivateGrad(op) => {
                let (x, dy, dx) = (self.view(op.x)?, self.view(op.dy)?, self.view(op.dx)?);
                let (act, add) = (op.act, op.accumulate);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().activate.gradient(x, dy, act, dx, add) });
            }
            Op::Add(op) => self.add(op)?,
            Op::Copy(op) => {
                let (x, y, add) = (self.view(op.x)?, self.view(op.y)?, op.accumulate);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().copy.run(x, y, add) });
            }
            Op::Fill(op) => {
                let y = self.view(op.y)?;
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().fill.zero(y) });
            }
            Op::MaxPool(op) => {
                let (x, y, attrs) = (self.view(op.x)?, self.view(op.y)?, op.attrs);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().max_pool.run(x, y, attrs) });
            }
            Op::MaxPoolGrad(op) => {
                let (x, dy, dx) = (self.view(op.x)?, self.view(op.dy)?, self.view(op.dx)?);
                let (attrs, add, scratch) = (op.attrs, op.accumulate, self.scratch());
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().max_pool.gradient(x, dy, dx, attrs, add, scratch) });
            }
            Op::AvgPool(op) => {
                let (x, y, attrs) = (self.view(op.x)?, self.view(op.y)?, op.attrs);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().average_pool.run(x, y, attrs) });
            }
            Op::AvgPoolGrad(op) => {
                let (dy, dx, attrs, add) = (self.view(op.dy)?, self.view(op.dx)?, op.attrs, op.accumulate);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().average_pool.gradient(dy, dx, attrs, add) });
            }
            Op::Resize(op) => {
                let (x, y) = (self.view(op.x)?, self.view(op.y)?);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().resize.run(x, y) });
            }
            Op::ResizeGrad(op) => {
                let (dy, dx, add) = (self.view(op.dy)?, self.view(op.dx)?, op.accumulate);
                // SAFETY: as above.
                self.card(OWN, move |e| unsafe { e.kernels().resize.gradient(dy, dx, add) });
            }
            Op::External(op) => self.external(op)?,
            Op::BatchNorm(_) | Op::Concat(_) | Op::Slice(_) => unreachable!("lowered when the plan was compiled"),
        }
        Ok(())
    }

    fn convolution(&mut self, op: &ops::Conv2d) -> std::result::Result<(), ExecError> {
        let places = self.places(op.x, self.memory.regions.operand(op.w), op.y);
        self.pass(&op.clone().into(), places)?;
        self.clear_padding(op.y, op.attrs)?;
        let (y, act) = (self.view(op.y)?, op.act);
        match op.bias {
            Some(bias) => {
                let bias = self.parameter(Region::Weights, bias)?;
                // SAFETY: as in `op`.
                self.card(OWN, move |e| unsafe { e.kernels().bias.run(y, bias, act) });
            }
            None if act != Activation::Identity => self.activate(op.y, act, op.y)?,
            None => {}
        }
        Ok(())
    }

    /// One pass of a convolution.
    fn pass(&mut self, op: &Op, places: Places) -> std::result::Result<(), ExecError> {
        let (graph, precision) = (self.plan.graph(), self.plan.precision());
        let Some(request) = request(op, graph, precision, self.options.tf32) else {
            return Err(device(CudaError::Precision(precision)));
        };
        let mut convolutions = self.engine.convolutions_mut();
        let id: ConvId = convolutions.prepare(request, self.options.tune).map_err(device)?;
        let server = convolutions.choice(id).unwrap_or_default().to_owned();
        drop(convolutions);
        // SAFETY: as in `op`.
        self.card(server, move |e| unsafe { e.convolutions().run(id, places) });
        Ok(())
    }

    fn activate(&mut self, x: TensorId, act: Activation, y: TensorId) -> std::result::Result<(), ExecError> {
        let (x, y) = (self.view(x)?, self.view(y)?);
        // SAFETY: as in `op`.
        self.card(OWN, move |e| unsafe { e.kernels().activate.run(x, act, y) });
        Ok(())
    }

    fn bn_reduce(&mut self, op: &ops::BnReduce) -> std::result::Result<(), ExecError> {
        let (dy, branches) = (self.view(op.dy)?, self.branches(&op.branches)?);
        let (eps, act, s1, scratch) = (op.eps as f32, op.act, self.address(op.s1), self.scratch());
        let mut sums = Vec::with_capacity(op.branches.len());
        for (branch, &s2) in op.branches.iter().zip(&op.s2) {
            let gamma_grad = Some(self.gradient(branch.params.weight)?);
            let beta_grad = Some(self.gradient(branch.params.bias)?);
            sums.push(BranchSums { s2: self.address(s2), gamma_grad, beta_grad });
        }
        // SAFETY: as in `op`.
        self.card(OWN, move |e| unsafe { e.kernels().bn_reduce.run(dy, &branches, eps, act, s1, &sums, scratch) });
        Ok(())
    }

    fn running_stats(&mut self, op: &ops::RunningStats) -> std::result::Result<(), ExecError> {
        let mut entries = Vec::with_capacity(op.entries.len());
        for entry in &op.entries {
            entries.push(RunningEntry {
                mean: self.address(entry.mean),
                var: self.address(entry.var),
                running_mean: self.parameter(Region::Buffers, entry.running_mean)?,
                running_var: self.parameter(Region::Buffers, entry.running_var)?,
                channels: self.plan.placement(entry.mean).channels as u32,
                unbiased: RunningEntry::unbiased(entry.count),
            });
        }
        let mut table = self.engine.gpu().allocate(size_of_val(&entries[..])).map_err(device)?;
        table.write(0, &entries).map_err(device)?;
        let (count, momentum, guard) = (entries.len(), op.momentum, op.guard.map(|g| self.address(g)));
        // SAFETY: as in `op`; the table lives as long as the launch.
        self.card(OWN, move |e| unsafe { e.kernels().running_stats.run(table.address(), count, momentum, guard) });
        Ok(())
    }

    fn add(&mut self, op: &ops::Add) -> std::result::Result<(), ExecError> {
        /// Inputs that one launch takes.
        const MOST: usize = 8;
        let y = self.view(op.y)?;
        let mut left = op.xs.as_slice();
        let mut first = true;
        while !left.is_empty() {
            // What there is already counts as the first input of the launches after the first.
            let mut xs = if first { Vec::new() } else { vec![y] };
            let (now, later) = left.split_at(left.len().min(MOST - xs.len()));
            for &x in now {
                xs.push(self.view(x)?);
            }
            // SAFETY: as in `op`.
            self.card(OWN, move |e| unsafe { e.kernels().add.run(&xs, y) });
            (left, first) = (later, false);
        }
        Ok(())
    }

    fn external(&mut self, op: &External) -> std::result::Result<(), ExecError> {
        let body = self.memory.registry.get(op.spec.name())?.clone();
        let made = |body| HostOp::new(self.plan, op, body, self.memory.base);
        match body {
            Body::Decode => self.decode(op),
            Body::Loss => self.loss(op),
            Body::Suppress => self.suppress(op),
            Body::Host(body) => {
                let work = Work::Host(Box::new(made(body)));
                self.launches.push(Launch { op: self.at, server: "host".to_owned(), work });
                Ok(())
            }
            Body::Constant(body) => {
                let constant = made(body).into_constant(self.engine.gpu()).map_err(device)?;
                // SAFETY: as in `op`.
                self.card("copies", move |e| unsafe { constant.run(e.gpu()) });
                Ok(())
            }
        }
    }

    fn loss(&mut self, op: &External) -> std::result::Result<(), ExecError> {
        let Some(spec) = op.spec.as_any().downcast_ref::<DetectionLoss>() else {
            return Err(ExecError::UnknownOp(op.spec.name()));
        };
        let maps = 2 * spec.branches * spec.levels;
        let mut levels = Vec::with_capacity(maps / 2);
        for at in (0..maps).step_by(2) {
            let gradients = match (op.gradients[at], op.gradients[at + 1]) {
                (Some(boxes), Some(classes)) => Some((self.view(boxes)?, self.view(classes)?)),
                _ => None,
            };
            let (boxes, classes) = (self.view(op.inputs[at])?, self.view(op.inputs[at + 1])?);
            levels.push(LevelMaps { boxes, classes, gradients });
        }
        let [offsets, classes, boxes] = [0, 1, 2].map(|i| self.address(op.inputs[maps + i]));
        let targets = DeviceTargets { offsets, classes, boxes, max_boxes: spec.max_boxes };
        let (config, input_hw, batch) = (spec.config.clone(), spec.input_hw, self.plan.shape(op.inputs[0]).n);
        let (values, scratch) = (self.address(op.outputs[0]), self.scratch());
        let loss_scale = self.memory.loss_scale;
        self.card(OWN, move |e| {
            let (config, levels) = (&config, &levels[..]);
            let head = Head { config, batch, input_hw, levels, targets, loss_scale, values, scratch };
            // SAFETY: as in `op`.
            unsafe { e.kernels().loss.run(&head) }
        });
        Ok(())
    }

    fn decode(&mut self, op: &External) -> std::result::Result<(), ExecError> {
        let Some(spec) = op.spec.as_any().downcast_ref::<detect::external::Decode>() else {
            return Err(ExecError::UnknownOp(op.spec.name()));
        };
        let mut levels = Vec::with_capacity(spec.strides.len());
        for (level, &stride) in spec.strides.iter().enumerate() {
            let (boxes, classes) = (self.view(op.inputs[2 * level])?, self.view(op.inputs[2 * level + 1])?);
            levels.push(DecodeLevel { boxes, classes, stride });
        }
        let (nc, out) = (spec.nc, self.view(op.outputs[0])?);
        let (out, pitch) = (out.at, out.pitch);
        // SAFETY: as in `op`.
        self.card(OWN, move |e| unsafe { e.kernels().decode.run(&levels, nc, out, pitch) });
        Ok(())
    }

    fn suppress(&mut self, op: &External) -> std::result::Result<(), ExecError> {
        let Some(spec) = op.spec.as_any().downcast_ref::<Suppress>() else {
            return Err(ExecError::UnknownOp(op.spec.name()));
        };
        let (input, rows) = (self.view(op.inputs[0])?, self.view(op.outputs[0])?);
        let (shape, config) = (predictions(self.plan.shape(op.inputs[0]), input.pitch, spec), spec.config.clone());
        let table = Nms::wanted(&config, spec.nc).map(|wanted| {
            let mut table = self.engine.gpu().allocate(wanted.len())?;
            table.write(0, &wanted)?;
            Ok(table)
        });
        let table = table.transpose().map_err(device)?;
        let (scratch, found) = (self.scratch(), self.address(op.outputs[1]));
        let (predictions, detections, detections_pitch) = (input.at, rows.at, rows.pitch);
        self.card(OWN, move |e| {
            let wanted = table.as_ref().map(|t| t.address());
            let buffers = NmsBuffers { predictions, wanted, scratch, detections, detections_pitch, found };
            // SAFETY: as in `op`; the table lives as long as the launch.
            unsafe { e.kernels().nms.run(shape, &config, &buffers) }
        });
        Ok(())
    }

    /// Grouped convolutions write logical channels only; the padding after them must be zero.
    fn clear_padding(&mut self, id: TensorId, attrs: ConvAttrs) -> std::result::Result<(), ExecError> {
        let view = self.view(id)?;
        let (logical, bytes) = (self.plan.shape(id).c, view.format.bytes());
        if attrs.groups > 1 && logical < view.c {
            let at = view.at + (logical * bytes) as u64;
            let rows = Rows { at, rows: view.pixels(), width: (view.c - logical) * bytes, pitch: view.pitch * bytes };
            // SAFETY: as in `op`.
            self.card("memset", move |e| unsafe { rows.clear(e.gpu()) });
        }
        Ok(())
    }

    /// Address of a tensor's first element.
    fn address(&self, id: TensorId) -> u64 {
        self.memory.base + self.plan.placement(id).offset
    }

    /// All physical channels of a tensor.
    fn view(&self, id: TensorId) -> std::result::Result<View, ExecError> {
        let (shape, place) = (self.plan.shape(id), self.plan.placement(id));
        let precision = self.plan.precision();
        let Some(format) = format(self.plan.graph().tensor(id).kind, precision) else {
            return Err(device(CudaError::Precision(precision)));
        };
        let (channels, pitch) = (place.channels, place.pitch);
        Ok(View { at: self.address(id), format, n: shape.n, h: shape.h, w: shape.w, c: channels, pitch })
    }

    /// Address of the op's workspace.
    fn scratch(&self) -> u64 {
        self.memory.base + self.plan.workspace(self.at).0
    }

    fn places(&self, x: TensorId, w: u64, y: TensorId) -> Places {
        Places { x: self.address(x), w, y: self.address(y), workspace: self.scratch() }
    }

    fn parameter(&self, region: Region, id: ParamId) -> std::result::Result<u64, ExecError> {
        self.memory.regions.parameter(region, id).ok_or(ExecError::NoRegion(region))
    }

    fn gradient(&self, id: ParamId) -> std::result::Result<u64, ExecError> {
        self.parameter(Region::Gradients, id)
    }

    fn branches(&self, branches: &[ops::BnBranch]) -> std::result::Result<Vec<Branch>, ExecError> {
        let branch = |b: &ops::BnBranch| {
            Ok(Branch {
                x: self.view(b.x)?,
                mean: self.address(b.mean),
                var: self.address(b.var),
                gamma: self.parameter(Region::Weights, b.params.weight)?,
                beta: self.parameter(Region::Weights, b.params.bias)?,
            })
        };
        branches.iter().map(branch).collect()
    }
}
