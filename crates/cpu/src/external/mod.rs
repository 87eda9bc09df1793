//! Bodies of the ops that other crates declare: one file each, one row in `Registry::standard`.

mod decode;
mod detection_loss;
mod suppress;

pub use detection_loss::assigned_loss;

use crate::Element;
use crate::dispatch::Memory;
use detect::MapRef;
use graph::ops::External;
use graph::{ExecError, Shape, TensorId};
use std::sync::Arc;

/// Runs one external op.
pub type Body<T> = Arc<dyn Fn(&External, &mut ExternalIo<'_, '_, T>) + Send + Sync>;

/// Bodies by name.
pub(crate) struct Registry<T> {
    rows: Vec<(&'static str, Body<T>)>,
}

impl<T: Element + detect::Real> Registry<T> {
    pub fn standard() -> Self {
        use detect::external::{Decode, DetectionLoss, Suppress};
        let rows: Vec<(&'static str, Body<T>)> = vec![
            (DetectionLoss::NAME, Arc::new(detection_loss::run)),
            (Decode::NAME, Arc::new(decode::run)),
            (Suppress::NAME, Arc::new(suppress::run)),
        ];
        Self { rows }
    }
}

impl<T> Registry<T> {
    /// The latest body of a name counts.
    pub fn add(&mut self, name: &'static str, body: Body<T>) {
        self.rows.insert(0, (name, body));
    }

    pub fn get(&self, name: &'static str) -> Result<&Body<T>, ExecError> {
        self.rows.iter().find(|r| r.0 == name).map(|r| &r.1).ok_or(ExecError::UnknownOp(name))
    }
}

/// An external op's operands as slices. Elements of a tensor run to its last pixel's last channel.
pub struct ExternalIo<'a, 'p, T> {
    pub(crate) memory: &'a mut Memory<'p, T>,
    /// Index of the op.
    pub(crate) at: usize,
}

impl<'a, T: Element> ExternalIo<'a, '_, T> {
    /// Elements of a tensor of the statistics or activation type, from its first to its last.
    pub fn elements(&self, id: TensorId) -> &'a [T] {
        // SAFETY: the tensor lies in the arena, no op writes it while this one runs, and the arena outlives 'a.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(id), self.memory.extent(id)) }
    }

    /// The same to write.
    pub fn elements_mut(&mut self, id: TensorId) -> &'a mut [T] {
        // SAFETY: as above; an op's outputs overlap no other operand, and each is asked for once.
        unsafe { std::slice::from_raw_parts_mut(self.memory.pointer(id), self.memory.extent(id)) }
    }

    /// A tensor as the loss sees a head map.
    pub fn map(&self, id: TensorId) -> MapRef<'a, T> {
        let shape = self.memory.plan.shape(id);
        MapRef { data: self.elements(id), pitch: self.pitch(id).0, h: shape.h, w: shape.w }
    }

    /// Elements of a raw input.
    pub fn raw<V>(&self, id: TensorId) -> &'a [V] {
        let shape = self.memory.plan.shape(id);
        // SAFETY: raw tensors are dense, hold `elements` values of the type they are declared with, and lie in the arena.
        unsafe { std::slice::from_raw_parts(self.memory.pointer(id).cast(), shape.elements()) }
    }

    /// Logical shape of a tensor.
    pub fn shape(&self, id: TensorId) -> Shape {
        self.memory.plan.shape(id)
    }

    /// Elements between neighbouring pixels, and physical channels.
    pub fn pitch(&self, id: TensorId) -> (usize, usize) {
        let place = self.memory.plan.placement(id);
        (place.pitch, place.channels)
    }

    /// The op's scratch: `statistics` elements, then `words`.
    pub fn scratch(&mut self, statistics: usize, words: usize) -> (&'a mut [T], &'a mut [u32]) {
        let (offset, bytes) = self.memory.plan.workspace(self.at);
        debug_assert!(statistics * size_of::<T>() + words * 4 <= bytes as usize);
        // SAFETY: the workspace is this op's alone, holds both parts, and is aligned beyond any element.
        unsafe {
            let base = self.memory.base.add(offset as usize);
            let first = std::slice::from_raw_parts_mut(base.cast::<T>(), statistics);
            let second = base.add(statistics * size_of::<T>()).cast::<u32>();
            (first, std::slice::from_raw_parts_mut(second, words))
        }
    }
}
