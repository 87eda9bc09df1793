//! Batches on their way to the card while it computes the batch before.
//!
//! A batch is written to page-locked memory, goes to the card on a stream of its own, and is copied from there into the
//! arena once the run before it is done: 79 MB (64 pictures of 640 x 640) take 1.6 ms over PCIe, which nobody waits for,
//! and 40 us inside of the card.

use crate::device::{Buffer, Gpu};
use crate::error::Result;
use crate::pinned::Pinned;
use cudarc::driver::{CudaEvent, CudaStream, result};
use rayon::prelude::*;
use std::sync::Arc;

/// Copies of this size are shared between threads.
const PART: usize = 4 << 20;

/// Two places for a batch: one that is used, and one that is filled.
pub(crate) struct Inputs {
    gpu: Gpu,
    copies: Arc<CudaStream>,
    slots: Option<[Slot; 2]>,
    at: usize,
}

struct Slot {
    host: Pinned,
    card: Buffer,
    /// The card has read the host's part.
    copied: CudaEvent,
    /// The arena has what was in the card's part.
    taken: CudaEvent,
    /// Offsets that were written since the last run.
    written: Vec<usize>,
}

impl Inputs {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        Ok(Self { gpu: gpu.clone(), copies: gpu.context().new_stream()?, slots: None, at: 0 })
    }

    /// Bytes on the card.
    pub fn card_bytes(&self) -> u64 {
        self.slots.iter().flatten().map(|s| s.card.bytes() as u64).sum()
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
            Ok(Slot { host, card, copied, taken, written: Vec::with_capacity(8) })
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
