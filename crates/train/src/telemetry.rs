//! What a run on a card leaves behind about the card: further columns of `results.csv`, and `telemetry.csv`.
//!
//! On the CPU there is none of it, so that its `results.csv` depends on nothing but the run's seed.

mod columns;

use crate::Observer;
use crate::device::Device;
use crate::trainer::Paced;
use cuda::telemetry::{Monitor, Reading, Summary};
use report::samples_csv::SamplesCsv;
use std::path::Path;
use std::time::{Duration, Instant};

/// Samples are written after a step where the last ones are older than this.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// Share of a card's peak that the convolutions of training make use of (model FLOPs utilisation): `flops_per_image` of
/// forward and backward pass, without what is computed twice to spare memory; `peak` in FLOP/s, above zero.
pub(crate) fn model_flops_utilisation(flops_per_image: f64, images_per_second: f64, peak: f64) -> f64 {
    flops_per_image * images_per_second / peak
}

/// Telemetry of a run; nothing of the kind on the CPU.
#[derive(Debug)]
pub(crate) struct RunTelemetry(Option<OnCard>);

#[derive(Debug)]
struct OnCard {
    monitor: Option<Monitor>,
    /// FLOP/s of the card, where known.
    peak: Option<f64>,
    /// `None` where it cannot be written.
    table: Option<SamplesCsv>,
    written: Instant,
    /// The epoch under way, or the last one.
    epoch: usize,
    /// Whether its batches are under way.
    training: bool,
    /// Of the epoch's batches so far.
    summary: Summary,
    flops: u64,
    results: Vec<f64>,
}

impl RunTelemetry {
    /// Starts to watch the device of a run. `continued` runs go on with the files in their folder.
    pub fn start(device: &Device, folder: &Path, continued: bool, observer: &mut dyn Observer) -> Self {
        if device.is_cpu() {
            return Self(None);
        }
        let monitor = device.monitor(observer);
        Self(Some(OnCard::new(monitor, device.peak_flops(), folder, continued, observer)))
    }

    /// The columns of `results.csv` that it fills.
    pub fn columns(&self) -> Vec<&'static str> {
        self.0.as_ref().map(OnCard::columns).unwrap_or_default()
    }

    /// To be called before the first batch of an epoch, or of the rest of it.
    pub fn begin_epoch(&mut self, epoch: usize, observer: &mut dyn Observer) {
        let Some(card) = &mut self.0 else { return };
        card.collect(observer);
        (card.epoch, card.training, card.summary, card.flops) = (epoch, true, Summary::default(), 0);
    }

    /// To be called after every batch, with the floating-point operations of its convolutions.
    pub fn step(&mut self, flops: u64, observer: &mut dyn Observer) {
        let Some(card) = &mut self.0 else { return };
        card.flops += flops;
        if card.written.elapsed() >= WRITE_EVERY {
            card.collect(observer);
        }
    }

    /// To be called after the last batch of an epoch.
    pub fn end_epoch(&mut self, paced: &Paced, observer: &mut dyn Observer) {
        let Some(card) = &mut self.0 else { return };
        card.collect(observer);
        card.training = false;
        card.results = card.of_epoch(paced);
    }

    /// The numbers of the epoch that ended last, in the order of the columns.
    pub fn results(&self) -> Vec<f64> {
        self.0.as_ref().map(|card| card.results.clone()).unwrap_or_default()
    }

    /// Utilisation of the card's peak in the epoch so far, 0..=1; `None` where the peak is not known.
    pub fn mfu(&self, paced: &Paced) -> Option<f64> {
        self.0.as_ref()?.mfu(paced)
    }

    /// What the card was doing when it was last looked at.
    pub fn latest(&self) -> Option<Reading> {
        Some(self.0.as_ref()?.monitor.as_ref()?.latest()?.reading)
    }
}

impl OnCard {
    fn new(
        monitor: Option<Monitor>,
        peak: Option<f64>,
        folder: &Path,
        continued: bool,
        observer: &mut dyn Observer,
    ) -> Self {
        let mut card = Self {
            monitor,
            peak: peak.filter(|peak| *peak > 0.0),
            table: None,
            written: Instant::now(),
            epoch: 0,
            training: false,
            summary: Summary::default(),
            flops: 0,
            results: Vec::new(),
        };
        if card.monitor.is_some() {
            let path = folder.join("telemetry.csv");
            let opened = match continued {
                true => SamplesCsv::resume(&path, &columns::OF_SAMPLES),
                false => SamplesCsv::create(&path, &columns::OF_SAMPLES),
            };
            card.table = opened.map_err(|problem| tell(&problem, observer)).ok();
        }
        card
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut all = columns::OF_TIME.to_vec();
        all.extend(self.peak.map(|_| columns::MFU));
        if self.monitor.is_some() {
            all.extend(columns::OF_EPOCHS.iter().flat_map(|column| column.names));
        }
        all
    }

