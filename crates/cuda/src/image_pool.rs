//! Decoded pictures that stay on the card, and batches rendered from them.
//!
//! A picture goes over PCIe once and is found by its sample from then on. Where the pool is full, the pictures that were
//! used longest ago make room, never those of a batch that is under way.

mod shelf;
mod staging;

pub use shelf::{Claims, Resident};

use crate::arrival::Arrival;
use crate::device::{Buffer, Gpu};
use crate::error::{CudaError, Result};
use crate::kernels::{Render, RenderImage, RenderTable};
use crate::pinned::Pinned;
use cudarc::driver::{CudaEvent, CudaStream, result};
use shelf::Key;
use staging::Staging;
use std::sync::Arc;
use std::time::Duration;

/// A picture to be put on the card.
#[derive(Clone, Copy, Debug)]
pub struct NewPicture<'a> {
    /// The sample it is found by; `None` for one that serves a single batch.
    pub sample: Option<usize>,
    /// Width and height in pixels.
    pub wh: [u32; 2],
    /// RGB, 8 bit, row-major: `width * height * 3` bytes.
    pub pixels: &'a [u8],
}

/// What a pool renders.
#[derive(Clone, Copy, Debug)]
pub struct RenderBatch<'a> {
    /// Their tiles lie where the pool said since the batch was begun.
    pub images: &'a [RenderImage],
    /// Height and width that they are rendered at.
    pub hw: [usize; 2],
    /// Height and width of the output, to which rendered images are resized bilinearly.
    pub out_hw: [usize; 2],
}

impl RenderBatch<'_> {
    /// Bytes of the output: u8 of shape (images, height, width, 3).
    pub fn bytes(&self) -> usize {
        self.images.len().saturating_mul(image_bytes(self.out_hw))
    }
}

fn image_bytes([height, width]: [usize; 2]) -> usize {
    height.saturating_mul(width).saturating_mul(3)
}

/// Pictures on a card, up to a number of bytes.
///
/// A batch is begun, what it lacks is put in, and it is rendered:
/// [`begin`](Self::begin), [`find`](Self::find) and [`put`](Self::put), [`render`](Self::render).
pub struct ImagePool {
    gpu: Gpu,
    copies: Arc<CudaStream>,
    kernel: Render,
    memory: Buffer,
    claims: Claims,
    staging: Staging,
    /// Images that are resized before they are handed out.
    rendered: Option<Buffer>,
    batches: [Slot; 2],
    at: usize,
    waited: Duration,
}

/// A launch of the renderer: what, to which address, at which height and width.
type Pass<'a> = (&'a RenderTable, u64, [usize; 2]);

/// What a batch under way needs. Two are: the card renders one while the host fills the other.
struct Slot {
    /// Its number, once there was one.
    number: Option<u64>,
    tables: Option<(Pinned, Buffer)>,
    /// The card has the tables and all pictures.
    copied: CudaEvent,
    /// The card is done with them.
    rendered: CudaEvent,
    arrival: Arrival,
}

impl ImagePool {
    /// A pool without pictures that takes `budget` bytes of the card.
    ///
    /// # Errors
    /// No memory, a kernel that does not compile, or what the driver says.
    pub fn new(gpu: &Gpu, budget: u64) -> Result<Self> {
        let copies = gpu.context().new_stream()?;
        let bytes = usize::try_from(budget).unwrap_or(usize::MAX);
        let memory = gpu.allocate(bytes)?;
        // It is cleared on the other stream.
        gpu.synchronize()?;
        let slot = || -> Result<Slot> {
            let (copied, rendered, arrival) = (gpu.event()?, gpu.event()?, Arrival::new(gpu)?);
            Ok(Slot { number: None, tables: None, copied, rendered, arrival })
        };
        Ok(Self {
            kernel: Render::load(gpu)?,
            claims: Claims::new(memory.bytes() as u64),
            staging: Staging::new(gpu)?,
            rendered: None,
            batches: [slot()?, slot()?],
            gpu: gpu.clone(),
            copies,
            memory,
            at: 0,
            waited: Duration::ZERO,
        })
    }

