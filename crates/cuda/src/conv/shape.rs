//! A convolution's extents, and what is asked of the card.

use crate::Format;
use crate::error::{CudaError, Result};
use std::fmt;

/// A convolution's extents. Weights are (outputs, kernel, kernel, inputs / groups), packed.
///
/// Channels are physical ones, multiples of 8, except that grouped convolutions count their groups over logical
/// channels: those after `inputs` and `outputs`, up to the pitch, are then neither read nor written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    pub images: usize,
    pub height: usize,
    pub width: usize,
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
    pub pad: usize,
    pub groups: usize,
    /// Elements from one input pixel to the next; `inputs` where packed.
    pub input_pitch: usize,
    pub output_pitch: usize,
}

impl Shape {
    /// A square kernel padded by half of it, packed on both sides.
    pub fn packed(images: usize, side: usize, inputs: usize, outputs: usize, kernel: usize, stride: usize) -> Self {
        let (height, width, groups, pad) = (side, side, 1, kernel / 2);
        let (input_pitch, output_pitch) = (inputs, outputs);
        Self { images, height, width, inputs, outputs, kernel, stride, pad, groups, input_pitch, output_pitch }
    }

    fn out(&self, extent: usize) -> usize {
        match (extent + 2 * self.pad).checked_sub(self.kernel) {
            Some(room) if self.stride > 0 => room / self.stride + 1,
            _ => 0,
        }
    }

    pub fn out_height(&self) -> usize {
        self.out(self.height)
    }

    pub fn out_width(&self) -> usize {
        self.out(self.width)
    }

    /// Output pixels of all images.
    pub fn out_pixels(&self) -> usize {
        self.images * self.out_height() * self.out_width()
    }

    pub fn in_pixels(&self) -> usize {
        self.images * self.height * self.width
    }

    pub fn weights(&self) -> usize {
        self.outputs * self.kernel * self.kernel * (self.inputs / self.groups.max(1))
    }

    /// Floating-point operations of one pass: forward, data gradient and weight gradient do the same.
    pub fn flops(&self) -> f64 {
        2.0 * self.out_pixels() as f64 * self.weights() as f64
    }

    /// True where a pixel of the result depends on one pixel alone: a product of matrices.
    pub fn is_pointwise(&self) -> bool {
        (self.kernel, self.stride, self.pad) == (1, 1, 0)
    }

    /// True where every group's channels start and end at multiples of 8.
    pub fn groups_are_aligned(&self) -> bool {
        let groups = self.groups.max(1);
        (self.inputs / groups).is_multiple_of(8) && (self.outputs / groups).is_multiple_of(8)
    }

    /// Over a picture of bytes, 3 channels packed: `inputs` are then the 8 channels of the weights, of which the last 5
    /// are padding.
    #[must_use]
    pub fn over_bytes(self) -> Self {
        Self { inputs: 8, input_pitch: 3, ..self }
    }

    /// With packed tensors.
    pub(super) fn without_pitch(self) -> Self {
        Self { input_pitch: self.inputs, output_pitch: self.outputs, ..self }
    }

    fn check(&self) -> Result<()> {
        let Self { images, height, width, inputs, outputs, kernel, stride, groups, .. } = *self;
        let divided = groups > 0 && inputs % groups == 0 && outputs % groups == 0;
        let wide = self.input_pitch >= inputs && self.output_pitch >= outputs;
        let some = ![images, height, width, inputs, outputs, kernel, stride].contains(&0) && self.out_pixels() > 0;
        // What the libraries count in 32 bits.
        let most = i32::MAX as usize;
        let small = self.in_pixels().saturating_mul(self.input_pitch) <= most
            && self.out_pixels().saturating_mul(self.output_pitch) <= most
            && self.weights() <= most;
        if divided && wide && some && small { Ok(()) } else { Err(CudaError::Extents(format!("{self:?}"))) }
    }
}

/// Direction of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    Forward,
    Data,
    Weight,
}

impl Pass {
    pub const ALL: [Pass; 3] = [Self::Forward, Self::Data, Self::Weight];

    /// Name in tuning files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Data => "data",
            Self::Weight => "weight",
        }
    }
}

/// One pass over one shape, as a plan asks for it. Its text is its name in tuning files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    pub shape: Shape,
    pub pass: Pass,
    /// Of x, y and their gradients, and of the weights that are read. Gradients of weights are float32.
    pub format: Format,
    /// Of y where the forward pass writes it: `format`, or float32 for logits. The other passes ignore it.
    pub output: Format,
    /// Lets float32 operands be rounded to TF32. Ignored for the half formats.
    pub tf32: bool,
    /// Adds to what is there.
    pub add: bool,
    /// x is a picture of bytes, as [`Shape::over_bytes`] has it: each counts as value / 255, rounded as `format` is. Not
    /// for the data pass.
    pub bytes: bool,
}

impl Request {
    /// Everything in one format, float32 in full, overwriting.
    pub fn new(shape: Shape, pass: Pass, format: Format) -> Self {
        Self { shape, pass, format, output: format, tf32: false, add: false, bytes: false }
    }

    /// The same without what its pass and format ignore.
    pub(super) fn plain(self) -> Self {
        Self { tf32: self.rounds(), output: self.output_format(), ..self }
    }

    /// `output`, where the pass heeds it.
    pub(super) fn output_format(&self) -> Format {
        if self.pass == Pass::Forward { self.output } else { self.format }
    }

