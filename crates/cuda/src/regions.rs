//! The flat buffers that outlive steps, on the card.

use crate::device::{Buffer, Gpu};
use crate::engine::Engine;
use crate::error::Result;
use crate::kernels::Copy;
use crate::view::Format;
use graph::{ExecError, ParamId, Region, StateSpec};

/// Master weights, gradients, optimiser state, averages and running statistics in float32, all in the layout of one
/// [`graph::ParamLayout`]; and the weights as convolutions read them, where that is another format.
#[derive(Debug)]
pub(crate) struct Regions {
    spec: StateSpec,
    buffers: Vec<(Region, Buffer)>,
    /// Weights in half precision, element by element as the master weights.
    half: Option<Buffer>,
    format: Format,
}

/// Bytes of each float32 buffer.
pub(crate) fn region_bytes(spec: &StateSpec) -> Vec<(Region, u64)> {
    spec.regions().into_iter().map(|(region, len)| (region, 4 * len as u64)).collect()
}

/// Bytes of the weights in the format of convolution operands, where that is not float32.
pub(crate) fn operand_bytes(spec: &StateSpec, format: Format) -> u64 {
    match format {
        Format::F32 => 0,
        _ => (format.bytes() * spec.layout.weight_elements()) as u64,
    }
}

impl Regions {
    /// All zero. `format` is the one of convolution operands.
    ///
    /// # Errors
    /// No memory on the card.
    pub fn new(gpu: &Gpu, spec: StateSpec, format: Format) -> Result<Self> {
        let allocate = |(region, bytes): (Region, u64)| Ok((region, gpu.allocate(bytes as usize)?));
        let buffers = region_bytes(&spec).into_iter().map(allocate).collect::<Result<Vec<_>>>()?;
        let half = match format {
            Format::F32 => None,
            _ => Some(gpu.allocate(operand_bytes(&spec, format) as usize)?),
        };
        Ok(Self { spec, buffers, half, format })
    }

    pub fn spec(&self) -> &StateSpec {
        &self.spec
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, b)| b).chain(&self.half).map(|b| b.bytes() as u64).sum()
    }

    /// # Errors
    /// The card keeps no such region.
    pub fn get(&self, region: Region) -> std::result::Result<&Buffer, ExecError> {
        self.buffers.iter().find(|b| b.0 == region).map(|b| &b.1).ok_or(ExecError::NoRegion(region))
    }

    /// # Errors
    /// The card keeps no such region.
    pub fn get_mut(&mut self, region: Region) -> std::result::Result<&mut Buffer, ExecError> {
        self.buffers.iter_mut().find(|b| b.0 == region).map(|b| &mut b.1).ok_or(ExecError::NoRegion(region))
    }

    /// Address of a region; `None` where the card keeps none.
    pub fn address(&self, region: Region) -> Option<u64> {
        self.get(region).ok().map(Buffer::address)
    }

    /// Writes the weights anew in the format of operands, after the master weights were written.
    ///
    /// # Errors
    /// What the driver says.
    pub fn refresh_operands(&self, engine: &Engine) -> Result<()> {
        let (Some(half), Some(weights)) = (self.half(), self.address(Region::Weights)) else { return Ok(()) };
        let flat = |at, format| Copy::flat(at, format, self.spec.layout.weight_elements());
        let (from, to) = (flat(weights, Format::F32), flat(half, self.format));
        engine.gpu().context().bind_to_thread()?;
        // SAFETY: two flat buffers of so many elements.
        unsafe { engine.kernels().copy.run(from, to, false) }
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// Address of the weights in half precision; `None` where convolutions read the master weights.
    pub fn half(&self) -> Option<u64> {
        self.half.as_ref().map(Buffer::address)
    }

    /// Address of a convolution's weights in the format of operands.
    pub fn operand(&self, id: ParamId) -> u64 {
        let base = self.half().or(self.address(Region::Weights)).unwrap_or(0);
        base + (self.spec.layout.slot(id).offset * self.format.bytes()) as u64
    }

    /// Address of a parameter in one of the float32 regions; `None` where the card does not keep it.
    pub fn parameter(&self, region: Region, id: ParamId) -> Option<u64> {
        Some(self.address(region)? + 4 * self.spec.layout.slot(id).offset as u64)
    }
}
