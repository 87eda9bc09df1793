//! What is told of a planned run: memory by part, and for each card the largest batches and their speed.

use crate::PlanError;
use crate::calibration::Calibration;
use crate::cards::{CARDS, Card};
use crate::memory::{Memory, Part, Planner, free_on};
use crate::speed::{Products, Rates, commit_bytes, predict};
use graph::{DType, Level, OptimizerKind, Recompute};
use rayon::prelude::*;
use serde::Serialize;
use std::fmt::Write;

/// Which cards a run is planned for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// All of the table.
    All,
    Card(&'static Card),
    /// A card of so many bytes, whose speed is not known.
    Bytes(u64),
}

/// Bytes of one part.
#[derive(Clone, Debug, Serialize)]
pub struct PartBytes {
    pub part: &'static str,
    pub bytes: u64,
}

/// The largest batch at one level.
#[derive(Clone, Debug, Serialize)]
pub struct LevelRow {
    pub level: &'static str,
    /// Images a step on each card; `None` where not even one fits.
    pub batch: Option<usize>,
    /// Memory that it takes, the driver's context included.
    pub bytes: Option<u64>,
    /// Of all cards.
    pub images_per_second: Option<f64>,
    /// The tensor that would be too large in a larger batch, where that and not memory is the limit.
    pub capped_by: Option<String>,
}

/// A card and what it can do.
#[derive(Clone, Debug, Serialize)]
pub struct CardRow {
    pub name: String,
    pub memory_bytes: u64,
    /// Whether the batch that was asked for fits.
    pub fits: bool,
    /// Of that batch, all cards together.
    pub images_per_second: Option<f64>,
    pub step_ms: Option<f64>,
    pub levels: Vec<LevelRow>,
}

/// A planned run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub imgsz: usize,
    /// Images a step, of all cards.
    pub batch: usize,
    pub devices: usize,
    /// How convolutions of the training and of the validation compute.
    pub precision: [&'static str; 2],
    pub validation: bool,
    pub level: &'static str,
    /// When the arena is fullest, on each card. Their sum is `total_bytes`.
    pub parts: Vec<PartBytes>,
    pub total_bytes: u64,
    pub arena_bytes: u64,
    pub ops: usize,
    /// Where the arena is fullest: the op's number and its layer.
    pub fullest_at: usize,
    pub fullest_in: String,
    pub cards: Vec<CardRow>,
    /// What the predicted speed rests on.
    pub basis: String,
}

/// Name of a level in tables.
pub fn level_name(level: Level) -> &'static str {
    match level {
        Level::KeepAll => "keep all",
        Level::DropActivations => "drop activations",
        Level::DropInteriors => "drop interiors",
    }
}

/// Of how convolutions compute.
fn precision_name(options: &cuda::CudaOptions) -> &'static str {
    match options.precision.activation {
        DType::BF16 => "bf16",
        DType::F16 => "fp16",
        _ if options.tf32 => "tf32",
        _ => "fp32",
    }
}

impl Report {
    /// Plans `batch` images on each card, and the largest batches of each target. Gives the memory of `batch` too.
    ///
    /// # Errors
    /// What compiling says of `batch`.
    pub fn new(
        planner: &Planner,
        batch: usize,
        recompute: Recompute,
        target: Target,
        calibration: &Calibration,
    ) -> Result<(Self, Memory), PlanError> {
        let request = planner.request();
        let memory = planner.memory(batch, recompute)?;
        // Plans of many batches are asked for by several cards: those of a level one after the other, levels at once.
        let targets: Vec<Target> = match target {
            Target::All => CARDS.iter().map(Target::Card).collect(),
            one => vec![one],
        };
        let speed = |memory: &Memory, target: Target| planner.speed(memory, target, calibration);
        let of_level = |level: Level| -> Result<Vec<LevelRow>, PlanError> {
            targets.iter().map(|&target| level_row(planner, level, target, calibration)).collect()
        };
        let levels = Level::ALL.into_par_iter().map(of_level).collect::<Result<Vec<_>, _>>()?;
        let cards = targets.iter().enumerate().map(|(i, &target)| {
            let step = speed(&memory, target);
            CardRow {
                name: target.name(),
                memory_bytes: target.memory(),
                fits: memory.beside_the_context() <= free_on(target.memory()),
                images_per_second: step.map(|ms| images_per_second(request.devices * batch, ms)),
                step_ms: step,
                levels: levels.iter().map(|rows| rows[i].clone()).collect(),
            }
        });
        let plan = &memory.plan;
        let fullest_at = plan.memory().peak_op;
        let report = Self {
            model: request.model.name.clone(),
            imgsz: request.side,
            batch: request.devices * batch,
            devices: request.devices,
            precision: [precision_name(&request.formats.training), precision_name(&request.formats.inference)],
            validation: request.validation,
            level: level_name(plan.level()),
            parts: memory.parts().map(|(part, bytes)| PartBytes { part: part.name(), bytes }).to_vec(),
            total_bytes: memory.total(),
            arena_bytes: memory.arena(),
            ops: plan.graph().nodes().len(),
            fullest_at,
            fullest_in: plan.graph().nodes().get(fullest_at).map(|n| n.scope.clone()).unwrap_or_default(),
            cards: cards.collect(),
            basis: calibration.basis(),
        };
        Ok((report, memory))
    }

