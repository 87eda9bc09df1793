//! Which kernel serves which op: one exhaustive match.

use crate::Element;
use crate::external::{ExternalIo, Registry};
use crate::kernels::conv::{conv_data_grad, conv_forward, conv_weight_grad};
use crate::kernels::{self as k, View, ViewMut, batch_norm as bn};
use crate::regions::Regions;
use graph::ops::{BnBranch, ConvAttrs, Op, PoolAttrs, RunningStats};
use graph::{CommitReport, CommitStep, ExecError, ParamId, Plan, TensorId};

/// What an op may touch while it runs: the arena and the flat buffers.
pub(crate) struct Memory<'p, T> {
    pub plan: &'p Plan,
    pub base: *mut u8,
    pub weights: &'p [T],
    pub gradients: &'p mut [T],
    pub buffers: &'p mut [T],
    pub registry: &'p Registry<T>,
}

/// The element types that plans run in. Implemented here and not generically, so that the kernels are compiled
/// once, in this crate, and not again in every crate that runs a plan.
pub trait Runs: Element + detect::Real {
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "only this crate calls it")]
    fn run_op(memory: &mut Memory<'_, Self>, at: usize) -> Result<(), ExecError>;

    #[doc(hidden)]
    #[expect(private_interfaces, reason = "only this crate calls it")]
    fn commit(regions: &mut Regions<Self>, step: &CommitStep, sums: &mut Vec<f64>) -> Result<CommitReport, ExecError>;
}

macro_rules! runs {
    ($($element:ty),*) => {$(
        impl Runs for $element {
            #[expect(private_interfaces, reason = "only this crate calls it")]
            fn run_op(memory: &mut Memory<'_, Self>, at: usize) -> Result<(), ExecError> {
                memory.run(at)
            }

            #[expect(private_interfaces, reason = "only this crate calls it")]
            fn commit(
                regions: &mut Regions<Self>,
                step: &CommitStep,
                sums: &mut Vec<f64>,
            ) -> Result<CommitReport, ExecError> {
                crate::commit::commit(regions, step, sums)
            }
        }
    )*};
}

runs!(f32, f64);