    fn mfu(&self, paced: &Paced) -> Option<f64> {
        let per_image = self.flops as f64 / paced.images.max(1) as f64;
        self.peak.map(|peak| model_flops_utilisation(per_image, paced.images_per_second(), peak))
    }

    fn of_epoch(&self, paced: &Paced) -> Vec<f64> {
        let mut all = vec![paced.images_per_second(), paced.data_wait()];
        all.extend(self.mfu(paced));
        if self.monitor.is_some() {
            all.extend(columns::OF_EPOCHS.iter().flat_map(|column| column.values(&self.summary)));
        }
        all
    }

    /// Counts and writes the samples since the last call. A table that cannot be written is told of once and given up: it
    /// is no reason to lose a run.
    fn collect(&mut self, observer: &mut dyn Observer) {
        self.written = Instant::now();
        if let Err(problem) = self.take() {
            tell(&problem, observer);
            self.table = None;
        }
    }

    fn take(&mut self) -> report::Result<()> {
        let samples = self.monitor.as_ref().map(Monitor::take).unwrap_or_default();
        if self.training {
            samples.iter().for_each(|sample| self.summary.add(&sample.reading));
        }
        let Some(table) = &mut self.table else { return Ok(()) };
        let rows: Vec<Vec<Option<f64>>> =
            samples.iter().map(|sample| columns::row(sample, self.epoch, self.training)).collect();
        table.append(&rows)
    }
}

impl Drop for OnCard {
    /// The samples of an epoch that was left, or of the last validation.
    fn drop(&mut self) {
        // Nobody is there to be told.
        let _ = self.take();
    }
}

