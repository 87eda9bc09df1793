//! The ops: one file an idea, one row each in the table below.
//!
//! A row gives an op its variant in [`Op`]. Executors match on [`Op`] exhaustively, so an op without a
//! body in an executor does not build.

pub mod activation;
pub mod arithmetic;
pub mod conv;
pub mod external;
pub mod norm;
pub mod pool;
pub mod range;
pub mod resize;

pub use activation::{Activate, ActivateGrad, Activation};
pub use arithmetic::{Add, Copy, Fill, Normalize};
pub use conv::{Conv2d, ConvAttrs, ConvDataGrad, ConvWeightGrad};
pub use external::{External, ExternalSpec, ScratchSpec};
pub use norm::{BatchNorm, BnApply, BnBackward, BnBranch, BnReduce, BnStats, RunningEntry, RunningStats};
pub use pool::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad, PoolAttrs};
pub use range::{Concat, Slice};
pub use resize::{Resize, ResizeGrad};

use crate::graph::TensorId;

/// What an op does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Overwrites every element of the operand.
    Write,
    /// Adds to what is there.
    Accumulate,
}

impl Access {
    /// `Accumulate` or `Write`, for outputs that know both.
    pub fn output(accumulate: bool) -> Self {
        if accumulate { Access::Accumulate } else { Access::Write }
    }
}

/// What every op tells the passes.
pub trait OpDef {
    /// Calls `f` for every tensor operand; `f` may replace it.
    fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access));

    /// Groups of operands that must share one channel map.
    fn same_channels(&self) -> Vec<Vec<TensorId>> {
        Vec::new()
    }

    /// Operands whose channels must lie in one segment.
    fn unsegmented(&self) -> Vec<TensorId> {
        Vec::new()
    }
}

macro_rules! op_table {
    ($($name:ident),* $(,)?) => {
        /// An op with its operands and attributes.
        #[derive(Clone, Debug)]
        pub enum Op { $($name($name)),* }

        impl Op {
            /// Names of all ops.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// The op's name, as in profiles and errors.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name)),* }
            }

            /// Calls `f` for every tensor operand; `f` may replace it.
            pub fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
                match self { $(Op::$name(op) => op.visit(f)),* }
            }

            pub(crate) fn same_channels(&self) -> Vec<Vec<TensorId>> {
                match self { $(Op::$name(op) => op.same_channels()),* }
            }

            pub(crate) fn unsegmented(&self) -> Vec<TensorId> {
                match self { $(Op::$name(op) => op.unsegmented()),* }
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Op { Op::$name(op) }
        })*
    };
}

op_table! {
    // Forward.
    Normalize, Conv2d, BatchNorm, BnStats, BnApply, RunningStats, Activate, Add, MaxPool, AvgPool, Resize,
    Concat, Slice, Copy, Fill, External,
    // Backward.
    ConvDataGrad, ConvWeightGrad, BnReduce, BnBackward, ActivateGrad, MaxPoolGrad, AvgPoolGrad, ResizeGrad,
}

impl Op {
    /// Every tensor operand with its access.
    pub fn operands(&self) -> Vec<(TensorId, Access)> {
        let mut operands = Vec::new();
        self.clone().visit(&mut |id, access| operands.push((*id, access)));
        operands
    }

    /// Tensors the op reads (accumulated ones included).
    pub fn reads(&self) -> Vec<TensorId> {
        self.operands().into_iter().filter(|o| o.1 != Access::Write).map(|o| o.0).collect()
    }

    /// Tensors the op writes (accumulated ones included).
    pub fn writes(&self) -> Vec<TensorId> {
        self.operands().into_iter().filter(|o| o.1 != Access::Read).map(|o| o.0).collect()
    }
}
