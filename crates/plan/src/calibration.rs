//! What kernels reach of a card's rates, from profiles that `yolov9 bench step --profile --json` writes.

use crate::cards::Card;
use crate::speed::{Kind, Limit, Products, Rates};
use cuda::OpWork;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Shares of a card's rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The card that was measured.
    pub card: String,
    /// Day of the measurement, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// What was measured, such as `yolov9-t, 640 pixels, batch 64, bf16`.
    pub measured: Vec<String>,
    /// What the largest products reach of a data sheet's rate.
    pub reach_flops: f64,
    /// What a copy reaches of a data sheet's bandwidth.
    pub reach_bytes: f64,
    /// Microseconds of an op however small it is, inside of a CUDA graph.
    pub launch_us: f64,
    /// What ops of a kind reach of that, by [`Kind::name`]: those that arithmetic holds up, and those that traffic does.
    pub shares: BTreeMap<String, Shares>,
}

/// Shares of the card's rates that ops of a kind reach; `None` where none was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arithmetic: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<f64>,
}

/// Microseconds that an op takes inside of a CUDA graph however small it is: about two launches each.
const LAUNCH_US: f64 = 5.0;
/// Measured on an H200: 790 of 990 TFLOP/s, 4.2 of 4.8 TB/s.
const REACH: [f64; 2] = [0.798, 0.875];
/// Shares outside of these are errors of measurement.
const SHARES: std::ops::RangeInclusive<f64> = 0.05..=1.5;
/// Of what was not measured.
const USUAL_SHARE: f64 = 0.5;

impl Calibration {
    /// The one that comes with the program.
    ///
    /// # Errors
    /// None, as a test shows.
    pub fn built_in() -> Result<Self, ProfileError> {
        Ok(serde_json::from_str(include_str!("calibration.json"))?)
    }

    /// What ops of a kind reach.
    pub fn share(&self, kind: Kind, limit: Limit) -> f64 {
        let shares = self.shares.get(kind.name()).copied().unwrap_or_default();
        let share = match limit {
            Limit::Arithmetic => shares.arithmetic.or(shares.traffic),
            Limit::Traffic => shares.traffic.or(shares.arithmetic),
        };
        share.unwrap_or(USUAL_SHARE).clamp(*SHARES.start(), *SHARES.end())
    }

    /// Where predictions come from, in words.
    pub fn basis(&self) -> String {
        let date = self.date.as_ref().map(|date| format!(", {date}")).unwrap_or_default();
        format!("calibrated on {} ({}{date})", self.card, self.measured.join("; "))
    }

    /// As the file that comes with the program.
    ///
    /// # Errors
    /// None for numbers that are finite.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Finds the shares of profiles of one card, each the JSON of one bench.
    ///
    /// # Errors
    /// No profile, profiles of a card that is not in the table or of several, or a model that does not compile.
    pub fn of_profiles(texts: &[String]) -> Result<Self, ProfileError> {
        let profiles = texts.iter().map(|text| Measured::read(text)).collect::<Result<Vec<_>, _>>()?;
        let first = profiles.first().ok_or(ProfileError::None)?;
        let card = Card::find(&first.device).map_err(|_| ProfileError::Card(first.device.clone()))?;
        if let Some(other) = profiles.iter().find(|p| p.device != first.device) {
            return Err(ProfileError::Cards(first.device.clone(), other.device.clone()));
        }
        let mut calibration = Self {
            card: card.name.to_owned(),
            date: None,
            measured: profiles.iter().map(Measured::name).collect(),
            reach_flops: REACH[0],
            reach_bytes: REACH[1],
            launch_us: LAUNCH_US,
            shares: BTreeMap::new(),
        };
        // Bound and time, by kind and by what holds ops up.
        let mut sums = [[[0.0f64; 2]; 2]; Kind::ALL.len()];
        for profile in &profiles {
            let (gap, rates) = (profile.gap_ms(), Rates::of(card, profile.products()?, &calibration));
            for row in profile.rows() {
                let (bound, limit) = rates.bound(row.work());
                let count = row.count as f64;
                let sum = &mut sums[Kind::of(&row.op) as usize][limit as usize];
                sum[0] += count * bound;
                sum[1] += row.ms - count * (gap + 1e-3 * calibration.launch_us);
            }
        }
        let share = |[bound, ms]: [f64; 2]| {
            let share = (bound / ms.max(1e-9)).clamp(*SHARES.start(), *SHARES.end());
            (bound > 0.0).then_some((1e3 * share).round() / 1e3)
        };
        for (kind, [arithmetic, traffic]) in Kind::ALL.into_iter().zip(sums) {
            let shares = Shares { arithmetic: share(arithmetic), traffic: share(traffic) };
            if shares != Shares::default() {
                calibration.shares.insert(kind.name().to_owned(), shares);
            }
        }
        Ok(calibration)
    }
}

/// A profile that shares cannot be found from.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("no profile is named")]
    None,
    #[error("not the JSON of `yolov9 bench step --profile`: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it has no times of single ops: bench with --profile")]
    NoOps,
    #[error("{0} is not in the table of cards")]
    Card(String),
    #[error("profiles of two cards, {0} and {1}")]
    Cards(String, String),
    #[error("it knows no number format '{0}'")]
    Format(String),
}

/// What counts of a bench's report.
#[derive(Deserialize)]
struct Measured {
    device: String,
    model: String,
    imgsz: usize,
    batch: usize,
    precision: String,
    step_ms: Median,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Median {
    median: f64,
}

#[derive(Deserialize)]
struct Profile {
    rows: Vec<Row>,
}

/// Ops of one name and shape, summed up.
#[derive(Deserialize)]
struct Row {
    op: String,
    count: usize,
    ms: f64,
    gflop: f64,
    megabytes: f64,
}

impl Row {
    /// Of one of its ops.
    fn work(&self) -> OpWork {
        let count = self.count.max(1) as f64;
        OpWork { flops: 1e9 * self.gflop / count, bytes: 1e6 * self.megabytes / count }
    }
}

impl Measured {
    fn read(text: &str) -> Result<Self, ProfileError> {
        let read: Self = serde_json::from_str(text)?;
        if read.rows().is_empty() { Err(ProfileError::NoOps) } else { Ok(read) }
    }

    fn name(&self) -> String {
        format!("{}, {} pixels, batch {}, {}", self.model, self.imgsz, self.batch, self.precision)
    }

    fn rows(&self) -> &[Row] {
        self.profile.as_ref().map_or(&[], |p| &p.rows)
    }

    fn products(&self) -> Result<Products, ProfileError> {
        match self.precision.as_str() {
            "bf16" | "f16" => Ok(Products::Half),
            "tf32" => Ok(Products::Tf32),
            "f32" => Ok(Products::Single),
            other => Err(ProfileError::Format(other.to_owned())),
        }
    }

    /// What events around an op add to its time: a recorded step does not have it.
    fn gap_ms(&self) -> f64 {
        let (ops, ms) = self.rows().iter().fold((0, 0.0), |sum, row| (sum.0 + row.count, sum.1 + row.ms));
        ((ms - self.step_ms.median) / ops.max(1) as f64).max(0.0)
    }
}
