//! `CBFuse`: adds one entry of each list, resized, to the last input.

use super::{Block, BlockContext, Read, RowContext};
use crate::error::Result;
use graph::TensorId;

#[derive(Debug)]
struct CbFuse {
    /// Entry taken from each list.
    entries: Vec<usize>,
    /// First channel of each entry.
    starts: Vec<usize>,
    channels: usize,
}

/// `[[entry of each list]]`; every input but the last is a CBLinear.
pub(crate) fn read(row: &RowContext<'_>) -> Result<Read> {
    row.at_most(1)?;
    let entries = row.list(0, "entries", 0..=63)?;
    let Some((last, lists)) = row.inputs.split_last() else {
        return Err(row.error("has no input"));
    };
    if lists.len() != entries.len() {
        let (n, lists) = (entries.len(), lists.len());
        return Err(row.error(format!("picks {n} entries from {lists} lists")));
    }
    let last = row.plain(last)?;
    let mut starts = Vec::with_capacity(entries.len());
    for (i, (list, &entry)) in lists.iter().zip(&entries).enumerate() {
        let parts = list.parts.as_deref().ok_or_else(|| row.error(format!("input {i} is no CBLinear")))?;
        let width = *parts.get(entry).ok_or_else(|| {
            row.error(format!("takes entry {entry} of input {i}, whose list has {} entries", parts.len()))
        })?;
        if width != last.channels {
            let channels = last.channels;
            return Err(row.error(format!("adds entry {entry} of input {i}, {width} wide, to {channels} channels")));
        }
        starts.push(parts[..entry].iter().sum());
    }
    let output = last.clone();
    Ok(Read::Block(Box::new(CbFuse { entries, starts, channels: output.channels }), output))
}

impl Block for CbFuse {
    fn arguments(&self) -> String {
        format!("[{:?}]", self.entries)
    }

    fn build(&self, cx: &mut BlockContext<'_>, _name: &str, inputs: &[TensorId]) -> Result<TensorId> {
        let last = inputs[inputs.len() - 1];
        let to = cx.builder.shape(last);
        let mut terms = Vec::with_capacity(inputs.len());
        for (&list, &start) in inputs.iter().zip(&self.starts) {
            let entry = cx.builder.slice(list, start, self.channels)?;
            terms.push(cx.builder.resize(entry, to.h, to.w));
        }
        terms.push(last);
        Ok(cx.builder.add(&terms)?)
    }
}
