//! The commit and the running statistics against the CPU's arithmetic in float32, bit for bit.

mod kernels_common;

use cuda::kernels::{
    Commit, CommitBuffers, CommitChunk, CommitScalars, RawLossScale, RawReport, RunningEntry, RunningStats,
};
use cuda::{Buffer, Format, Gpu};
use graph::{CommitReport, CommitStep, GroupScalars, LossScale, OptimizerKind, ParamGroup};
use kernels_common::*;

/// Offset, length, group, trained. Buffers are numbered apart; lengths that no multiple of 4 divides too.
fn slots() -> Vec<(usize, usize, ParamGroup, bool)> {
    use ParamGroup::{Bias, Buffer, Norm, Weight};
    vec![
        (0, 30_000, Weight, true),
        (30_000, 64, Norm, true),
        (30_064, 64, Bias, true),
        (0, 64, Buffer, false),
        (64, 64, Buffer, false),
        (30_128, 1000, Weight, false),
        (31_136, 27, Weight, true),
        (31_168, 8_195, Weight, true),
        (39_376, 5, Bias, false),
        (128, 9_001, Buffer, false),
    ]
}

const WEIGHTS: usize = 39_392;
const BUFFERS: usize = 9_136;

fn step(kind: OptimizerKind, number: u64, clip: f64, ema_decay: Option<f64>) -> CommitStep {
    let group = |lr: f64, weight_decay: f64| GroupScalars { lr, momentum: 0.937, weight_decay };
    let groups = [group(0.02, 0.0), group(0.01, 0.0005), group(0.015, 0.0)];
    CommitStep { kind, groups, beta2: 0.999, eps: 1e-8, clip, step: number, ema_decay }
}

/// All flat buffers here; the CPU's arithmetic on them.
#[derive(Clone, Debug, PartialEq)]
struct Host {
    weights: Vec<f32>,
    gradients: Vec<f32>,
    average: Vec<f32>,
    state: [Vec<f32>; 3],
    buffers: Vec<f32>,
    average_buffers: Vec<f32>,
}

impl Host {
    fn new(r: &mut Random) -> Self {
        let mut draw = |len: usize| (0..len).map(|_| r.normal() as f32).collect::<Vec<f32>>();
        let (weights, average) = (draw(WEIGHTS), draw(WEIGHTS));
        Self {
            weights,
            gradients: vec![0.0; WEIGHTS],
            average,
            state: [0; 3].map(|_| vec![0.0; WEIGHTS]),
            buffers: draw(BUFFERS),
            average_buffers: draw(BUFFERS),
        }
    }

    fn commit(&mut self, step: &CommitStep, loss_scale: f64) -> CommitReport {
        let unscale = (1.0 / loss_scale) as f32;
        let trained = || slots().into_iter().filter(|s| s.3);
        let mut sum = 0.0;
        for (offset, len, ..) in trained() {
            sum += self.gradients[offset..offset + len].iter().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>();
        }
        let grad_norm = sum.sqrt() * f64::from(unscale);
        let applied = grad_norm.is_finite();
        if applied {
            let scale = (step.clip / (grad_norm + 1e-6)).min(1.0) as f32 * unscale;
            for (offset, len, group, _) in trained() {
                let group = step.groups[group.index().unwrap()];
                (offset..offset + len).for_each(|i| self.update(step, group, scale, i));
            }
            if let Some(decay) = step.ema_decay {
                for (offset, len, group, _) in slots() {
                    let (averages, values) = match group {
                        ParamGroup::Buffer => (&mut self.average_buffers, &self.buffers),
                        _ => (&mut self.average, &self.weights),
                    };
                    for i in offset..offset + len {
                        averages[i] = decay as f32 * averages[i] + (1.0 - decay) as f32 * values[i];
                    }
                }
            }
        }
        for (offset, len, ..) in slots().into_iter().filter(|s| s.2 != ParamGroup::Buffer) {
            self.gradients[offset..offset + len].fill(0.0);
        }
        CommitReport { grad_norm, applied, loss_scale: loss_scale as f32 }
    }