impl<T: Element> Memory<'_, T> {
    /// Runs op `at` of the plan.
    fn run(&mut self, at: usize) -> Result<(), ExecError> {
        let plan = self.plan;
        match &plan.graph().nodes()[at].op {
            Op::Normalize(op) => {
                let shape = plan.shape(op.x);
                // SAFETY: raw inputs are dense and lie in the arena.
                let x = unsafe { std::slice::from_raw_parts(self.pointer(op.x).cast::<u8>(), shape.elements()) };
                k::normalize(x, shape.c, self.view_mut(op.y));
            }
            Op::Conv2d(op) => {
                let (x, y) = (self.conv_view(op.x, op.attrs), self.conv_view_mut(op.y, op.attrs));
                let w = self.conv_weights(op.w, op.attrs);
                let bias = op.bias.map(|b| &self.weights[self.range(b)][..y.channels]);
                conv_forward(x, w, bias, Some(op.act), y, kernel_attrs(op.attrs), self.scratch(at));
                self.clear_padding(op.y, op.attrs);
            }
            Op::ConvDataGrad(op) => {
                let (dy, dx) = (self.conv_view(op.dy, op.attrs), self.conv_view_mut(op.dx, op.attrs));
                let w = self.conv_weights(op.w, op.attrs);
                conv_data_grad(dy, w, dx, kernel_attrs(op.attrs), op.accumulate, self.scratch(at));
                if !op.accumulate {
                    self.clear_padding(op.dx, op.attrs);
                }
            }
            Op::ConvWeightGrad(op) => {
                let (x, dy) = (self.conv_view(op.x, op.attrs), self.conv_view(op.dy, op.attrs));
                let scratch = self.scratch(at);
                let (w, bias) = (self.range(op.w), op.bias.map(|b| self.range(b)));
                let rows = conv_rows(dy.channels, op.attrs, x.channels);
                let (dw, dbias) = disjoint(self.gradients, w, bias);
                let dbias = dbias.map(|b| &mut b[..dy.channels]);
                conv_weight_grad(x, dy, &mut dw[..rows], dbias, kernel_attrs(op.attrs), scratch);
            }
            Op::BnStats(op) => {
                bn::bn_stats(self.view(op.x), self.vector_mut(op.mean), self.vector_mut(op.var), self.scratch(at));
            }
            Op::BnApply(op) => {
                let branches = self.branches(&op.branches);
                let residual = op.residual.map(|r| self.view(r));
                let branches = &branches[..op.branches.len()];
                bn::bn_apply(branches, T::of_f64(op.eps), op.act, residual, self.view_mut(op.y));
            }
            Op::BnReduce(op) => {
                let branches = self.branches(&op.branches);
                let branches = &branches[..op.branches.len()];
                let scratch = self.scratch(at);
                let s1 = self.vector_mut(op.s1);
                let (dy, eps) = (self.view(op.dy), T::of_f64(op.eps));
                let mut reduce = |s2: &mut [&mut [T]]| {
                    bn::bn_reduce(dy, branches, eps, op.act, bn::BnSums { s1, s2 }, &mut [], scratch);
                };
                match op.s2[..] {
                    [one] => reduce(&mut [self.vector_mut(one)]),
                    [one, two] => reduce(&mut [self.vector_mut(one), self.vector_mut(two)]),
                    _ => unreachable!("a batch norm has one or two branches"),
                }
                for (branch, &s2) in op.branches.iter().zip(&op.s2) {
                    for (param, sums) in [(branch.params.weight, s2), (branch.params.bias, op.s1)] {
                        let sums = self.vector(sums);
                        add_to(&mut self.gradients[plan.params().slot(param).range()], sums);
                    }
                }
            }
            Op::BnBackward(op) => {
                let branches = self.branches(&op.branches);
                let branches = &branches[..op.branches.len()];
                let (dy, s1, eps) = (self.view(op.dy), self.vector(op.s1), T::of_f64(op.eps));
                let backward = |s2: &[&[T]], dx: &mut [ViewMut<'_, T>], accumulate: &[bool]| {
                    bn::bn_backward(dy, branches, eps, op.act, s1, s2, dy.pixels(), dx, accumulate);
                };
                match (&op.s2[..], &op.dx[..]) {
                    (&[s2], &[(dx, add)]) => backward(&[self.vector(s2)], &mut [self.view_mut(dx)], &[add]),
                    (&[s2, t2], &[(dx, add), (ex, bdd)]) => {
                        let mut dx = [self.view_mut(dx), self.view_mut(ex)];
                        backward(&[self.vector(s2), self.vector(t2)], &mut dx, &[add, bdd]);
                    }
                    _ => unreachable!("a batch norm has one or two branches"),
                }
            }
            Op::RunningStats(op) => self.running_stats(op),
            Op::Activate(op) => k::activation(self.view(op.x), self.view_mut(op.y), op.act, false),
            Op::ActivateGrad(op) => {
                let (x, dy, dx) = (self.view(op.x), self.view(op.dy), self.view_mut(op.dx));
                k::activation_grad(x, dy, dx, op.act, op.accumulate);
            }
            Op::Add(op) => {
                for (i, &x) in op.xs.iter().enumerate() {
                    k::copy(self.view(x), self.view_mut(op.y), i > 0);
                }
            }
            Op::Copy(op) => k::copy(self.view(op.x), self.view_mut(op.y), op.accumulate),
            Op::Fill(op) => k::fill(self.view_mut(op.y), T::zero()),
            Op::MaxPool(op) => k::max_pool(self.view(op.x), self.view_mut(op.y), pool(op.attrs), false),
            Op::MaxPoolGrad(op) => {
                let (x, dy, dx) = (self.view(op.x), self.view(op.dy), self.view_mut(op.dx));
                k::max_pool_grad(x, dy, dx, pool(op.attrs), op.accumulate);
            }
            Op::AvgPool(op) => k::average_pool(self.view(op.x), self.view_mut(op.y), pool(op.attrs), false),
            Op::AvgPoolGrad(op) => {
                k::average_pool_grad(self.view(op.dy), self.view_mut(op.dx), pool(op.attrs), op.accumulate);
            }
            Op::Resize(op) => k::resize_nearest(self.view(op.x), self.view_mut(op.y), false),
            Op::ResizeGrad(op) => k::resize_nearest_grad(self.view(op.dy), self.view_mut(op.dx), op.accumulate),
            Op::External(op) => {
                let body = self.registry.get(op.spec.name())?;
                body(op, &mut ExternalIo { memory: self, at });
            }
            Op::BatchNorm(_) | Op::Concat(_) | Op::Slice(_) => unreachable!("lowered when the plan was compiled"),
        }
        Ok(())
    }

    /// First element of a tensor.
    pub fn pointer(&self, id: TensorId) -> *mut T {
        // SAFETY: the plan places every tensor that an op touches inside of the arena.
        unsafe { self.base.add(self.plan.placement(id).offset as usize).cast() }
    }

    /// Elements from a tensor's first to its last.
    pub fn extent(&self, id: TensorId) -> usize {
        let place = self.plan.placement(id);
        (self.plan.shape(id).pixels() - 1) * place.pitch + place.channels
    }

    fn shape(&self, id: TensorId) -> [usize; 4] {
        let shape = self.plan.shape(id);
        [shape.n, shape.h, shape.w, self.plan.placement(id).channels]
    }

    /// All physical channels of a tensor.
    fn view<'v>(&self, id: TensorId) -> View<'v, T> {
        // SAFETY: the tensor lies in the arena, which outlives the op; no op reads what it writes elsewhere.
        unsafe { View::from_raw(self.pointer(id), self.shape(id), self.plan.placement(id).pitch) }
    }

    fn view_mut<'v>(&self, id: TensorId) -> ViewMut<'v, T> {
        // SAFETY: as above; the plan gives an op's outputs channels that no other operand has.
        unsafe { ViewMut::from_raw(self.pointer(id), self.shape(id), self.plan.placement(id).pitch) }
    }

    /// A tensor as a convolution sees it: groups are counted over logical channels.
    fn conv_view<'v>(&self, id: TensorId, attrs: ConvAttrs) -> View<'v, T> {
        let view = self.view(id);
        if attrs.groups == 1 { view } else { view.channel_range(0, self.plan.shape(id).c) }
    }

    fn conv_view_mut<'v>(&self, id: TensorId, attrs: ConvAttrs) -> ViewMut<'v, T> {
        let view = self.view_mut(id);
        if attrs.groups == 1 { view } else { view.channel_range(0, self.plan.shape(id).c) }
    }

    /// Grouped convolutions write logical channels only; the padding after them must be zero.
    fn clear_padding(&self, id: TensorId, attrs: ConvAttrs) {
        let (logical, physical) = (self.plan.shape(id).c, self.plan.placement(id).channels);
        if attrs.groups > 1 && logical < physical {
            k::fill(self.view_mut(id).channel_range(logical, physical - logical), T::zero());
        }
    }

    /// A per-channel tensor.
    fn vector<'v>(&self, id: TensorId) -> &'v [T] {
        // SAFETY: as for `view`.
        unsafe { std::slice::from_raw_parts(self.pointer(id), self.plan.placement(id).channels) }
    }

    fn vector_mut<'v>(&self, id: TensorId) -> &'v mut [T] {
        // SAFETY: as for `view_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(id), self.plan.placement(id).channels) }
    }

    /// The op's workspace.
    fn scratch<'v>(&self, at: usize) -> &'v mut [T] {
        let (offset, bytes) = self.plan.workspace(at);
        // SAFETY: the workspace lies in the arena and is this op's alone.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.add(offset as usize).cast(), bytes as usize / size_of::<T>())
        }
    }

    fn range(&self, id: ParamId) -> std::ops::Range<usize> {
        self.plan.params().slot(id).range()
    }

    /// A convolution's weights, without the rows of padded output channels where groups are counted.
    fn conv_weights(&self, id: ParamId, attrs: ConvAttrs) -> &[T] {
        let weights = &self.weights[self.range(id)];
        if attrs.groups == 1 { weights } else { &weights[..self.plan.params().slot(id).param.shape.elements()] }
    }

    /// One or two branches; the second repeats the first where there is one.
    fn branches<'v>(&self, branches: &[BnBranch]) -> [bn::BnBranch<'v, T>; 2]
    where
        Self: 'v,
    {
        let vector = |id: ParamId| -> &'v [T] {
            let range = self.range(id);
            // SAFETY: the flat weights outlive the op and nothing writes them while a plan runs.
            unsafe { std::slice::from_raw_parts(self.weights[range.clone()].as_ptr(), range.len()) }
        };
        let branch = |b: &BnBranch| bn::BnBranch {
            x: self.view(b.x),
            mean: self.vector(b.mean),
            var: self.vector(b.var),
            gamma: vector(b.params.weight),
            beta: vector(b.params.bias),
        };
        [branch(&branches[0]), branch(&branches[branches.len() - 1])]
    }

    fn running_stats(&mut self, op: &RunningStats) {
        if op.guard.is_some_and(|g| !self.vector(g)[0].is_finite()) {
            return;
        }
        let (keep, take) = (T::of_f64(1.0 - op.momentum), T::of_f64(op.momentum));
        for entry in &op.entries {
            let unbiased = match entry.count {
                0 | 1 => T::one(),
                n => T::of_f64(n as f64 / (n - 1) as f64),
            };
            for (id, batch, factor) in
                [(entry.running_mean, entry.mean, T::one()), (entry.running_var, entry.var, unbiased)]
            {
                let (range, batch) = (self.range(id), self.vector(batch));
                let running = &mut self.buffers[range];
                running.iter_mut().zip(batch).for_each(|(r, &b)| *r = keep * *r + take * (b * factor));
            }
        }
    }
}

