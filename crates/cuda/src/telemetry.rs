//! What a card is doing, sampled beside the work on it.
//!
//! A [`Monitor`] has a thread of its own that asks once a second and keeps what it hears until it is taken.

mod nvml;

pub use nvml::version;

use crate::error::{CudaError, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Time between two samples of a card.
pub const PERIOD: Duration = Duration::from_secs(1);
/// Samples that wait to be taken, an hour of them; beyond that the oldest go.
pub const CAPACITY: usize = 3600;

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Percent of the time in which a kernel ran.
    Utilisation,
    /// Bytes that are allocated on the card, by everyone.
    MemoryUsed,
    /// Bytes that the card has.
    MemoryTotal,
    /// Percent of the time in which memory was read or written.
    MemoryUtilisation,
    /// Watts of the whole board.
    Power,
    /// Degrees Celsius.
    Temperature,
    /// MHz of the multiprocessors.
    SmClock,
    /// MHz of the memory.
    MemoryClock,
    /// MB/s over PCIe from the host to the card, over the last 20 ms.
    Upload,
    /// MB/s over PCIe from the card to the host, over the last 20 ms.
    Download,
}

impl Quantity {
    pub const ALL: [Quantity; 10] = [
        Self::Utilisation,
        Self::MemoryUsed,
        Self::MemoryTotal,
        Self::MemoryUtilisation,
        Self::Power,
        Self::Temperature,
        Self::SmClock,
        Self::MemoryClock,
        Self::Upload,
        Self::Download,
    ];
}

/// One look at a card.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    values: [Option<f64>; Quantity::ALL.len()],
}

impl Reading {
    /// In the unit of the quantity; `None` where the card does not tell it.
    pub fn get(&self, quantity: Quantity) -> Option<f64> {
        self.values[quantity as usize]
    }

    /// The same with another value of one quantity.
    #[must_use]
    pub fn with(mut self, quantity: Quantity, value: impl Into<Option<f64>>) -> Self {
        self.values[quantity as usize] = value.into();
        self
    }
}

/// A reading and when it was finished.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub time: SystemTime,
    pub reading: Reading,
}

/// Mean, smallest and largest of what was told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub mean: f64,
    pub min: f64,
    pub max: f64,
}

/// Spreads of readings, one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Count and sum, smallest and largest.
    parts: [Option<(f64, Spread)>; Quantity::ALL.len()],
}

impl Summary {
    /// Counts a reading in; what it does not tell is left out.
    pub fn add(&mut self, reading: &Reading) {
        for (part, value) in self.parts.iter_mut().zip(reading.values) {
            let Some(value) = value else { continue };
            let (count, before) = part.unwrap_or((0.0, Spread { mean: value, min: value, max: value }));
            let count = count + 1.0;
            let mean = before.mean + (value - before.mean) / count;
            *part = Some((count, Spread { mean, min: before.min.min(value), max: before.max.max(value) }));
        }
    }

    /// `None` where no reading told the quantity.
    pub fn of(&self, quantity: Quantity) -> Option<Spread> {
        self.parts[quantity as usize].map(|part| part.1)
    }
}

/// Samples something on a thread of its own, from its making until it is dropped.
#[derive(Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    stopping: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    latest: Option<Sample>,
    waiting: VecDeque<Sample>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor {
    /// Watches a card once a second. It is named by its place on the PCI bus ([`crate::Gpu::pci_bus_id`]), because the
    /// numbers of cards are others where `CUDA_VISIBLE_DEVICES` is set.
    ///
    /// # Errors
    /// [`CudaError::Missing`] without NVML, [`CudaError::Nvml`] where it does not know the card, [`CudaError::Thread`].
    pub fn start(pci_bus_id: &str) -> Result<Self> {
        Self::sampling(PERIOD, nvml::reader(pci_bus_id)?)
    }

    /// Watches anything: calls `read` at once and then every `period`, one call after the other.
    ///
    /// # Errors
    /// [`CudaError::Thread`] where the system gives no thread.
    pub fn sampling(period: Duration, read: impl FnMut() -> Reading + Send + 'static) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("telemetry".to_owned());
        let thread = thread.spawn(move || sample(&of_thread, period, read)).map_err(CudaError::Thread)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The newest sample, taken or not; `None` before the first.
    pub fn latest(&self) -> Option<Sample> {
        self.shared.state().latest
    }

    /// The samples since the last call in order, at most [`CAPACITY`] of them.
    pub fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut self.shared.state().waiting).into()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.stopping.notify_all();
        if let Some(thread) = self.thread.take() {
            // A reader that panicked has ended its thread already; there is nothing to save.
            let _ = thread.join();
        }
    }
}

