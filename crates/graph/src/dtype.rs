//! Element types, and which of them a tensor's kind is stored in.

/// Storage type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    U32,
    U8,
}

impl DType {
    /// Size of one element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }
}

/// What a tensor holds; the run's [`Precision`] decides how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Feature maps and their gradients.
    Activation,
    /// Batch statistics, loss terms, predictions: never in half precision.
    Statistic,
    /// Input of a fixed type, stored densely (no pad channels).
    Raw(DType),
}

/// How a run stores what it computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Feature maps and convolution operands.
    pub activation: DType,
    /// Statistics, loss, master weights, gradients of weights, optimiser state.
    pub statistic: DType,
}

impl Precision {
    pub const F32: Self = Self { activation: DType::F32, statistic: DType::F32 };
    /// Half precision with the range of float32.
    pub const BF16: Self = Self { activation: DType::BF16, statistic: DType::F32 };
    /// Half precision with more digits and less range; needs a scaled loss.
    pub const F16: Self = Self { activation: DType::F16, statistic: DType::F32 };
    /// For checking gradients; only the CPU executor runs it.
    pub const F64: Self = Self { activation: DType::F64, statistic: DType::F64 };

    /// Storage type of a tensor of this kind.
    pub const fn of(self, kind: Kind) -> DType {
        match kind {
            Kind::Activation => self.activation,
            Kind::Statistic => self.statistic,
            Kind::Raw(dtype) => dtype,
        }
    }
}
