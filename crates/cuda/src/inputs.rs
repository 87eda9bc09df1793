//! Batches on their way to the card while it computes the batch before.
//!
//! A batch is written to page-locked memory, goes to the card on a stream of its own, and is copied from there into the
//! arena once the run before it is done: 79 MB (64 pictures of 640 x 640) take 1.6 ms over PCIe, which nobody waits for,
//! and 40 us inside of the card.

use crate::arrival::Arrival;
use crate::device::{Buffer, Gpu};
use crate::error::Result;
use crate::pinned::Pinned;
use cudarc::driver::{CudaEvent, CudaStream, result};
use graph::{Kind, Plan, TensorId};
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// Copies of this size are shared between threads.
const PART: usize = 4 << 20;

/// Places for a batch: one that is used, and one that is filled.
pub(crate) const SLOTS: usize = 2;

/// Inputs of a plan with their offsets in a batch, and the bytes of a batch.
pub(crate) fn places(plan: &Plan) -> (Vec<(TensorId, usize)>, usize) {
    let mut end = 0;
    let place = |&id: &TensorId| {
        let Kind::Raw(dtype) = plan.graph().tensor(id).kind else { return None };
        let at = end;
        end += (plan.shape(id).elements() * dtype.bytes()).next_multiple_of(256);
        Some((id, at))
    };
    (plan.graph().inputs().iter().filter_map(place).collect(), end)
}

/// The places of one executor.
pub(crate) struct Inputs {
    gpu: Gpu,
    copies: Arc<CudaStream>,
    slots: Option<[Slot; SLOTS]>,
    at: usize,
    waited: Duration,
}

struct Slot {
    host: Pinned,
    card: Buffer,
    /// The card has read the host's part.
    copied: CudaEvent,
    /// The arena has what was in the card's part.
    taken: CudaEvent,
    /// Of the first part.
    arrival: Arrival,
    /// Offsets that were written since the last run.
    written: Vec<usize>,
}

impl Inputs {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { gpu: gpu.clone(), copies: gpu.context().new_stream()?, slots: None, at: 0, waited: Duration::ZERO })
    }

    /// Bytes on the card.
    pub fn card_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|s| s.card.bytes() as u64).sum()
    }

    /// Time in which the card waited for the first part of batches, where they have pixels those, and had nothing else to
    /// do: of all batches but the last two.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Makes room for batches of so many bytes.
    ///
    /// # Errors
    /// No memory, or what the driver says.
    pub fn reserve(&mut self, bytes: usize) -> Result<()> {
        if self.slots.as_ref().is_some_and(|[slot, _]| bytes <= slot.card.bytes()) {
            return Ok(());
        }
        self.copies.synchronize()?;
        self.gpu.synchronize()?;
        self.slots = None;
        let slot = || -> Result<Slot> {
            let (host, card) = (Pinned::new(&self.gpu, bytes)?, self.gpu.allocate(bytes)?);
            let (copied, taken) = (self.gpu.event()?, self.gpu.event()?);
            let arrival = Arrival::new(&self.gpu)?;
            Ok(Slot { host, card, copied, taken, arrival, written: Vec::with_capacity(8) })
        };
        self.slots = Some([slot()?, slot()?]);
        Ok(())
    }

    /// Sends values to `to`, before everything that is launched from now on. Returns when `values` may be changed.
    ///
    /// # Errors
    /// What the driver says, also of earlier launches.
    ///
    /// # Safety
    /// `to` is memory on the card for so many bytes; room for `offset` and all of them was reserved.
    pub unsafe fn send(&mut self, offset: usize, values: &[u8], to: u64) -> Result<()> {
        let Some(slots) = &mut self.slots else { return Ok(()) };
        let slot = &mut slots[self.at];
        let main = self.gpu.stream();
        if slot.written.is_empty() || slot.written.contains(&offset) {
            // Both have long happened unless the host is two runs ahead, or writes an input twice.
            slot.copied.synchronize()?;
            self.copies.wait(&slot.taken)?;
        }
        let first = slot.written.is_empty();
        if first {
            self.waited += slot.arrival.take()?;
            slot.arrival.begin(&self.gpu)?;
        }
        slot.written.push(offset);
        // SAFETY: other copies of this batch read other parts, earlier ones are done.
        let target = unsafe { &mut slot.host.get_mut()[offset..offset + values.len()] };
        match values.len() {
            0..PART => target.copy_from_slice(values),
            _ => target.par_chunks_mut(PART).zip(values.par_chunks(PART)).for_each(|(t, v)| t.copy_from_slice(v)),
        }
        let card = slot.card.address() + offset as u64;
        self.gpu.context().bind_to_thread()?;
        // SAFETY: the parts lie in buffers of the slot; the events order them against their next use.
        unsafe { result::memcpy_htod_async(card, target, self.copies.cu_stream()) }?;
        slot.copied.record(&self.copies)?;
        main.wait(&slot.copied)?;
        if first {
            slot.arrival.end(&self.gpu)?;
        }
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_dtod_async(to, card, values.len(), main.cu_stream()) }?;
        Ok(slot.taken.record(main)?)
    }

    /// The next batch goes to the other place: to be called when a run was launched.
    pub fn advance(&mut self) {
        if let Some(slots) = &mut self.slots
            && !slots[self.at].written.is_empty()
        {
            self.at ^= 1;
            slots[self.at].written.clear();
        }
    }
}