    /// Everything as JSON.
    ///
    /// # Errors
    /// None for numbers that are finite.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The report as text.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a text cannot fail.
        let _ = self.write_memory(&mut out);
        let _ = self.write_cards(&mut out);
        out
    }

    fn write_memory(&self, out: &mut String) -> std::fmt::Result {
        let each = self.batch / self.devices.max(1);
        let shared = if self.devices > 1 { format!(" on {} cards, {each} each", self.devices) } else { String::new() };
        let [training, validation] = self.precision;
        let validated = match self.validation {
            true => format!("; validation in batches of {} in {validation}", crate::memory::VALIDATION_BATCHES * each),
            false => String::new(),
        };
        writeln!(
            out,
            "{}, {} pixels, batch {}{shared}, {training}, {}{validated}",
            self.model, self.imgsz, self.batch, self.level
        )?;
        for PartBytes { part, bytes } in self.parts.iter().filter(|p| p.bytes > 0) {
            writeln!(out, "  {part:<31} {:>9.3} GiB", gibi(*bytes))?;
        }
        writeln!(out, "  {:<31} {:>9.3} GiB", "total on each card", gibi(self.total_bytes))?;
        writeln!(
            out,
            "  the arena, {:.3} GiB, is fullest at op {} of {}, {}",
            gibi(self.arena_bytes),
            self.fullest_at,
            self.ops,
            self.fullest_in
        )
    }

    fn write_cards(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out)?;
        writeln!(out, "largest batch of each card at each level, with 5 % of its memory left free, and images/s")?;
        write!(out, "{:<14} {:>8}  {:<16}", "card", "GiB", "this batch")?;
        Level::ALL.iter().try_for_each(|&level| write!(out, "{:>18}", level_name(level)))?;
        writeln!(out)?;
        for card in &self.cards {
            let rate = |rate: Option<f64>| rate.map_or(String::new(), |r| format!("{r:.0}/s"));
            let this = match card.fits {
                true => format!("fits {:>7}", rate(card.images_per_second)),
                false => "does not fit".to_owned(),
            };
            write!(out, "{:<14} {:>8.1}  {this:<16}", card.name, gibi(card.memory_bytes))?;
            for level in &card.levels {
                let batch = level.batch.map_or("-".to_owned(), |b| (b * self.devices).to_string());
                let mark = if level.capped_by.is_some() { "*" } else { "" };
                write!(out, "{:>18}", format!("{batch}{mark} {:>7}", rate(level.images_per_second)))?;
            }
            writeln!(out)?;
        }
        let mut capped =
            self.cards.iter().flat_map(|c| &c.levels).filter_map(|l| Some((l.batch?, l.capped_by.as_ref()?)));
        if let Some((batch, tensor)) = capped.next() {
            let batch = batch * self.devices;
            writeln!(out, "* batch {batch} is the most: {tensor} would have more than 2^31 elements")?;
        }
        if self.cards.iter().any(|c| c.images_per_second.is_some()) {
            let apart = if self.devices > 1 { ", nor the exchange of gradients between cards" } else { "" };
            writeln!(
                out,
                "images/s: {}; other cards by their data sheets. Loading of images is not in it{apart}",
                self.basis
            )?;
        }
        Ok(())
    }
}

impl Target {
    fn name(self) -> String {
        match self {
            Self::Card(card) => card.name.to_owned(),
            Self::Bytes(_) | Self::All => "this memory".to_owned(),
        }
    }

    /// Bytes of one card.
    pub fn memory(self) -> u64 {
        match self {
            Self::Card(card) => card.memory(),
            Self::Bytes(bytes) => bytes,
            Self::All => 0,
        }
    }
}

fn level_row(
    planner: &Planner,
    level: Level,
    target: Target,
    calibration: &Calibration,
) -> Result<LevelRow, PlanError> {
    let name = level_name(level);
    let Some(found) = planner.largest(level, free_on(target.memory()))? else {
        return Ok(LevelRow { level: name, batch: None, bytes: None, images_per_second: None, capped_by: None });
    };
    let memory = planner.at_level(found.batch, level)?;
    let ms = planner.speed(&memory, target, calibration);
    Ok(LevelRow {
        level: name,
        batch: Some(found.batch),
        bytes: Some(memory.total()),
        images_per_second: ms.map(|ms| images_per_second(planner.request().devices * found.batch, ms)),
        capped_by: found.capped.map(|c| c.tensor),
    })
}

fn images_per_second(images: usize, ms: f64) -> f64 {
    1e3 * images as f64 / ms
}

/// Bytes in GiB.
pub fn gibi(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

impl Planner {
    /// Predicted milliseconds of a step; `None` where the card is not known.
    fn speed(&self, memory: &Memory, target: Target, calibration: &Calibration) -> Option<f64> {
        let Target::Card(card) = target else { return None };
        let options = self.request().formats.training;
        let products = match options.precision.activation {
            DType::BF16 | DType::F16 => Products::Half,
            _ if options.tf32 => Products::Tf32,
            _ => Products::Single,
        };
        let optimizer: OptimizerKind = self.request().optimizer;
        let weights = memory.plan.params().weight_elements();
        let commit = commit_bytes(weights, optimizer, true, products == Products::Half);
        Some(predict(&memory.plan, commit, &Rates::of(card, products, calibration), calibration).ms)
    }
}

/// Live bytes of a plan's arena over its ops, by part in the order of [`Part::ALL`].
pub fn timeline(memory: &Memory) -> Vec<[u64; Part::ALL.len()]> {
    let ops = memory.plan.graph().nodes().len();
    let mut alive = vec![[0u64; Part::ALL.len()]; ops];
    for slot in memory.plan.slots() {
        let part = Part::of(slot.category) as usize;
        alive.iter_mut().take(slot.last + 1).skip(slot.first).for_each(|at| at[part] += slot.bytes);
    }
    alive
}