    /// Format of what the pass writes.
    pub fn result(&self) -> Format {
        match self.pass {
            Pass::Forward | Pass::Data => self.output_format(),
            Pass::Weight => Format::F32,
        }
    }

    /// True where TF32 is allowed and makes a difference.
    pub(super) fn rounds(&self) -> bool {
        self.tf32 && self.format == Format::F32
    }

    /// Bytes that the pass reads and writes at least.
    pub fn bytes(&self) -> u64 {
        let s = &self.shape;
        let (x, y, w) = (s.in_pixels() * s.inputs, s.out_pixels() * s.outputs, s.weights());
        let times = if self.add { 2 } else { 1 };
        let of = |elements: usize| (elements * self.format.bytes()) as u64;
        let to = |elements: usize| (elements * self.result().bytes() * times) as u64;
        let read = if self.bytes { (s.in_pixels() * s.input_pitch) as u64 } else { of(x) };
        match self.pass {
            Pass::Forward => read + of(w) + to(y),
            Pass::Data => of(y) + of(w) + to(x),
            Pass::Weight => read + of(y) + to(w),
        }
    }

    /// # Errors
    /// Extents that no convolution has, or that do not fit.
    pub(super) fn check(&self) -> Result<()> {
        if self.pass == Pass::Forward && ![self.format, Format::F32].contains(&self.output) {
            return Err(CudaError::Extents(format!("{} from {}", self.output.name(), self.format.name())));
        }
        if !self.bytes {
            return self.shape.check();
        }
        let s = &self.shape;
        let stem = (s.inputs, s.input_pitch, s.groups) == (8, 3, 1);
        if !stem || self.pass == Pass::Data || self.output_format() != self.format {
            return Err(CudaError::Extents(format!("a picture of bytes for {self:?}")));
        }
        // Counted as if it were as wide as the weights.
        Shape { input_pitch: s.inputs, ..*s }.check()
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.shape;
        write!(f, "{} {}", self.pass.name(), self.format.name())?;
        if self.rounds() {
            write!(f, " tf32")?;
        }
        if self.result() != self.format && self.pass == Pass::Forward {
            write!(f, " to {}", self.result().name())?;
        }
        write!(f, " {}x{}x{} ", s.images, s.height, s.width)?;
        match self.bytes {
            true => write!(f, "bytes")?,
            false => write!(f, "{}", s.inputs)?,
        }
        if s.input_pitch != s.inputs && !self.bytes {
            write!(f, "/{}", s.input_pitch)?;
        }
        write!(f, "->{}", s.outputs)?;
        if s.output_pitch != s.outputs {
            write!(f, "/{}", s.output_pitch)?;
        }
        write!(f, " k{} s{} p{}", s.kernel, s.stride, s.pad)?;
        if s.groups != 1 {
            write!(f, " g{}", s.groups)?;
        }
        if self.add { write!(f, " add") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_name_of_its_own() {
        let shape = Shape { input_pitch: 128, ..Shape::packed(64, 80, 64, 96, 3, 2) };
        let request = Request { add: true, ..Request::new(shape, Pass::Data, Format::Bf16) };
        assert_eq!(request.to_string(), "data bf16 64x80x80 64/128->96 k3 s2 p1 add");
        let logits = Request { output: Format::F32, ..Request::new(shape, Pass::Forward, Format::F16) };
        assert_eq!(logits.to_string(), "forward f16 to f32 64x80x80 64/128->96 k3 s2 p1");
        let single = Request { tf32: true, ..Request::new(shape, Pass::Weight, Format::F32) };
        assert_eq!(single.to_string(), "weight f32 tf32 64x80x80 64/128->96 k3 s2 p1");
        let stem = Shape::packed(64, 640, 8, 32, 3, 2).over_bytes();
        let stem = Request { bytes: true, ..Request::new(stem, Pass::Forward, Format::Bf16) };
        assert_eq!(stem.to_string(), "forward bf16 64x640x640 bytes->32 k3 s2 p1");
        assert_eq!(stem.bytes(), 64 * (640 * 640 * 3 + 320 * 320 * 32 * 2) + 32 * 9 * 8 * 2);
    }

    #[test]
    fn impossible_extents_are_refused() {
        let good = Shape::packed(1, 8, 16, 16, 3, 1);
        let refused = |shape| Request::new(shape, Pass::Forward, Format::Bf16).check().is_err();
        assert!(!refused(good));
        assert!(refused(Shape { kernel: 11, ..good }), "a kernel larger than the padded input");
        assert!(refused(Shape { stride: 0, ..good }));
        assert!(refused(Shape { groups: 3, ..good }));
        assert!(refused(Shape { input_pitch: 8, ..good }));
        assert!(refused(Shape { images: 1 << 40, ..good }));
        let output = Request { output: Format::F16, ..Request::new(good, Pass::Forward, Format::Bf16) };
        assert!(output.check().is_err());
        let picture = Request { bytes: true, ..Request::new(good.over_bytes(), Pass::Forward, Format::Bf16) };
        assert!(picture.check().is_ok());
        assert!(Request { pass: Pass::Data, ..picture }.check().is_err(), "a picture has no gradient");
        assert!(Request { shape: good, ..picture }.check().is_err(), "16 channels are no picture");
        assert!(Request { bytes: false, ..picture }.check().is_err(), "8 channels do not lie 3 apart");
    }
}
