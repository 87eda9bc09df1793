//! Ops that other crates declare: which body serves which name, and bodies that run on the host.
//!
//! A body on the host gets its inputs as float32 and hands outputs and gradients back; the launches around it wait for
//! the copies. That costs milliseconds a megabyte: it is for references and tests, not for work.

mod detection_loss;

pub use detection_loss::{assigned_host_loss, host_loss};

use crate::device::{Buffer, Gpu};
use crate::error::Result;
use crate::transfer::Rows;
use graph::ops::External;
use graph::{DType, ExecError, Plan, ScratchSpec, Shape, TensorId};
use half::{bf16, f16};
use std::sync::Arc;

/// Computes an external op on the host.
pub type HostBody = Arc<dyn Fn(&External, &mut HostOperands) + Send + Sync>;

/// Who serves an external op.
#[derive(Clone)]
pub(crate) enum Body {
    /// Kernels; the dispatch knows which.
    Decode,
    Loss,
    Suppress,
    Host(HostBody),
    /// Outputs and gradients that depend on shapes alone.
    Constant(HostBody),
}

/// Bodies by name.
pub(crate) struct Registry {
    rows: Vec<(&'static str, Body)>,
}

impl Registry {
    pub fn standard() -> Self {
        use detect::external::{Decode, DetectionLoss, Suppress};
        let (loss, decode) = ((DetectionLoss::NAME, Body::Loss), (Decode::NAME, Body::Decode));
        Self { rows: vec![loss, decode, (Suppress::NAME, Body::Suppress)] }
    }

    /// The latest body of a name counts.
    pub fn add(&mut self, name: &'static str, body: Body) {
        self.rows.insert(0, (name, body));
    }

    pub fn get(&self, name: &'static str) -> std::result::Result<&Body, ExecError> {
        self.rows.iter().find(|r| r.0 == name).map(|r| &r.1).ok_or(ExecError::UnknownOp(name))
    }
}

/// An operand on the host, NHWC.
#[derive(Clone, Debug)]
pub struct HostTensor {
    pub shape: Shape,
    /// Elements from one pixel to the next: the logical channels and zeros after them.
    pub pitch: usize,
    pub values: HostValues,
}

/// Elements of an operand.
#[derive(Clone, Debug)]
pub enum HostValues {
    /// Of every floating-point tensor, whatever its format on the card.
    Floats(Vec<f32>),
    Words(Vec<u32>),
    Bytes(Vec<u8>),
}

impl HostTensor {
    /// Zeros for a tensor of a plan.
    fn of(plan: &Plan, id: TensorId) -> Self {
        let (shape, pitch) = (plan.shape(id), plan.placement(id).channels);
        let len = shape.pixels() * pitch;
        let values = match plan.precision().of(plan.graph().tensor(id).kind) {
            DType::U32 => HostValues::Words(vec![0; len]),
            DType::U8 => HostValues::Bytes(vec![0; len]),
            _ => HostValues::Floats(vec![0.0; len]),
        };
        Self { shape, pitch, values }
    }

    /// Floating-point elements; empty for other tensors.
    pub fn floats(&self) -> &[f32] {
        if let HostValues::Floats(values) = &self.values { values } else { &[] }
    }

    /// [`Self::floats`] to write.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        if let HostValues::Floats(values) = &mut self.values { values } else { &mut [] }
    }

    /// Elements of a u32 input; empty for other tensors.
    pub fn words(&self) -> &[u32] {
        if let HostValues::Words(values) = &self.values { values } else { &[] }
    }
}

/// All operands of an external op on the host.
#[derive(Clone, Debug)]
pub struct HostOperands {
    pub inputs: Vec<HostTensor>,
    /// Hold what the last run left.
    pub outputs: Vec<HostTensor>,
    /// As [`External::gradients`].
    pub gradients: Vec<Option<HostTensor>>,
    /// Working memory as declared: statistics and words.
    pub scratch: (Vec<f32>, Vec<u32>),
}