    fn update(&mut self, step: &CommitStep, group: GroupScalars, scale: f32, i: usize) {
        let of = |v: f64| v as f32;
        let GroupScalars { lr, momentum, weight_decay } = group;
        let correction = |beta: f64| 1.0 - beta.powf(step.step as f64);
        let (size, c2) = (of(lr / correction(momentum)), of(correction(step.beta2).sqrt()));
        let (shrink, lr, decay) = (of(1.0 - lr * weight_decay), of(lr), of(weight_decay));
        let (m, one_minus_m, b2, one_minus_b2) =
            (of(momentum), of(1.0 - momentum), of(step.beta2), of(1.0 - step.beta2));
        let eps = of(step.eps);
        let mut g = self.gradients[i] * scale;
        let w = &mut self.weights[i];
        let [s0, s1, s2] = self.state.each_mut().map(|s| &mut s[i]);
        match step.kind {
            OptimizerKind::Sgd => {
                g += decay * *w;
                *s0 = m * *s0 + g;
                *w -= lr * (g + m * *s0);
            }
            OptimizerKind::Adam => {
                g += decay * *w;
                *s0 = m * *s0 + one_minus_m * g;
                *s1 = b2 * *s1 + one_minus_b2 * g * g;
                *w -= size * *s0 / (s1.sqrt() / c2 + eps);
            }
            OptimizerKind::AdamW => {
                *w *= shrink;
                *s0 = m * *s0 + one_minus_m * g;
                *s1 = b2 * *s1 + one_minus_b2 * g * g;
                *s2 = s2.max(*s1);
                *w -= size * *s0 / (s2.sqrt() / c2 + eps);
            }
            OptimizerKind::Lion => {
                *w *= shrink;
                let direction = m * *s0 + one_minus_m * g;
                if direction != 0.0 {
                    *w -= lr * direction.signum();
                }
                *s0 = b2 * *s0 + one_minus_b2 * g;
            }
        }
    }
}

/// The same on the card.
struct Card {
    chunks: Buffer,
    chunk_count: usize,
    scalars: Buffer,
    report: Buffer,
    scratch: Buffer,
    loss_scale: Buffer,
    weights: Buffer,
    gradients: Buffer,
    average: Buffer,
    state: [Buffer; 3],
    buffers: Buffer,
    average_buffers: Buffer,
    half_copy: Buffer,
}

impl Card {
    fn new(gpu: &Gpu, host: &Host) -> Self {
        let table = CommitChunk::of(slots());
        let of = |values: &[f32]| {
            let mut buffer = gpu.allocate(values.len() * 4).unwrap();
            buffer.write(0, values).unwrap();
            buffer
        };
        let mut chunks = gpu.allocate(size_of_val(&table[..])).unwrap();
        chunks.write(0, &table).unwrap();
        Self {
            chunks,
            chunk_count: table.len(),
            scalars: gpu.allocate(size_of::<CommitScalars>()).unwrap(),
            report: scratch(gpu, size_of::<RawReport>()),
            scratch: scratch(gpu, Commit::scratch(table.len())),
            loss_scale: scratch(gpu, size_of::<RawLossScale>()),
            weights: of(&host.weights),
            gradients: of(&host.gradients),
            average: of(&host.average),
            state: host.state.each_ref().map(|s| of(s)),
            buffers: of(&host.buffers),
            average_buffers: of(&host.average_buffers),
            half_copy: scratch(gpu, WEIGHTS * 2),
        }
    }

    fn set_loss_scale(&mut self, scale: f64, good: u32) {
        self.loss_scale.write(0, &[RawLossScale { scale: scale as f32, good }]).unwrap();
    }

    fn addresses(&self, half: Option<Format>) -> CommitBuffers {
        CommitBuffers {
            chunks: self.chunks.address(),
            chunk_count: self.chunk_count,
            scalars: self.scalars.address(),
            report: self.report.address(),
            scratch: self.scratch.address(),
            loss_scale: Some(self.loss_scale.address()),
            weights: self.weights.address(),
            gradients: self.gradients.address(),
            average: self.average.address(),
            state: self.state.each_ref().map(Buffer::address),
            buffers: self.buffers.address(),
            average_buffers: self.average_buffers.address(),
            half_copy: half.map(|format| (self.half_copy.address(), format)),
        }
    }

    fn read(&self) -> Host {
        let of = |b: &Buffer| b.read::<f32>(0, b.bytes() / 4).unwrap();
        Host {
            weights: of(&self.weights),
            gradients: of(&self.gradients),
            average: of(&self.average),
            state: self.state.each_ref().map(of),
            buffers: of(&self.buffers),
            average_buffers: of(&self.average_buffers),
        }
    }

    fn report(&self) -> CommitReport {
        self.report.read::<RawReport>(0, 1).unwrap()[0].into()
    }
}

#[test]
fn every_rule_does_what_the_cpu_does_to_the_bit() {
    let Some(gpu) = gpu() else { return };
    check_rules(&gpu, 3);
}

