//! What one commit does to the flat buffers: clip, optimiser, averages.

/// Update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptimizerKind {
    /// Nesterov momentum, no dampening; decay added to the gradient.
    Sgd,
    /// Adam; decay added to the gradient.
    Adam,
    /// Adam with amsgrad and decoupled decay.
    AdamW,
    /// Sign of the interpolated momentum, decoupled decay.
    Lion,
}

impl OptimizerKind {
    /// State buffers, each as large as the weights.
    pub fn states(self) -> usize {
        match self {
            OptimizerKind::Sgd | OptimizerKind::Lion => 1,
            OptimizerKind::Adam => 2,
            OptimizerKind::AdamW => 3,
        }
    }
}

/// Scalars of one parameter group.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct GroupScalars {
    pub lr: f64,
    /// Momentum, or the first beta.
    pub momentum: f64,
    pub weight_decay: f64,
}

/// One commit. The gradient's norm is clipped by `min(1, clip / (norm + 1e-6))`.
#[derive(Clone, Debug, PartialEq)]
pub struct CommitStep {
    pub kind: OptimizerKind,
    /// Indexed by [`crate::ParamGroup::index`].
    pub groups: [GroupScalars; 3],
    pub beta2: f64,
    pub eps: f64,
    /// Largest norm; infinite for no clipping.
    pub clip: f64,
    /// Commits so far including this one, for bias correction.
    pub step: u64,
    /// Decay of the moving average over weights and running statistics, where one is kept.
    pub ema_decay: Option<f64>,
}

/// What a commit saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommitReport {
    /// Norm of the whole gradient before clipping.
    pub grad_norm: f64,
    /// False where the norm was not finite; nothing was changed then except that the gradient was cleared, and the
    /// loss scale halved where there is one.
    pub applied: bool,
    /// What the next gradients will be multiplied by: 1 without a loss scale.
    pub loss_scale: f32,
}