    /// The card that it lies on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Bytes that pictures may take.
    pub fn budget(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// Time in which the card waited for pictures from the host and had nothing else to do: of all batches but the last two.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What other threads ask whether a picture is here.
    pub fn claims(&self) -> Claims {
        self.claims.clone()
    }

    /// Starts a batch. Numbers rise from batch to batch; gaps are batches that never came.
    ///
    /// Waits until the batch before the last one is rendered.
    ///
    /// # Errors
    /// What the driver says.
    pub fn begin(&mut self, number: u64) -> Result<()> {
        self.at ^= 1;
        let slot = &mut self.batches[self.at];
        slot.rendered.synchronize()?;
        self.waited += slot.arrival.take()?;
        slot.arrival.begin(&self.gpu)?;
        if let Some(done) = slot.number.replace(number) {
            self.claims.shelf().batch_is_done(done);
        }
        Ok(())
    }

    /// The picture of a sample, which stays until the batch that was begun is rendered.
    pub fn find(&self, sample: usize) -> Option<Resident> {
        let found = self.claims.shelf().find(Key::Sample(sample), self.number())?;
        Some(self.absolute(found))
    }

    /// Sends pictures to the card. They stay until the batch that was begun is rendered, and those of samples as long as
    /// there is room. Returns where they lie, once their pixels may be changed.
    ///
    /// # Errors
    /// [`CudaError::Pool`] where they do not fit beside those that are in use; a picture whose bytes are not those of
    /// its size; what the driver says. Pictures that could not be sent are not found afterwards.
    pub fn put(&mut self, pictures: &[NewPicture<'_>]) -> Result<Vec<Resident>> {
        let number = self.number();
        let mut places = Vec::with_capacity(pictures.len());
        let mut sent = Vec::with_capacity(pictures.len());
        let mut new = Vec::with_capacity(pictures.len());
        let outcome = pictures.iter().try_for_each(|picture| {
            let [w, h] = picture.wh.map(|side| side as usize);
            let bytes = w.checked_mul(h).and_then(|n| n.checked_mul(3));
            if bytes != Some(picture.pixels.len()) {
                let what = format!("{} bytes for a picture of {w}x{h}", picture.pixels.len());
                return Err(CudaError::Operands { kernel: "image pool", what });
            }
            let mut shelf = self.claims.shelf();
            let key = picture.sample.map_or_else(|| shelf.once(), Key::Sample);
            let place = match shelf.find(key, number) {
                Some(place) if place.wh == picture.wh => place,
                Some(_) => {
                    let what = format!("two pictures of sample {:?} in a batch", picture.sample);
                    return Err(CudaError::Operands { kernel: "image pool", what });
                }
                None => {
                    let budget = self.budget();
                    let place = shelf.place(key, picture.wh, number).ok_or(CudaError::Pool { budget })?;
                    new.push(key);
                    sent.push((picture.pixels, self.absolute(place).at));
                    place
                }
            };
            places.push(self.absolute(place));
            Ok(())
        });
        // SAFETY: the shelf gave each picture a place of its own inside of the pool's memory, and none that a batch under
        // way reads from.
        let outcome = outcome.and_then(|()| unsafe { self.staging.send(&self.copies, &sent) });
        if let Err(error) = outcome {
            let mut shelf = self.claims.shelf();
            new.into_iter().for_each(|key| shelf.forget(key));
            return Err(error);
        }
        Ok(places)
    }

    /// Renders the batch that was begun, in order with the card's stream. To be called once for a batch.
    ///
    /// # Errors
    /// An output that is too small; images that do not lie in this pool or do not fit; no memory; what the driver says.
    pub fn render(&mut self, batch: &RenderBatch<'_>, out: &mut Buffer) -> Result<()> {
        if batch.bytes() > out.bytes() {
            return Err(CudaError::Range { offset: 0, bytes: batch.bytes(), have: out.bytes() });
        }
        // SAFETY: checked above.
        unsafe { self.launch(batch, out.address()) }
    }

    /// [`Self::render`] to an address.
    ///
    /// # Errors
    /// As there, except for the output.
    ///
    /// # Safety
    /// `out` is device memory of [`RenderBatch::bytes`] bytes.
    pub(crate) unsafe fn launch(&mut self, batch: &RenderBatch<'_>, out: u64) -> Result<()> {
        let RenderBatch { images, hw, out_hw } = *batch;
        let memory = self.memory.address();
        let mut table = RenderTable::new(memory..memory + self.memory.bytes() as u64);
        images.iter().try_for_each(|image| table.push(image))?;
        if hw == out_hw {
            // SAFETY: the caller's promise.
            return unsafe { self.run(&[(&table, out, hw)]) };
        }
        let bytes = image_bytes(hw);
        let room = images.len().saturating_mul(bytes);
        if self.rendered.as_ref().is_none_or(|buffer| buffer.bytes() < room) {
            self.rendered = None;
            self.rendered = Some(self.gpu.allocate(room)?);
        }
        let at = self.rendered.as_ref().map_or(0, Buffer::address);
        let [wh, out_wh] = [hw, out_hw].map(|[h, w]| [w, h].map(|side| u32::try_from(side).unwrap_or(u32::MAX)));
        let mut resizing = RenderTable::new(at..at + room as u64);
        for i in 0..images.len() {
            resizing.push(&RenderImage::resized(at + (i * bytes) as u64, wh, out_wh))?;
        }
        // SAFETY: the buffer has room for the first pass, the output for the second.
        unsafe { self.run(&[(&table, at, hw), (&resizing, out, out_hw)]) }
    }

    /// Brings tables to the card and renders them, one after the other, to their addresses at their height and width.
    ///
    /// # Errors
    /// As [`Render::run`]; no memory for the tables.
    ///
    /// # Safety
    /// The addresses are device memory of these extents, and so is the memory that the tables were made for.
    unsafe fn run(&mut self, passes: &[Pass<'_>]) -> Result<()> {
        let (gpu, slot) = (&self.gpu, &mut self.batches[self.at]);
        let mut bytes = 0;
        let place = |pass: &Pass<'_>| {
            let start = bytes;
            bytes += pass.0.bytes().next_multiple_of(256);
            start
        };
        let starts: Vec<usize> = passes.iter().map(place).collect();
        if slot.tables.as_ref().is_none_or(|(host, _)| host.bytes() < bytes) {
            let room = bytes.next_multiple_of(1 << 20);
            slot.tables = Some((Pinned::new(gpu, room)?, gpu.allocate(room)?));
            // The new memory is cleared on the other stream.
            gpu.synchronize()?;
        }
        let Some((host, card)) = slot.tables.as_mut().filter(|_| bytes > 0) else { return Ok(()) };
        // SAFETY: the batch that used it last is rendered, which `begin` waited for.
        let host = unsafe { &mut host.get_mut()[..bytes] };
        for (pass, &start) in passes.iter().zip(&starts) {
            pass.0.write(&mut host[start..start + pass.0.bytes()])?;
        }
        gpu.context().bind_to_thread()?;
        // SAFETY: both hold so many bytes, and neither is touched before the launches below are done.
        unsafe { result::memcpy_htod_async(card.address(), host, self.copies.cu_stream()) }?;
        // All pictures went the same way before.
        slot.copied.record(&self.copies)?;
        gpu.stream().wait(&slot.copied)?;
        slot.arrival.end(gpu)?;
        let launched = passes.iter().zip(starts).try_for_each(|(&(table, out, hw), start)| {
            // SAFETY: the table is there, the pictures are there, and the rest is the caller's promise.
            unsafe { self.kernel.run(table, card.address() + start as u64, out, hw) }
        });
        // In any case: the copy of the tables is under way.
        slot.rendered.record(gpu.stream())?;
        launched
    }

    /// The batch that was begun.
    fn number(&self) -> u64 {
        self.batches[self.at].number.unwrap_or(0)
    }

    /// A place of the shelf as an address.
    fn absolute(&self, place: Resident) -> Resident {
        Resident { at: self.memory.address() + place.at, ..place }
    }
}

impl Drop for ImagePool {
    fn drop(&mut self) {
        // Memory is freed behind this. Nothing can be done about a failure.
        let _ = self.copies.synchronize();
        let _ = self.gpu.synchronize();
    }
}