fn tell(problem: &report::Error, observer: &mut dyn Observer) {
    observer.warn(&format!("telemetry of the GPU is not written: {problem}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use cuda::telemetry::Quantity;
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    /// A card that draws the watts that it is told to, one sample each. What tells it must be dropped first: the card
    /// waits for it.
    fn card(folder: &Path, continued: bool) -> (RunTelemetry, SyncSender<f64>) {
        let (send, told): (_, Receiver<f64>) = sync_channel(0);
        let read = move || {
            let watts = told.recv().ok();
            if watts.is_none() {
                // Nothing more will be told: few samples follow, which push none of those before out.
                std::thread::sleep(Duration::from_millis(20));
            }
            Reading::default().with(Quantity::Power, watts).with(Quantity::MemoryUsed, 3.0 * f64::from(1 << 30))
        };
        let monitor = Monitor::sampling(Duration::ZERO, read).unwrap();
        let card = OnCard::new(Some(monitor), Some(1e12), folder, continued, &mut Silent);
        (RunTelemetry(Some(card)), send)
    }

    /// Sends a sample and waits for it to be there.
    fn sample(telemetry: &RunTelemetry, card: &SyncSender<f64>, watts: f64) {
        card.send(watts).unwrap();
        let start = Instant::now();
        while telemetry.latest().and_then(|reading| reading.get(Quantity::Power)) != Some(watts) {
            assert!(start.elapsed() < Duration::from_secs(30), "the sample did not arrive");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn paced() -> Paced {
        Paced {
            elapsed: Duration::from_secs(2),
            waited: Duration::from_millis(500),
            images: 64,
            batches: 2,
            ..Paced::default()
        }
    }

    /// Epoch, whether it is of training, and watts of each row of `telemetry.csv`.
    fn rows(folder: &Path) -> Vec<[String; 3]> {
        let text = std::fs::read_to_string(folder.join("telemetry.csv")).unwrap();
        let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
        let header = cells(text.lines().next().unwrap());
        let at = ["epoch", "training", "power_W"].map(|name| header.iter().position(|n| n == name).unwrap());
        text.lines().skip(1).map(|line| at.map(|i| cells(line)[i].clone())).collect()
    }

    fn text(rows: &[[&str; 3]]) -> Vec<[String; 3]> {
        rows.iter().map(|row| row.map(str::to_owned)).collect()
    }

    #[test]
    fn an_epoch_is_summed_up_over_the_samples_of_its_batches() {
        let folder = tempfile::tempdir().unwrap();
        let (mut telemetry, card) = card(folder.path(), false);
        sample(&telemetry, &card, 100.0);
        telemetry.begin_epoch(0, &mut Silent);
        for watts in [400.0, 700.0] {
            sample(&telemetry, &card, watts);
            telemetry.step(3_200_000_000, &mut Silent);
        }
        telemetry.end_epoch(&paced(), &mut Silent);
        // The validation.
        sample(&telemetry, &card, 50.0);
        let (names, values) = (telemetry.columns(), telemetry.results());
        assert_eq!(names.len(), values.len());
        let of = |name: &str| values[names.iter().position(|n| *n == name).unwrap()];
        assert_eq!((of("time/images_per_s"), of("time/data_wait")), (32.0, 0.25));
        // 0.1 GFLOP an image.
        assert!((of("mfu") - 3.2e-3).abs() < 1e-12, "{}", of("mfu"));
        assert_eq!([of("gpu/power_W_mean"), of("gpu/power_W_min"), of("gpu/power_W_max")], [550.0, 400.0, 700.0]);
        assert_eq!(of("gpu/mem_GiB_max"), 3.0);
        assert!(of("gpu/temp_C_mean").is_nan(), "the card tells no temperature");

        telemetry.begin_epoch(1, &mut Silent);
        telemetry.end_epoch(&paced(), &mut Silent);
        let of = |name: &str| telemetry.results()[names.iter().position(|n| *n == name).unwrap()];
        assert!(of("gpu/power_W_mean").is_nan() && of("mfu") == 0.0, "nothing is left of the epoch before");
        // The reader waits for a sample: without its sender it ends.
        drop(card);
        drop(telemetry);
        let whole = rows(folder.path());
        assert_eq!(whole[..4], text(&[["0", "0", "100"], ["0", "1", "400"], ["0", "1", "700"], ["0", "0", "50"]]));
    }

    #[test]
    fn a_resumed_run_continues_the_samples_and_a_new_one_does_not() {
        let folder = tempfile::tempdir().unwrap();
        for (watts, epoch, continued) in [(1.0, 0, false), (2.0, 3, true)] {
            let (mut telemetry, card) = card(folder.path(), continued);
            telemetry.begin_epoch(epoch, &mut Silent);
            sample(&telemetry, &card, watts);
            // An interrupt: the samples since the last write are not lost.
            drop(card);
            drop(telemetry);
        }
        let watts =
            |folder: &Path| -> Vec<[String; 3]> { rows(folder).into_iter().filter(|row| !row[2].is_empty()).collect() };
        assert_eq!(watts(folder.path()), text(&[["0", "1", "1"], ["3", "1", "2"]]));
        let (telemetry, card) = card(folder.path(), false);
        drop(card);
        drop(telemetry);
        assert_eq!(watts(folder.path()), text(&[]));
    }

    #[test]
    fn a_card_without_nvml_and_of_unknown_peak_still_has_its_times() {
        let folder = tempfile::tempdir().unwrap();
        let mut telemetry = RunTelemetry(Some(OnCard::new(None, None, folder.path(), false, &mut Silent)));
        telemetry.begin_epoch(0, &mut Silent);
        telemetry.end_epoch(&paced(), &mut Silent);
        assert_eq!(telemetry.columns(), ["time/images_per_s", "time/data_wait"]);
        assert_eq!(telemetry.results(), [32.0, 0.25]);
        assert_eq!(telemetry.latest(), None);
        assert!(!folder.path().join("telemetry.csv").exists());
    }

    #[test]
    fn the_cpu_has_no_telemetry() {
        let folder = tempfile::tempdir().unwrap();
        let mut telemetry = RunTelemetry::start(&Device::Cpu, folder.path(), false, &mut Silent);
        telemetry.begin_epoch(0, &mut Silent);
        telemetry.step(1, &mut Silent);
        telemetry.end_epoch(&paced(), &mut Silent);
        assert!(telemetry.columns().is_empty() && telemetry.results().is_empty() && telemetry.latest().is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn samples_that_cannot_be_written_are_told_of_once() {
        #[derive(Default)]
        struct Warnings(Vec<String>);
        impl Observer for Warnings {
            fn info(&mut self, _: &str) {}
            fn warn(&mut self, line: &str) {
                self.0.push(line.to_owned());
            }
            fn progress(&mut self, _: &crate::Progress) {}
        }
        let folder = tempfile::tempdir().unwrap();
        let (mut telemetry, card) = card(folder.path(), false);
        let path: PathBuf = folder.path().join("telemetry.csv");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let mut warnings = Warnings::default();
        for epoch in 0..3 {
            telemetry.begin_epoch(epoch, &mut warnings);
            sample(&telemetry, &card, 10.0 + epoch as f64);
            telemetry.end_epoch(&paced(), &mut warnings);
        }
        assert_eq!(warnings.0.len(), 1, "{:?}", warnings.0);
        assert!(warnings.0[0].contains("telemetry.csv"), "{:?}", warnings.0);
        let power = telemetry.columns().iter().position(|name| *name == "gpu/power_W_mean").unwrap();
        assert_eq!(telemetry.results()[power], 12.0, "results.csv goes on");
        drop(card);
    }

    #[test]
    fn the_utilisation_of_a_peak_is_a_share() {
        // 100 GFLOP an image and 2000 images a second on 1 PFLOP/s.
        assert!((model_flops_utilisation(100e9, 2000.0, 1e15) - 0.2).abs() < 1e-12);
    }
}
