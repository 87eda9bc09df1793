//! Small results on their way to the host: read a run later, so that the card never waits for it.

use crate::device::Gpu;
use crate::error::Result;
use crate::pinned::Pinned;
use crate::transfer::Rows;
use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;
use graph::{ExecError, Ticket};

/// Bytes that an answer has room for before it needs more.
const USUAL: usize = 256;

/// A ring of page-locked places.
pub(crate) struct Answers {
    gpu: Gpu,
    ring: Vec<Answer>,
    next: u64,
}

struct Answer {
    host: Pinned,
    done: CudaEvent,
    bytes: usize,
    /// Who may take it; `None` where nobody waits.
    ticket: Option<u64>,
}

impl Answers {
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let place = |_| -> Result<Answer> {
            let done = gpu.context().new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))?;
            Ok(Answer { host: Pinned::new(gpu, USUAL)?, done, bytes: 0, ticket: None })
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
    pub unsafe fn start(&mut self, rows: Rows) -> Result<Ticket> {
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
        answer.ticket = Some(ticket);
        Ok(Ticket(ticket))
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// A ticket whose answer made room for others, or what the driver says of anything before.
    pub fn finish(&mut self, ticket: &Ticket) -> std::result::Result<&[u8], ExecError> {
        let answer = &mut self.ring[(ticket.0 % Ticket::KEPT) as usize];
        if answer.ticket.take() != Some(ticket.0) {
            return Err(ExecError::Ticket);
        }
        answer.done.synchronize().map_err(|e| crate::executor::device(e.into()))?;
        // SAFETY: the copy is done.
        Ok(&unsafe { answer.host.get() }[..answer.bytes])
    }
}