impl HostOperands {
    fn of(plan: &Plan, op: &External) -> Self {
        let tensors = |ids: &[TensorId]| ids.iter().map(|&id| HostTensor::of(plan, id)).collect();
        let shapes: Vec<Shape> = op.inputs.iter().map(|&id| plan.shape(id)).collect();
        let ScratchSpec { statistics, words } = op.spec.scratch(&shapes);
        Self {
            inputs: tensors(&op.inputs),
            outputs: tensors(&op.outputs),
            gradients: op.gradients.iter().map(|id| id.map(|id| HostTensor::of(plan, id))).collect(),
            scratch: (vec![0.0; statistics], vec![0; words]),
        }
    }
}

/// A tensor's rows on the card and their format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub rows: Rows,
    pub dtype: DType,
}

impl Place {
    /// All physical channels of a tensor of a plan whose arena starts at `base`.
    pub fn of(plan: &Plan, id: TensorId, base: u64) -> Self {
        let (place, dtype) = (plan.placement(id), plan.precision().of(plan.graph().tensor(id).kind));
        let bytes = dtype.bytes();
        let (width, pitch) = (place.channels * bytes, place.pitch * bytes);
        Self { rows: Rows { at: base + place.offset, rows: plan.shape(id).pixels(), width, pitch }, dtype }
    }
}

/// An external op whose body runs on the host, with everything it needs.
pub(crate) struct HostOp {
    op: External,
    body: HostBody,
    operands: HostOperands,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    gradients: Vec<Option<Place>>,
    /// Room for the largest operand as the card holds it.
    staging: Vec<u8>,
}

impl HostOp {
    pub fn new(plan: &Plan, op: &External, body: HostBody, base: u64) -> Self {
        let place = |id: TensorId| Place::of(plan, id, base);
        let places = |ids: &[TensorId]| ids.iter().map(|&id| place(id)).collect::<Vec<_>>();
        let (inputs, outputs) = (places(&op.inputs), places(&op.outputs));
        let gradients: Vec<Option<Place>> = op.gradients.iter().map(|id| id.map(place)).collect();
        let all = inputs.iter().chain(&outputs).chain(gradients.iter().flatten());
        let staging = vec![0; all.map(|p| p.rows.bytes()).max().unwrap_or(0)];
        Self { op: op.clone(), body, operands: HostOperands::of(plan, op), inputs, outputs, gradients, staging }
    }

    /// Waits for the card, computes, and writes what came out.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The arena that the op was made for is still there.
    pub unsafe fn run(&mut self, gpu: &Gpu) -> Result<()> {
        for (tensor, place) in self.operands.inputs.iter_mut().zip(&self.inputs) {
            let bytes = &mut self.staging[..place.rows.bytes()];
            // SAFETY: places lie in the arena.
            unsafe { place.rows.download(gpu, bytes) }?;
            decode(bytes, place.dtype, &mut tensor.values);
        }
        (self.body)(&self.op, &mut self.operands);
        let outputs = self.operands.outputs.iter().zip(&self.outputs);
        let gradients = self.operands.gradients.iter().flatten().zip(self.gradients.iter().flatten());
        for (tensor, place) in outputs.chain(gradients) {
            let bytes = &mut self.staging[..place.rows.bytes()];
            encode(&tensor.values, place.dtype, bytes);
            // SAFETY: as above.
            unsafe { place.rows.upload(gpu, bytes) }?;
        }
        Ok(())
    }

