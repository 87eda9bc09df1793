//! Where the time of a loader's threads goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time of all threads together, by what it went into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// Reading image files, and reading and writing the cache on disk.
    pub disk: Duration,
    /// Decoding image files, and resizing what they hold.
    pub decode: Duration,
    /// Drawing recipes and rendering them, or drawing validation pictures, and putting batches together.
    pub render: Duration,
}

impl LoadTimes {
    /// What has been added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            disk: self.disk.saturating_sub(earlier.disk),
            decode: self.decode.saturating_sub(earlier.decode),
            render: self.render.saturating_sub(earlier.render),
        }
    }
}

/// Counts the times of threads.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    disk: Clock,
    decode: Clock,
    work: Clock,
}

impl Clocks {
    pub fn disk<T>(&self, work: impl FnOnce() -> T) -> T {
        self.disk.time(work)
    }

    pub fn decode<T>(&self, work: impl FnOnce() -> T) -> T {
        self.decode.time(work)
    }

    /// All the work of a thread, the other two among it.
    pub fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        self.work.time(work)
    }

    pub fn times(&self) -> LoadTimes {
        // The whole first: what is added meanwhile to the parts makes the rest too short, by less than a picture's time.
        let work = self.work.read();
        let (disk, decode) = (self.disk.read(), self.decode.read());
        LoadTimes { disk, decode, render: work.saturating_sub(disk + decode) }
    }
}

/// Nanoseconds.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl Clock {
    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanoseconds, Ordering::Relaxed);
        result
    }

    fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(milliseconds: u64) {
        std::thread::sleep(Duration::from_millis(milliseconds));
    }

    #[test]
    fn what_is_neither_reading_nor_decoding_is_rendering() {
        let clocks = Clocks::default();
        clocks.work(|| {
            clocks.disk(|| pause(10));
            clocks.decode(|| pause(20));
            pause(30);
        });
        let times = clocks.times();
        assert!(times.disk >= Duration::from_millis(10) && times.decode >= Duration::from_millis(20), "{times:?}");
        assert!(times.render >= Duration::from_millis(30), "{times:?}");
        assert_eq!(times.disk + times.decode + times.render, clocks.work.read());
        assert_eq!(clocks.times().since(&times), LoadTimes::default());
    }

    #[test]
    fn reading_outside_of_a_loader_makes_no_time_negative() {
        let clocks = Clocks::default();
        clocks.disk(|| pause(1));
        let times = clocks.times();
        assert_eq!(times.render, Duration::ZERO);
        assert_eq!(LoadTimes::default().since(&times), LoadTimes::default());
    }
}
