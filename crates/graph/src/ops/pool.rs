//! Max and average pooling.

use super::{Access, OpDef};
use crate::graph::TensorId;

/// Geometry of a square window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolAttrs {
    pub kernel: usize,
    pub stride: usize,
    pub pad: usize,
}

impl PoolAttrs {
    /// Output extent for an input extent.
    pub fn output(&self, extent: usize) -> usize {
        (extent + 2 * self.pad - self.kernel) / self.stride + 1
    }
}

macro_rules! pool {
    ($(#[$doc:meta])* $name:ident, $(#[$grad_doc:meta])* $grad:ident, reads_x: $reads_x:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name {
            pub x: TensorId,
            pub y: TensorId,
            pub attrs: PoolAttrs,
        }

        impl OpDef for $name {
            fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
                f(&mut self.x, Access::Read);
                f(&mut self.y, Access::Write);
            }

            fn same_channels(&self) -> Vec<Vec<TensorId>> {
                vec![vec![self.x, self.y]]
            }
        }

        $(#[$grad_doc])*
        #[derive(Clone, Debug)]
        pub struct $grad {
            /// The pool's input; read only where the gradient depends on it.
            pub x: TensorId,
            pub dy: TensorId,
            pub dx: TensorId,
            pub attrs: PoolAttrs,
            pub accumulate: bool,
        }

        impl OpDef for $grad {
            fn visit(&mut self, f: &mut dyn FnMut(&mut TensorId, Access)) {
                if $reads_x {
                    f(&mut self.x, Access::Read);
                }
                f(&mut self.dy, Access::Read);
                f(&mut self.dx, Access::output(self.accumulate));
            }
        }
    };
}

pool!(
    /// Maximum over the window; padding is minus infinity.
    MaxPool,
    /// Hands each output's gradient to the first maximum of its window, in row-major order.
    MaxPoolGrad,
    reads_x: true
);
pool!(
    /// Mean over the window; padding counts as zero.
    AvgPool,
    /// Spreads each output's gradient evenly over its window.
    AvgPoolGrad,
    reads_x: false
);
