//! Names and units of what is written about a card.

use cuda::telemetry::{Quantity, Sample, Spread, Summary};
use std::time::UNIX_EPOCH;

/// Columns of `telemetry.csv`: seconds since 1970 (UTC), the epoch, 1 while its batches are trained and 0 in between, and
/// all quantities in their units.
pub(super) const OF_SAMPLES: [&str; 3 + Quantity::ALL.len()] = [
    "time",
    "epoch",
    "training",
    "util_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "memory_util_percent",
    "power_W",
    "temperature_C",
    "sm_clock_MHz",
    "memory_clock_MHz",
    "pcie_upload_MBps",
    "pcie_download_MBps",
];

/// Columns of `results.csv` that every card has.
pub(super) const OF_TIME: [&str; 2] = ["time/images_per_s", "time/data_wait"];
/// The one of cards whose peak is known.
pub(super) const MFU: &str = "mfu";

/// A quantity in `results.csv`.
pub(super) struct Column {
    quantity: Quantity,
    /// Mean, smallest and largest.
    pub names: [&'static str; 3],
    /// The column's unit in the quantity's.
    unit: f64,
}

const fn column(quantity: Quantity, names: [&'static str; 3]) -> Column {
    Column { quantity, names, unit: 1.0 }
}

/// The columns of cards that are watched. Names have up to 20 characters, which is a cell's width.
pub(super) const OF_EPOCHS: [Column; 9] = [
    column(Quantity::Utilisation, ["gpu/util_mean", "gpu/util_min", "gpu/util_max"]),
    Column {
        quantity: Quantity::MemoryUsed,
        names: ["gpu/mem_GiB_mean", "gpu/mem_GiB_min", "gpu/mem_GiB_max"],
        unit: (1 << 30) as f64,
    },
    column(Quantity::MemoryUtilisation, ["gpu/mem_util_mean", "gpu/mem_util_min", "gpu/mem_util_max"]),
    column(Quantity::Power, ["gpu/power_W_mean", "gpu/power_W_min", "gpu/power_W_max"]),
    column(Quantity::Temperature, ["gpu/temp_C_mean", "gpu/temp_C_min", "gpu/temp_C_max"]),
    column(Quantity::SmClock, ["gpu/sm_MHz_mean", "gpu/sm_MHz_min", "gpu/sm_MHz_max"]),
    column(Quantity::MemoryClock, ["gpu/mem_MHz_mean", "gpu/mem_MHz_min", "gpu/mem_MHz_max"]),
    column(Quantity::Upload, ["gpu/up_MBps_mean", "gpu/up_MBps_min", "gpu/up_MBps_max"]),
    column(Quantity::Download, ["gpu/down_MBps_mean", "gpu/down_MBps_min", "gpu/down_MBps_max"]),
];

impl Column {
    /// Not a number where no sample told the quantity.
    pub fn values(&self, summary: &Summary) -> [f64; 3] {
        let unknown = Spread { mean: f64::NAN, min: f64::NAN, max: f64::NAN };
        let Spread { mean, min, max } = summary.of(self.quantity).unwrap_or(unknown);
        [mean, min, max].map(|value| value / self.unit)
    }
}

/// A row of `telemetry.csv`.
pub(super) fn row(sample: &Sample, epoch: usize, training: bool) -> Vec<Option<f64>> {
    // A clock before 1970 is no clock.
    let time = sample.time.duration_since(UNIX_EPOCH).ok().map(|time| time.as_millis() as f64 / 1e3);
    let when = [time, Some(epoch as f64), Some(f64::from(u8::from(training)))];
    when.into_iter().chain(Quantity::ALL.map(|quantity| sample.reading.get(quantity))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda::telemetry::Reading;
    use std::time::Duration;

    #[test]
    fn every_quantity_stands_below_its_name() {
        let mut reading = Reading::default();
        for (i, quantity) in Quantity::ALL.into_iter().enumerate().skip(1) {
            reading = reading.with(quantity, i as f64);
        }
        let sample = Sample { time: UNIX_EPOCH + Duration::from_millis(1_764_547_200_125), reading };
        let row = row(&sample, 7, true);
        assert_eq!(row.len(), OF_SAMPLES.len());
        assert_eq!(row[..4], [Some(1_764_547_200.125), Some(7.0), Some(1.0), None]);
        let of = |name: &str| row[OF_SAMPLES.iter().position(|n| *n == name).unwrap()];
        assert_eq!(of("memory_used_bytes"), reading.get(Quantity::MemoryUsed));
        assert_eq!(of("power_W"), reading.get(Quantity::Power));
        assert_eq!(of("pcie_upload_MBps"), reading.get(Quantity::Upload));
        assert_eq!(of("pcie_download_MBps"), reading.get(Quantity::Download));
    }

    #[test]
    fn names_fit_into_the_cells_of_results_csv() {
        let names: Vec<&str> = OF_EPOCHS.iter().flat_map(|column| column.names).chain(OF_TIME).chain([MFU]).collect();
        assert!(names.iter().all(|name| name.len() <= 20));
        let different: std::collections::BTreeSet<&&str> = names.iter().collect();
        assert_eq!(different.len(), names.len());
    }
}
