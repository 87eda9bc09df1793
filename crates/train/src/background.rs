//! Work that a thread of its own does while the run goes on: one job at a time, in order.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// A thread that does jobs. Dropping it waits for the job under way.
pub(crate) struct Background<J, R> {
    /// `None` only while it is dropped.
    jobs: Option<Sender<J>>,
    results: Receiver<R>,
    thread: Option<JoinHandle<()>>,
    busy: bool,
}

/// The thread panicked in its job; the panic itself was told where it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Died;

impl<J: Send + 'static, R: Send + 'static> Background<J, R> {
    /// Starts the thread, which waits for jobs.
    ///
    /// # Errors
    /// The system's, where it has no thread left.
    pub fn start(name: &str, mut work: impl FnMut(J) -> R + Send + 'static) -> std::io::Result<Self> {
        let (jobs, to_do) = channel();
        let (done, results) = channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Ends with the last job once the other side is dropped.
            for job in to_do {
                if done.send(work(job)).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { jobs: Some(jobs), results, thread: Some(thread), busy: false })
    }

    /// Hands a job over, after the one before it is done, whose result is returned.
    ///
    /// # Errors
    /// [`Died`]; the job is not done then.
    pub fn hand_over(&mut self, job: J) -> Result<Option<R>, Died> {
        let before = self.wait()?;
        self.jobs.as_ref().ok_or(Died)?.send(job).map_err(|_| Died)?;
        self.busy = true;
        Ok(before)
    }

    /// Waits for the job under way. `None` without one.
    ///
    /// # Errors
    /// [`Died`], once.
    pub fn wait(&mut self) -> Result<Option<R>, Died> {
        if !std::mem::take(&mut self.busy) {
            return Ok(None);
        }
        self.results.recv().map(Some).map_err(|_| Died)
    }

    /// The result of a job that is done by now; does not wait.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn poll(&mut self) -> Result<Option<R>, Died> {
        if !self.busy {
            return Ok(None);
        }
        let result = match self.results.try_recv() {
            Err(TryRecvError::Empty) => return Ok(None),
            Ok(result) => Ok(Some(result)),
            Err(TryRecvError::Disconnected) => Err(Died),
        };
        self.busy = false;
        result
    }
}

impl<J, R> Drop for Background<J, R> {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic was told when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    #[test]
    fn a_job_runs_beside_its_owner_and_the_next_one_waits_for_it() {
        let (open, gate) = sync_channel::<()>(0);
        let (entered, enters) = channel();
        let mut background = Background::start("test", move |job: u32| {
            entered.send(job).unwrap();
            gate.recv().unwrap();
            job * 10
        })
        .unwrap();
        assert_eq!((background.wait(), background.poll()), (Ok(None), Ok(None)), "nothing is under way");
        assert_eq!(background.hand_over(1), Ok(None));
        assert_eq!(enters.recv(), Ok(1));
        // The job stands at its gate, and its owner is here.
        assert_eq!(background.poll(), Ok(None));
        let opener = std::thread::spawn(move || {
            // Nothing else has begun for as long as the gate is shut.
            assert!(enters.recv_timeout(Duration::from_millis(50)).is_err());
            open.send(()).unwrap();
            assert_eq!(enters.recv(), Ok(2));
            open.send(()).unwrap();
        });
        assert_eq!(background.hand_over(2), Ok(Some(10)));
        assert_eq!(background.wait(), Ok(Some(20)));
        assert_eq!(background.wait(), Ok(None), "a result is given once");
        opener.join().unwrap();
    }

    #[test]
    fn dropping_it_waits_for_the_job_under_way() {
        let done = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&done);
        let mut background = Background::start("test", move |job: u32| {
            std::thread::sleep(Duration::from_millis(50));
            note.lock().unwrap().push(job);
        })
        .unwrap();
        background.hand_over(7).unwrap();
        drop(background);
        assert_eq!(*done.lock().unwrap(), [7]);
    }

    #[test]
    fn a_thread_that_panics_is_an_error_and_no_wait_without_end() {
        let mut background = Background::start("test", |job: u32| assert!(job > 0)).unwrap();
        background.hand_over(1).unwrap();
        assert_eq!(background.hand_over(0), Ok(Some(())));
        assert_eq!(background.wait(), Err(Died));
        assert_eq!(background.wait(), Ok(None));
        assert_eq!(background.hand_over(1), Err(Died));
    }
}