/// A step of each rule and the statistics: what compute-sanitizer gets through.
#[test]
fn small_shapes() {
    let Some(gpu) = gpu() else { return };
    check_rules(&gpu, 1);
    check_statistics(&gpu, [8, 24, 40, 136]);
}

fn check_rules(gpu: &Gpu, steps: u64) {
    let (kernel, mut r) = (Commit::load(gpu).unwrap(), Random::new());
    for kind in [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lion] {
        for (clip, ema, half, loss_scale) in [
            (10.0, Some(0.995), Some(Format::Bf16), 1.0),
            (f64::INFINITY, None, None, 1.0),
            (10.0, Some(0.5), Some(Format::F16), 1024.0),
        ] {
            let mut host = Host::new(&mut r);
            let mut card = Card::new(gpu, &host);
            for number in 1..=steps {
                for (offset, len, group, _) in slots() {
                    if group != ParamGroup::Buffer {
                        // Frozen parameters have gradients here, to see that they count nowhere.
                        let draw = |g: &mut f32| *g = (r.normal() * 0.3 * loss_scale) as f32;
                        host.gradients[offset..offset + len].iter_mut().for_each(draw);
                    }
                }
                card.gradients.write(0, &host.gradients).unwrap();
                let step = step(kind, number, clip, ema);
                card.scalars.write(0, &[CommitScalars::new(&step)]).unwrap();
                card.set_loss_scale(loss_scale, 0);
                // SAFETY: buffers of the extents that the chunks name.
                unsafe { kernel.run(kind, &card.addresses(half)) }.unwrap();
                let want = host.commit(&step, loss_scale);
                let got = card.report();
                assert!(got.applied && want.applied);
                assert!((got.grad_norm / want.grad_norm - 1.0).abs() < 1e-12, "{} {}", got.grad_norm, want.grad_norm);
                let what = format!("{kind:?} {clip} {ema:?} step {number}");
                assert!(card.read() == host, "{what}: buffers differ");
                check_half(&card, &host, half, &what);
            }
        }
    }
}

/// The copy holds trained weights, and nothing else was written.
fn check_half(card: &Card, host: &Host, half: Option<Format>, what: &str) {
    let got = card.half_copy.read::<u16>(0, WEIGHTS).unwrap();
    let mut want = vec![0xFFFF; WEIGHTS];
    for (offset, len, ..) in slots().into_iter().filter(|s| s.3) {
        for i in offset..offset + len {
            if let Some(format) = half {
                let bytes = encode(format, f64::from(host.weights[i]));
                want[i] = u16::from_le_bytes([bytes[0], bytes[1]]);
            }
        }
    }
    assert!(got == want, "{what}: half copy");
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing_and_is_cleared() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Commit::load(&gpu).unwrap(), Random::new());
    for kind in [OptimizerKind::Sgd, OptimizerKind::Adam, OptimizerKind::AdamW, OptimizerKind::Lion] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut host = Host::new(&mut r);
            host.gradients[31_140] = bad;
            host.gradients[17] = 1.0;
            let mut card = Card::new(&gpu, &host);
            let step = step(kind, 1, 10.0, Some(0.9));
            card.scalars.write(0, &[CommitScalars::new(&step)]).unwrap();
            card.set_loss_scale(64.0, 7);
            // SAFETY: buffers of the extents that the chunks name.
            unsafe { kernel.run(kind, &card.addresses(Some(Format::Bf16))) }.unwrap();
            let report = card.report();
            assert!(!report.applied && !report.grad_norm.is_finite());
            assert_eq!(report.loss_scale, 32.0);
            assert_eq!(card.loss_scale.read::<RawLossScale>(0, 1).unwrap(), [RawLossScale { scale: 32.0, good: 0 }]);
            host.gradients.fill(0.0);
            assert!(card.read() == host, "{kind:?} {bad}");
        }
    }
}

#[test]
fn a_frozen_gradient_that_is_not_finite_stops_nothing() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Commit::load(&gpu).unwrap(), Random::new());
    let mut host = Host::new(&mut r);
    host.gradients[30_200] = f32::NAN;
    let mut card = Card::new(&gpu, &host);
    let step = step(OptimizerKind::Sgd, 1, 10.0, Some(0.9));
    card.scalars.write(0, &[CommitScalars::new(&step)]).unwrap();
    card.set_loss_scale(1.0, 0);
    // SAFETY: buffers of the extents that the chunks name.
    unsafe { kernel.run(OptimizerKind::Sgd, &card.addresses(None)) }.unwrap();
    let want = host.commit(&step, 1.0);
    assert_eq!(card.report(), want);
    assert!(want.applied && card.read() == host);
}