/// Weight elements of a convolution as the kernels see it.
fn conv_rows(cout: usize, attrs: ConvAttrs, cin: usize) -> usize {
    cout * attrs.kernel * attrs.kernel * (cin / attrs.groups)
}

pub(crate) fn kernel_attrs(attrs: ConvAttrs) -> k::conv::ConvAttrs {
    k::conv::ConvAttrs::square(attrs.kernel, attrs.stride, attrs.pad, attrs.groups)
}

fn pool(attrs: PoolAttrs) -> k::PoolAttrs {
    k::PoolAttrs { kernel: attrs.kernel, stride: attrs.stride, pad: attrs.pad }
}

fn add_to<T: Element>(target: &mut [T], values: &[T]) {
    target.iter_mut().zip(values).for_each(|(t, &v)| *t += v);
}

/// Two disjoint ranges of one buffer.
fn disjoint<T>(
    buffer: &mut [T],
    first: std::ops::Range<usize>,
    second: Option<std::ops::Range<usize>>,
) -> (&mut [T], Option<&mut [T]>) {
    match second {
        None => (&mut buffer[first], None),
        Some(second) if first.end <= second.start => {
            let (low, high) = buffer.split_at_mut(second.start);
            (&mut low[first], Some(&mut high[..second.len()]))
        }
        Some(second) => {
            let (low, high) = buffer.split_at_mut(first.start);
            (&mut high[..first.len()], Some(&mut low[second]))
        }
    }
}
