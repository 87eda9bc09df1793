//! How fast an epoch goes, and what of its time is waiting for batches.
//!
//! What counts is the time in which the device has nothing to do: while it computes a batch, the loop may well wait for
//! the next one.

use std::time::{Duration, Instant};

/// The clock of an epoch's batches, from its making on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    start: Instant,
    waited: Duration,
    /// Waits for uploads before the epoch, and with it.
    uploads: [Duration; 2],
    images: usize,
    batches: usize,
}

/// What a [`Pace`] showed at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paced {
    pub elapsed: Duration,
    /// Part of it in which the device waited for the loader.
    pub waited: Duration,
    /// Part of it in which the device waited for batches that the loader had made, on their way to it.
    pub uploading: Duration,
    pub images: usize,
    pub batches: usize,
}

impl Pace {
    /// `upload_wait` is the device's count of waiting for uploads so far.
    pub fn new(upload_wait: Duration) -> Self {
        Self { start: Instant::now(), waited: Duration::ZERO, uploads: [upload_wait; 2], images: 0, batches: 0 }
    }

    /// Calls what waits for a batch while the device has nothing to do.
    pub fn wait<T>(&mut self, next: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let batch = next();
        self.waited += start.elapsed();
        batch
    }

    /// Counts a batch of so many images, with the device's count of waiting for uploads.
    pub fn add(&mut self, images: usize, upload_wait: Duration) {
        self.uploads[1] = upload_wait;
        self.images += images;
        self.batches += 1;
    }

    pub fn so_far(&self) -> Paced {
        let Self { start, waited, uploads: [before, now], images, batches } = *self;
        Paced { elapsed: start.elapsed(), waited, uploading: now.saturating_sub(before), images, batches }
    }
}

impl Paced {
    pub fn images_per_second(&self) -> f64 {
        self.images as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Share of the time that was waiting, for the loader or for uploads, 0..=1.
    pub fn data_wait(&self) -> f64 {
        let waited = self.waited + self.uploading;
        // Uploads may be counted late: those of the epoch before.
        (waited.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)).min(1.0)
    }

    /// What has been added since `earlier` of the same epoch.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            elapsed: self.elapsed.saturating_sub(earlier.elapsed),
            waited: self.waited.saturating_sub(earlier.waited),
            uploading: self.uploading.saturating_sub(earlier.uploading),
            images: self.images.saturating_sub(earlier.images),
            batches: self.batches.saturating_sub(earlier.batches),
        }
    }

    /// Both, one after the other.
    #[must_use]
    pub fn and(&self, later: &Self) -> Self {
        Self {
            elapsed: self.elapsed + later.elapsed,
            waited: self.waited + later.waited,
            uploading: self.uploading + later.uploading,
            images: self.images + later.images,
            batches: self.batches + later.batches,
        }
    }

    /// How long so many more batches will take.
    pub fn time_of(&self, batches: usize) -> Duration {
        self.elapsed.mul_f64(batches as f64 / self.batches.max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_are_those_of_the_time_gone_by() {
        let seconds = Duration::from_secs;
        let paced = Paced { elapsed: seconds(20), waited: seconds(3), uploading: seconds(2), images: 640, batches: 10 };
        assert_eq!((paced.images_per_second(), paced.data_wait(), paced.time_of(4)), (32.0, 0.25, seconds(8)));
        let later = paced.and(&Paced { elapsed: seconds(1), images: 64, batches: 1, ..Paced::default() });
        assert_eq!((later.elapsed, later.waited, later.batches), (seconds(21), seconds(3), 11));
        assert_eq!(later.since(&paced), Paced { elapsed: seconds(1), images: 64, batches: 1, ..Paced::default() });
        assert_eq!(Paced { uploading: seconds(50), ..paced }.data_wait(), 1.0);
        let nothing = Paced::default();
        assert_eq!((nothing.images_per_second(), nothing.data_wait(), nothing.time_of(4)), (0.0, 0.0, seconds(0)));
    }

    #[test]
    fn only_the_wait_for_a_batch_is_counted_as_waiting() {
        let upload = Duration::from_millis;
        let mut pace = Pace::new(upload(40));
        std::thread::sleep(Duration::from_millis(20));
        let batch = pace.wait(|| {
            std::thread::sleep(Duration::from_millis(30));
            7
        });
        pace.add(batch, upload(45));
        let paced = pace.so_far();
        assert_eq!((paced.images, paced.batches), (7, 1));
        assert!(paced.waited >= Duration::from_millis(30));
        assert_eq!(paced.uploading, upload(5), "of this epoch");
        assert!(paced.elapsed >= paced.waited + Duration::from_millis(20));
    }
}