fn sample(shared: &Shared, period: Duration, mut read: impl FnMut() -> Reading) {
    loop {
        let start = Instant::now();
        // Without the lock: a card may take its time to answer.
        let sample = Sample { reading: read(), time: SystemTime::now() };
        let mut state = shared.state();
        state.latest = Some(sample);
        if state.waiting.len() >= CAPACITY {
            state.waiting.pop_front();
        }
        state.waiting.push_back(sample);
        let left = period.saturating_sub(start.elapsed());
        let waited = shared.stopping.wait_timeout_while(state, left, |state| !state.stop);
        if waited.unwrap_or_else(PoisonError::into_inner).0.stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Reads 1 W, 2 W, …, and counts the readers that are alive.
    struct Counting(f64, Arc<AtomicUsize>);

    impl Counting {
        fn new(alive: &Arc<AtomicUsize>) -> Self {
            alive.fetch_add(1, Ordering::SeqCst);
            Self(0.0, Arc::clone(alive))
        }

        fn read(&mut self) -> Reading {
            self.0 += 1.0;
            Reading::default().with(Quantity::Power, self.0)
        }
    }

    impl Drop for Counting {
        fn drop(&mut self) {
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn watts(samples: &[Sample]) -> Vec<f64> {
        samples.iter().filter_map(|sample| sample.reading.get(Quantity::Power)).collect()
    }

    fn until(mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(30), "nothing happened");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_a_card_does_not_tell_is_no_zero() {
        let mut summary = Summary::default();
        assert_eq!(summary.of(Quantity::Power), None);
        for (watts, celsius) in [(Some(100.0), None), (None, None), (Some(400.0), Some(60.0)), (Some(250.0), None)] {
            summary.add(&Reading::default().with(Quantity::Power, watts).with(Quantity::Temperature, celsius));
        }
        assert_eq!(summary.of(Quantity::Power), Some(Spread { mean: 250.0, min: 100.0, max: 400.0 }));
        assert_eq!(summary.of(Quantity::Temperature), Some(Spread { mean: 60.0, min: 60.0, max: 60.0 }));
        assert_eq!(summary.of(Quantity::Utilisation), None);
    }

    #[test]
    fn every_quantity_has_a_place_of_its_own() {
        let mut reading = Reading::default();
        for (i, quantity) in Quantity::ALL.into_iter().enumerate() {
            reading = reading.with(quantity, i as f64);
        }
        let back: Vec<Option<f64>> = Quantity::ALL.into_iter().map(|quantity| reading.get(quantity)).collect();
        assert_eq!(back, (0..10).map(|i| Some(f64::from(i))).collect::<Vec<_>>());
    }

    #[test]
    fn samples_come_once_each_and_in_order() {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut source = Counting::new(&alive);
        let monitor = Monitor::sampling(Duration::from_millis(1), move || source.read()).unwrap();
        let mut taken = Vec::new();
        until(|| {
            taken.extend(monitor.take());
            taken.len() >= 20
        });
        let expected: Vec<f64> = (1..=taken.len()).map(|i| i as f64).collect();
        assert_eq!(watts(&taken), expected);
        let newest = monitor.latest().unwrap();
        assert!(newest.reading.get(Quantity::Power) >= expected.last().copied(), "taking leaves the newest to be seen");
        assert!(taken.iter().all(|sample| sample.time <= SystemTime::now()));
    }

    #[test]
    fn a_monitor_that_is_dropped_ends_its_thread_at_once() {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut source = Counting::new(&alive);
        let monitor = Monitor::sampling(Duration::from_secs(3600), move || source.read()).unwrap();
        until(|| monitor.latest().is_some());
        let start = Instant::now();
        drop(monitor);
        assert!(start.elapsed() < Duration::from_secs(60), "it waited for the next sample");
        assert_eq!(alive.load(Ordering::SeqCst), 0, "the thread has let go of its source");
    }

    #[test]
    fn samples_that_nobody_takes_are_bounded() {
        let alive = Arc::new(AtomicUsize::new(0));
        let mut source = Counting::new(&alive);
        let monitor = Monitor::sampling(Duration::ZERO, move || source.read()).unwrap();
        until(|| {
            monitor.latest().and_then(|sample| sample.reading.get(Quantity::Power)) > Some(CAPACITY as f64 + 10.0)
        });
        let taken = watts(&monitor.take());
        assert_eq!(taken.len(), CAPACITY);
        assert!(taken[0] > 10.0 && taken.windows(2).all(|w| w[1] == w[0] + 1.0), "the newest are kept");
    }

    #[test]
    fn a_reader_that_panics_ends_the_samples_and_nothing_else() {
        let mut calls = 0;
        let monitor = Monitor::sampling(Duration::ZERO, move || {
            calls += 1;
            assert!(calls < 3, "on purpose");
            Reading::default()
        });
        let monitor = monitor.unwrap();
        until(|| monitor.thread.as_ref().is_some_and(JoinHandle::is_finished));
        assert_eq!(monitor.take().len(), 2);
        assert!(monitor.take().is_empty() && monitor.latest().is_some());
    }

    #[test]
    fn without_nvml_or_the_card_there_is_a_reason_and_no_monitor() {
        let refused = Monitor::start("ffff:ff:ff.0").unwrap_err();
        assert!(matches!(refused, CudaError::Missing { library: "NVML", .. } | CudaError::Nvml(_)), "{refused}");
    }
}
