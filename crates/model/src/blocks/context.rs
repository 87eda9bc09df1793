//! What blocks are read from and built with.

use super::Mode;
use crate::error::{ModelError, Result};
use crate::yaml::{Arg, Description, MAX_CHANNELS, MAX_REPEATS, Row};
use graph::ops::Activation;
use graph::{GraphBuilder, TensorId};
use std::ops::RangeInclusive;

/// A layer's output, as far as it is known without a picture.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Feature {
    pub channels: usize,
    /// Picture pixels per cell.
    pub stride: usize,
    /// Widths of the list entries that CBLinear cuts its output into.
    pub parts: Option<Vec<usize>>,
}

impl Feature {
    pub fn new(channels: usize, stride: usize) -> Self {
        Self { channels, stride, parts: None }
    }
}

/// A row being read, with its inputs.
pub(crate) struct RowContext<'a> {
    pub file: &'a str,
    pub index: usize,
    pub row: &'a Row,
    pub description: &'a Description,
    pub inputs: &'a [Feature],
}

impl RowContext<'_> {
    /// An error at this row.
    pub fn error(&self, message: impl Into<String>) -> ModelError {
        ModelError::Row {
            file: self.file.to_owned(),
            line: self.row.line,
            row: self.index,
            module: self.row.module.clone(),
            message: message.into(),
        }
    }

    /// The one plain input of a row.
    pub fn input(&self) -> Result<&Feature> {
        let [input] = self.inputs else {
            return Err(self.error(format!("takes one input, has {}", self.inputs.len())));
        };
        self.plain(input)
    }

    /// Refuses the list of a CBLinear.
    pub fn plain<'f>(&self, input: &'f Feature) -> Result<&'f Feature> {
        match input.parts {
            None => Ok(input),
            Some(_) => Err(self.error("its input is the list of a CBLinear, which only CBFuse reads")),
        }
    }

    /// Refuses more than `most` arguments.
    pub fn at_most(&self, most: usize) -> Result<()> {
        match self.row.args.len() {
            n if n > most => Err(self.error(format!("takes at most {most} arguments, has {n}"))),
            _ => Ok(()),
        }
    }

    /// Argument `i`; `None` where it is absent or written as None.
    pub fn arg(&self, i: usize) -> Option<&Arg> {
        self.row.args.get(i).filter(|a| !a.is_none())
    }

    /// An integer argument within a range; the text `nc` stands for the number of classes.
    pub fn number(&self, i: usize, what: &str, default: Option<usize>, range: RangeInclusive<usize>) -> Result<usize> {
        match (self.arg(i), default) {
            (None, Some(default)) => Ok(default),
            (None, None) => Err(self.error(format!("argument {i} ({what}) is missing"))),
            (Some(arg), _) => self.integer(arg, i, what, range),
        }
    }

    /// A list of integers within a range.
    pub fn list(&self, i: usize, what: &str, range: RangeInclusive<usize>) -> Result<Vec<usize>> {
        match self.arg(i) {
            Some(Arg::List(list)) if !list.is_empty() && list.len() <= 64 => {
                list.iter().map(|arg| self.integer(arg, i, what, range.clone())).collect()
            }
            Some(other) => {
                Err(self.error(format!("argument {i} ({what}) must be a list of 1 to 64 numbers, is {}", other.show())))
            }
            None => Err(self.error(format!("argument {i} ({what}) is missing"))),
        }
    }

    fn integer(&self, arg: &Arg, i: usize, what: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let value = match arg {
            Arg::Int(v) => usize::try_from(*v).ok(),
            Arg::Text(t) if t == "nc" => Some(self.description.nc),
            _ => None,
        };
        value.filter(|v| range.contains(v)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            self.error(format!("argument {i} ({what}) must be a whole number from {low} to {high}, is {}", arg.show()))
        })
    }

    /// The first argument of a conv-like row: output channels, scaled by the width multiple.
    pub fn scaled_channels(&self) -> Result<usize> {
        let channels = self.description.scaled(self.number(0, "output channels", None, 1..=MAX_CHANNELS)?);
        match channels {
            0 => Err(self.error("no output channel is left after scaling")),
            c if c > MAX_CHANNELS => Err(self.error(format!("{c} channels after scaling, at most {MAX_CHANNELS}"))),
            c => Ok(c),
        }
    }

    /// Channels inside of a block, which no multiple scales.
    pub fn hidden(&self, i: usize, what: &str) -> Result<usize> {
        self.number(i, what, None, 2..=MAX_CHANNELS)
    }

    /// An even number of [`Self::hidden`] channels, to be cut in halves.
    pub fn halved(&self, i: usize, what: &str) -> Result<usize> {
        match self.hidden(i, what)? {
            c if c % 2 == 0 => Ok(c),
            c => Err(self.error(format!("argument {i} ({what}) is {c}; it is cut in halves and must be even"))),
        }
    }

    /// Bottlenecks inside of a block.
    pub fn bottlenecks(&self, i: usize) -> Result<usize> {
        self.number(i, "bottlenecks", Some(1), 1..=MAX_REPEATS)
    }
}

/// A block being built.
pub(crate) struct BlockContext<'b> {
    pub builder: &'b mut GraphBuilder,
    pub mode: Mode,
    pub activation: Activation,
    /// True where the block's last convolution starts the recomputation of what follows.
    pub boundary: bool,
}

impl BlockContext<'_> {
    /// Marks the output of a block's last convolution.
    pub fn end(&mut self, y: TensorId) {
        if self.boundary && self.mode == Mode::Training {
            self.builder.mark_boundary(y);
        }
    }
}
