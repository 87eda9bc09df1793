//! The channel map: where a tensor's logical channels lie in memory.
//!
//! Channels come in segments. Each starts at a multiple of [`CHANNEL_ALIGN`]; what lies between the
//! end of one and the start of the next is padding, and padding is zero in activations, weights,
//! statistics and gradients. Names, norms, counts and files know logical channels only.
//!
//! Cuts between segments come from ranges: a tensor that is split at channel 90, or that is the
//! second part of a concatenation, needs its part to start aligned. Element-wise ops hand cuts on
//! from one operand to the others, so that all of them have one layout.

use crate::graph::{Graph, TensorId};
use crate::{GraphError, Kind};
use std::collections::BTreeSet;

/// Every segment starts at a multiple of this many channels.
pub const CHANNEL_ALIGN: usize = 8;

/// A run of channels that is contiguous both logically and in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First logical channel.
    pub logical: usize,
    /// First physical channel.
    pub physical: usize,
    /// Number of channels.
    pub len: usize,
}

/// Logical to physical channels of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ChannelMap {
    segments: Vec<Segment>,
    physical: usize,
}

impl ChannelMap {
    /// One segment, padded at its end.
    pub fn dense(channels: usize) -> Self {
        Self::with_cuts(channels, &BTreeSet::new(), aligned)
    }

    /// One segment without padding, for raw inputs.
    pub fn packed(channels: usize) -> Self {
        Self { segments: vec![Segment { logical: 0, physical: 0, len: channels }], physical: channels }
    }

    /// Segments between the given cuts (logical channels; those outside of `1..channels` are ignored), each of which
    /// takes `padded(its length)` channels, a multiple of [`CHANNEL_ALIGN`].
    pub fn with_cuts(channels: usize, cuts: &BTreeSet<usize>, padded: impl Fn(usize) -> usize) -> Self {
        let mut segments = Vec::new();
        let (mut logical, mut physical) = (0, 0);
        let inner = cuts.iter().copied().filter(|&c| c > 0 && c < channels);
        for end in inner.chain([channels]) {
            segments.push(Segment { logical, physical, len: end - logical });
            physical += padded(end - logical);
            logical = end;
        }
        Self { segments, physical }
    }

    /// Number of logical channels.
    pub fn logical(&self) -> usize {
        self.segments.last().map_or(0, |s| s.logical + s.len)
    }

    /// Number of physical channels, padding included.
    pub fn physical(&self) -> usize {
        self.physical
    }

    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// True where no channel is padding.
    pub fn is_dense(&self) -> bool {
        self.logical() == self.physical
    }

    /// Physical channel of a logical one.
    pub fn index(&self, logical: usize) -> usize {
        let segment = self.segments.iter().rev().find(|s| s.logical <= logical).expect("a map has a first segment");
        segment.physical + logical - segment.logical
    }

    /// The map of channels `start..start + len`, which must begin and end at cuts of this map.
    pub(crate) fn sub_range(&self, start: usize, len: usize) -> Self {
        let base = self.index(start);
        let end = start + len;
        let after = self.segments.iter().find(|s| s.logical >= end).map_or(self.physical, |s| s.physical);
        let segments: Vec<_> = self
            .segments
            .iter()
            .filter(|s| s.logical >= start && s.logical < end)
            .map(|s| Segment { logical: s.logical - start, physical: s.physical - base, len: s.len })
            .collect();
        Self { segments, physical: after - base }
    }
}

/// `channels` rounded up to a multiple of [`CHANNEL_ALIGN`].
pub(crate) fn aligned(channels: usize) -> usize {
    channels.next_multiple_of(CHANNEL_ALIGN)
}

/// Chooses the channel map of every tensor of a graph whose ranges are placed.
pub(crate) fn infer(graph: &mut Graph, padded: impl Fn(usize) -> usize) -> Result<(), GraphError> {
    let mut cuts: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); graph.tensors.len()];
    for id in graph.tensor_ids() {
        let (root, start) = graph.root(id);
        if root != id {
            cuts[root.index()].extend([start, start + graph.tensor(id).shape.c]);
        }
    }
    let groups: Vec<Vec<TensorId>> = graph.nodes.iter().flat_map(|n| n.op.same_channels()).collect();
    loop {
        let mut changed = false;
        for group in &groups {
            let mut relative = BTreeSet::new();
            for &id in group {
                let (root, start) = graph.root(id);
                let end = start + graph.tensor(id).shape.c;
                relative.extend(cuts[root.index()].range(start..=end).map(|c| c - start));
            }
            for &id in group {
                let (root, start) = graph.root(id);
                for &cut in &relative {
                    changed |= cuts[root.index()].insert(cut + start);
                }
            }
        }
        if !changed {
            break;
        }
    }
    let maps: Vec<ChannelMap> = graph
        .tensor_ids()
        .map(|id| {
            let (root, start) = graph.root(id);
            let base = graph.tensor(root);
            let map = match base.kind {
                Kind::Raw(_) => ChannelMap::packed(base.shape.c),
                _ => ChannelMap::with_cuts(base.shape.c, &cuts[root.index()], &padded),
            };
            if root == id { map } else { map.sub_range(start, graph.tensor(id).shape.c) }
        })
        .collect();
    for (tensor, map) in graph.tensors.iter_mut().zip(maps) {
        tensor.map = map;
    }
    for node in &graph.nodes {
        for id in node.op.unsegmented() {
            let segments = graph.tensor(id).map.segments().len();
            if segments > 1 {
                return Err(GraphError::Segmented { op: node.op.name(), scope: node.scope.clone(), segments });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_align_every_segment() {
        let map = ChannelMap::with_cuts(180, &BTreeSet::from([0, 90, 180]), aligned);
        assert_eq!(map.segments().len(), 2);
        assert_eq!((map.index(89), map.index(90), map.physical()), (89, 96, 192));
        let half = map.sub_range(90, 90);
        assert_eq!((half.logical(), half.physical(), half.index(0)), (90, 96, 0));
    }

    #[test]
    fn multiples_of_eight_need_no_padding() {
        let map = ChannelMap::with_cuts(64, &BTreeSet::from([32]), aligned);
        assert!(map.is_dense());
        assert_eq!(map.index(40), 40);
    }

    #[test]
    fn a_range_has_the_padding_of_its_segments() {
        let map = ChannelMap::with_cuts(270, &BTreeSet::from([90]), |c| c.next_multiple_of(64));
        assert_eq!((map.index(90), map.physical()), (128, 320));
        assert_eq!((map.sub_range(0, 90).physical(), map.sub_range(90, 180).physical()), (128, 192));
    }
}