    /// Runs the body once, on zeros, and keeps what it gives on the card.
    ///
    /// # Errors
    /// No memory on the card, or what the driver says.
    pub fn into_constant(mut self, gpu: &Gpu) -> Result<Constant> {
        (self.body)(&self.op, &mut self.operands);
        let outputs = self.operands.outputs.iter().zip(&self.outputs);
        let gradients = self.operands.gradients.iter().flatten().zip(self.gradients.iter().flatten());
        let mut parts = Vec::new();
        for (tensor, place) in outputs.chain(gradients) {
            let mut bytes = vec![0; place.rows.bytes()];
            encode(&tensor.values, place.dtype, &mut bytes);
            let mut buffer = gpu.allocate(bytes.len())?;
            buffer.write(0, &bytes)?;
            parts.push((place.rows, buffer));
        }
        Ok(Constant { parts })
    }
}

/// Outputs and gradients that are copied at each run.
pub(crate) struct Constant {
    parts: Vec<(Rows, Buffer)>,
}

impl Constant {
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The arena that the op was made for is still there.
    pub unsafe fn run(&self, gpu: &Gpu) -> Result<()> {
        // SAFETY: places lie in the arena, the buffers beside it.
        self.parts.iter().try_for_each(|(rows, buffer)| unsafe { rows.copy_from(gpu, buffer.address()) })
    }
}

/// Elements as the card holds them, widened.
pub(crate) fn decode(bytes: &[u8], dtype: DType, values: &mut HostValues) {
    match values {
        HostValues::Bytes(values) => values.copy_from_slice(bytes),
        HostValues::Words(values) => {
            for (v, b) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *v = u32::from_ne_bytes(*b);
            }
        }
        HostValues::Floats(values) => {
            let halves = bytes.as_chunks::<2>().0.iter();
            match dtype {
                DType::BF16 => values.iter_mut().zip(halves).for_each(|(v, b)| *v = bf16::from_ne_bytes(*b).to_f32()),
                DType::F16 => values.iter_mut().zip(halves).for_each(|(v, b)| *v = f16::from_ne_bytes(*b).to_f32()),
                _ => {
                    let singles = bytes.as_chunks::<4>().0.iter();
                    values.iter_mut().zip(singles).for_each(|(v, b)| *v = f32::from_ne_bytes(*b));
                }
            }
        }
    }
}

/// [`decode`] the other way, rounded to nearest even.
pub(crate) fn encode(values: &HostValues, dtype: DType, bytes: &mut [u8]) {
    match values {
        HostValues::Bytes(values) => bytes.copy_from_slice(values),
        HostValues::Words(values) => bytes.copy_from_slice(bytemuck::cast_slice(values)),
        HostValues::Floats(values) => {
            let halves = bytes.as_chunks_mut::<2>().0.iter_mut();
            match dtype {
                DType::BF16 => values.iter().zip(halves).for_each(|(v, b)| *b = bf16::from_f32(*v).to_ne_bytes()),
                DType::F16 => values.iter().zip(halves).for_each(|(v, b)| *b = f16::from_f32(*v).to_ne_bytes()),
                _ => bytes.copy_from_slice(bytemuck::cast_slice(values)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_to_nearest_even_and_come_back() {
        for (dtype, bytes, step) in [(DType::BF16, 2, 1.0 / 128.0), (DType::F16, 2, 1.0 / 1024.0), (DType::F32, 4, 0.0)]
        {
            let values = HostValues::Floats(vec![1.0, 1.0 + step, 1.0 + step / 2.0, -0.0, f32::INFINITY, f32::NAN]);
            let mut stored = vec![0; 6 * bytes];
            encode(&values, dtype, &mut stored);
            let mut back = HostValues::Floats(vec![9.0; 6]);
            decode(&stored, dtype, &mut back);
            let HostValues::Floats(back) = back else { unreachable!("made above") };
            assert_eq!(back[..2], [1.0, 1.0 + step], "{dtype:?}");
            assert_eq!(back[2], 1.0, "{dtype:?}: halfway goes to the even one");
            assert_eq!((back[3].to_bits(), back[4]), (0x8000_0000, f32::INFINITY), "{dtype:?}");
            assert!(back[5].is_nan(), "{dtype:?}");
        }
    }
}