#[test]
fn the_loss_scale_doubles_after_many_good_commits_and_stays_between_its_ends() {
    let Some(gpu) = gpu() else { return };
    let (kernel, mut r) = (Commit::load(&gpu).unwrap(), Random::new());
    let mut card = Card::new(&gpu, &Host::new(&mut r));
    card.scalars.write(0, &[CommitScalars::new(&step(OptimizerKind::Sgd, 1, 10.0, None))]).unwrap();
    let most = f64::from(LossScale::MOST);
    for (bad, before, after) in [
        (false, (8.0, 3), (8.0, 4)),
        (false, (8.0, LossScale::GROWS_AFTER - 1), (16.0, 0)),
        (false, (most, LossScale::GROWS_AFTER - 1), (most, 0)),
        (true, (8.0, 1999), (4.0, 0)),
        (true, (1.0, 5), (1.0, 0)),
    ] {
        let mut gradients = vec![0.25f32; WEIGHTS];
        if bad {
            gradients[3] = f32::INFINITY;
        }
        card.gradients.write(0, &gradients).unwrap();
        card.set_loss_scale(before.0, before.1);
        // SAFETY: buffers of the extents that the chunks name.
        unsafe { kernel.run(OptimizerKind::Sgd, &card.addresses(None)) }.unwrap();
        let (scale, good) = (after.0 as f32, after.1);
        assert_eq!(card.loss_scale.read::<RawLossScale>(0, 1).unwrap(), [RawLossScale { scale, good }], "{before:?}");
        assert_eq!(card.report().loss_scale, scale);
    }
}

#[test]
fn running_statistics_move_unless_the_guard_is_not_finite() {
    let Some(gpu) = gpu() else { return };
    check_statistics(&gpu, [8, 24, 512, 1032]);
}

fn check_statistics(gpu: &Gpu, channels: [usize; 4]) {
    let (kernel, mut r) = (RunningStats::load(gpu).unwrap(), Random::new());
    let counts = [1, 2, 49, 102_400];
    let draw = |c: usize, r: &mut Random| values(c, c, || r.range(0.0, 2.0));
    let vectors: Vec<[Vec<f64>; 4]> = channels.iter().map(|&c| [0; 4].map(|_| draw(c, &mut r))).collect();
    let momentum = 0.03;
    for (guard, moves) in [(None, true), (Some(1.5), true), (Some(f64::NAN), false), (Some(f64::INFINITY), false)] {
        let card: Vec<[Vector; 4]> = vectors.iter().map(|v| v.each_ref().map(|v| Vector::new(gpu, v))).collect();
        let entries: Vec<RunningEntry> = (0..counts.len())
            .map(|i| {
                let [mean, var, running_mean, running_var] = card[i].each_ref().map(Vector::at);
                let unbiased = RunningEntry::unbiased(counts[i]);
                RunningEntry { mean, var, running_mean, running_var, channels: channels[i] as u32, unbiased }
            })
            .collect();
        let mut table = gpu.allocate(size_of_val(&entries[..])).unwrap();
        table.write(0, &entries).unwrap();
        let flag = guard.map(|g| Vector::new(gpu, &[g]));
        // SAFETY: the table's addresses are buffers of these extents.
        unsafe { kernel.run(table.address(), entries.len(), momentum, flag.as_ref().map(Vector::at)) }.unwrap();
        for (i, [mean, var, running_mean, running_var]) in vectors.iter().enumerate() {
            let unbiased = f64::from(RunningEntry::unbiased(counts[i]));
            let moved = |running: &[f64], batch: &[f64], factor: f64| -> Vec<f64> {
                let value = |(r, b): (&f64, &f64)| (1.0 - momentum) * r + momentum * (b * factor);
                if moves { running.iter().zip(batch).map(value).collect() } else { running.to_vec() }
            };
            assert_near("mean", &card[i][2].read(), &moved(running_mean, mean, 1.0), 1e-6);
            assert_near("var", &card[i][3].read(), &moved(running_var, var, unbiased), 1e-6);
            assert_eq!((card[i][0].read(), card[i][1].read()), (mean.clone(), var.clone()));
        }
    }
    assert_eq!((RunningEntry::unbiased(0), RunningEntry::unbiased(1), RunningEntry::unbiased(2)), (1.0, 1.0, 2.0));
}
