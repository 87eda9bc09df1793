//! Small results on their way to the host: read a run later, so that the card never waits for it.
//!
//! [`graph::Answers`] keeps those that are there already; these are still being copied.

use crate::device::Gpu;
use crate::error::Result;
use crate::pinned::Pinned;
use crate::transfer::Rows;
use cudarc::driver::CudaEvent;
use graph::{ExecError, Ticket};

/// Bytes that an answer has room for before it needs more.
const USUAL: usize = 256;

/// A ring of page-locked places. `T` is what must be known of an answer to read it.
pub(crate) struct Answers<T> {
    gpu: Gpu,
    ring: Vec<Answer<T>>,
    next: u64,
}

struct Answer<T> {
    host: Pinned,
    done: CudaEvent,
    bytes: usize,
    /// Who may take it, and what it is; `None` where nobody waits.
    waiting: Option<(u64, T)>,
}

impl<T> Answers<T> {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let place = |_| -> Result<Answer<T>> {
            Ok(Answer { host: Pinned::new(gpu, USUAL)?, done: gpu.event()?, bytes: 0, waiting: None })
        };
        let ring = (0..Ticket::KEPT).map(place).collect::<Result<_>>()?;
        Ok(Self { gpu: gpu.clone(), ring, next: 0 })
    }

    /// Starts to copy rows, after everything that was launched.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Safety
    /// The rows are memory on the card.
    pub unsafe fn start(&mut self, rows: Rows, of: T) -> Result<Ticket> {
        let ticket = self.next;
        self.next += 1;
        let answer = &mut self.ring[(ticket % Ticket::KEPT) as usize];
        answer.done.synchronize()?;
        answer.bytes = rows.bytes();
        if answer.host.bytes() < answer.bytes {
            answer.host = Pinned::new(&self.gpu, answer.bytes)?;
        }
        // SAFETY: earlier copies to this place are done; nobody reads it before the event.
        unsafe { rows.start_download(&self.gpu, &mut answer.host.get_mut()[..answer.bytes]) }?;
        answer.done.record(self.gpu.stream())?;
        answer.waiting = Some((ticket, of));
        Ok(Ticket(ticket))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// A ticket whose answer made room for others, or what the driver says of anything before.
    pub fn finish(&mut self, ticket: &Ticket) -> std::result::Result<(&[u8], T), ExecError> {
        let answer = &mut self.ring[(ticket.0 % Ticket::KEPT) as usize];
        let Some((_, of)) = answer.waiting.take_if(|waiting| waiting.0 == ticket.0) else {
            return Err(ExecError::Ticket);
        };
        answer.done.synchronize().map_err(|e| crate::executor::device(e.into()))?;
        // SAFETY: the copy is done.
        Ok((&unsafe { answer.host.get() }[..answer.bytes], of))
    }
}
