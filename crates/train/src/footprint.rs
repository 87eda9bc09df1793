//! What a command takes of the memory of machine and card, from its compiled plans: told, or refused, before any of it is
//! allocated.

use crate::device::Device;
use crate::evaluate::{EvalPlan, Evaluator};
use crate::plans::InputShape;
use crate::step::StepPlan;
use crate::{Observer, TrainError, system_memory};
use cuda::LIBRARY_BYTES;
use graph::{Category, GraphError, Recompute};
use model::Model;
use plan::largest::{Largest, Need, TooLarge, largest};
use plan::memory::{LEFT_FREE, usable};

/// Batches of pixels that the loader holds: in the making, waiting, and the one in use.
const LOADED_BATCHES: u64 = 4;

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Machine,
    Card,
}

impl Owner {
    fn name(self) -> &'static str {
        match self {
            Self::Machine => "memory",
            Self::Card => "memory of the card",
        }
    }
}

/// Bytes by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    machine: Vec<(&'static str, u64)>,
    /// Empty where the machine computes.
    card: Vec<(&'static str, u64)>,
}

impl Footprint {
    /// A training run.
    pub fn of_training(step: &StepPlan, validation: Option<&EvalPlan>) -> Self {
        match step.device() {
            Device::Cpu => Self { machine: training_on_the_cpu(step, validation), card: Vec::new() },
            Device::Card(_) => training_on_a_card(step, validation),
        }
    }

    /// Validation or detection alone.
    pub fn of_evaluation(plan: &EvalPlan, device: &Device) -> Self {
        let (arena, weights) = (("the arena", plan.arena()), plan.flat_bytes());
        let batches = ("loaded batches", loaded(plan.shape()));
        if device.is_cpu() {
            return Self { machine: vec![arena, ("weights", 3 * weights), batches], card: Vec::new() };
        }
        let sent = (SENT, plan.sent_bytes());
        let card = vec![arena, ("weights", weights), sent, ("graphs and libraries", LIBRARY_BYTES)];
        Self { machine: vec![("weights", 3 * weights), batches, sent], card }
    }

    fn parts(&self, owner: Owner) -> &[(&'static str, u64)] {
        match owner {
            Owner::Machine => &self.machine,
            Owner::Card => &self.card,
        }
    }

    fn total(&self, owner: Owner) -> u64 {
        self.parts(owner).iter().map(|p| p.1).sum()
    }

    fn text(&self, owner: Owner) -> String {
        let part = |(what, bytes): &(&str, u64)| format!("{what} {}", size(*bytes));
        self.parts(owner).iter().map(part).collect::<Vec<_>>().join(", ")
    }

    fn error(&self, what: &'static str, short: Short, hint: String) -> TrainError {
        let Short { owner, needed, available } = short;
        TrainError::Memory { what, memory: owner.name(), needed, available, parts: self.text(owner), hint }
    }
}

const STATE: &str = "weights, gradients, optimiser state and averages";
const CHECKPOINT: &str = "a checkpoint while it is written";
const SENT: &str = "batches on their way";

/// The snapshot that a thread writes: tensors by name, and the best averages. One of the four flat buffers that is being
/// read comes on top. There is one snapshot at a time: the next one waits for its write.
fn checkpoint(step: &StepPlan) -> u64 {
    step.flat_bytes() / 2 * 3
}

/// Validation has an arena of its own.
fn training_on_the_cpu(step: &StepPlan, validation: Option<&EvalPlan>) -> Vec<(&'static str, u64)> {
    let mut parts = vec![
        ("the step's arena", step.memory().arena),
        (STATE, step.flat_bytes()),
        (CHECKPOINT, checkpoint(step)),
        ("loaded batches", loaded(step.shape())),
    ];
    if let Some(plan) = validation {
        parts.extend([
            ("the validation's arena", plan.arena()),
            ("folded weights", 2 * plan.flat_bytes()),
            ("loaded validation batches", loaded(plan.shape())),
        ]);
    }
    parts
}

/// Validation shares the step's arena.
fn training_on_a_card(step: &StepPlan, validation: Option<&EvalPlan>) -> Footprint {
    let arena = step.memory().arena;
    let mut card = match validation.map(EvalPlan::arena).filter(|&larger| larger > arena) {
        Some(larger) => vec![("the arena, which the validation fills", larger)],
        None => vec![("the arena", arena)],
    };
    let sent = (SENT, step.sent_bytes());
    card.extend([(STATE, step.flat_bytes()), sent, ("graphs and libraries", LIBRARY_BYTES)]);
    let mut machine = vec![(CHECKPOINT, checkpoint(step)), ("loaded batches", loaded(step.shape())), sent];
    if let Some(plan) = validation {
        let sent = ("validation batches on their way", plan.sent_bytes());
        card.extend([("folded weights", plan.flat_bytes()), sent]);
        let loaded = ("loaded validation batches", loaded(plan.shape()));
        machine.extend([("folded weights", 2 * plan.flat_bytes()), loaded, sent]);
    }
    Footprint { machine, card }
}

fn loaded(shape: InputShape) -> u64 {
    LOADED_BATCHES * pixels(shape)
}

/// Bytes of a batch's pixels.
fn pixels(shape: InputShape) -> u64 {
    3 * (shape.images * shape.height * shape.width) as u64
}

/// Memory that is not there.
#[derive(Clone, Copy, Debug)]
struct Short {
    owner: Owner,
    needed: u64,
    available: u64,
}

/// `1.25 GiB`, or MiB below one.
pub(crate) fn size(bytes: u64) -> String {
    let mebi = bytes as f64 / f64::from(1 << 20);
    if mebi < 1024.0 { format!("{mebi:.1} MiB") } else { format!("{:.2} GiB", mebi / 1024.0) }
}

/// The memory of a command: what it may take, and what its plans take of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    available: Option<u64>,
    /// Of a card.
    on_card: Option<u64>,
    /// Of the machine's.
    taken: u64,
    taken_on_card: u64,
}

impl Room {
    /// `limit` takes the place of what is free where `device` computes: of the card's memory, or of the machine's.
    ///
    /// # Errors
    /// What a card's driver says.
    pub fn new(limit: Option<u64>, device: &Device) -> Result<Self, TrainError> {
        let system = system_memory::available();
        Ok(match device.free_memory()? {
            None => Self { available: limit.or(system), on_card: None, taken: 0, taken_on_card: 0 },
            Some(free) => Self { available: system, on_card: Some(limit.unwrap_or(free)), taken: 0, taken_on_card: 0 },
        })
    }

    /// The room of a card with so many bytes.
    #[cfg(test)]
    pub fn of_a_card(bytes: u64) -> Self {
        Self { available: None, on_card: Some(bytes), taken: 0, taken_on_card: 0 }
    }

    fn available(&self, owner: Owner) -> Option<u64> {
        match owner {
            Owner::Machine => self.available,
            Owner::Card => self.on_card,
        }
    }

    /// What a footprint lacks: of the card first, for there it can be helped.
    fn short(&self, footprint: &Footprint) -> Option<Short> {
        [Owner::Card, Owner::Machine].into_iter().find_map(|owner| {
            let (needed, available) = (footprint.total(owner), self.available(owner)?);
            (needed > available).then_some(Short { owner, needed, available })
        })
    }

    /// Takes what a footprint needs and tells it.
    fn take_all(&mut self, what: &str, footprint: &Footprint, observer: &mut dyn Observer) {
        for owner in [Owner::Card, Owner::Machine] {
            if footprint.parts(owner).is_empty() {
                continue;
            }
            let of = self.available(owner).map(|available| format!(" of {}", size(available))).unwrap_or_default();
            let (needed, parts) = (size(footprint.total(owner)), footprint.text(owner));
            let memory = match owner {
                Owner::Machine => "memory",
                Owner::Card => "card memory",
            };
            observer.info(&format!("{memory} of {what}: {needed}{of}: {parts}"));
        }
        self.take(footprint.total(Owner::Machine));
        self.taken_on_card += footprint.total(Owner::Card);
    }

    /// What is left for pictures: four fifths of the remainder, for it is an estimate and not ours alone. `None` where
    /// the system does not say.
    pub fn for_pictures(&self) -> Option<u64> {
        Some(self.available?.saturating_sub(self.taken) / 5 * 4)
    }

    /// What is left for pictures on a card, likewise; `None` without one.
    pub fn for_pictures_on_card(&self) -> Option<u64> {
        Some(self.on_card?.saturating_sub(self.taken_on_card) / 5 * 4)
    }

    /// Takes bytes out of the room.
    pub fn take(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// A smaller plan of a step that does not fit as it is: parts of its forward pass are computed twice, which
    /// changes no result. `None` where it fits, or where no plan does.
    pub fn squeeze(
        &self,
        footprint: &Footprint,
        step: &StepPlan,
        squeezed: &dyn Fn(Recompute) -> Result<StepPlan, TrainError>,
        observer: &mut dyn Observer,
    ) -> Result<Option<StepPlan>, TrainError> {
        let Some(short) = self.short(footprint).filter(|s| s.owner == step.device().owner()) else { return Ok(None) };
        let left = short.available.saturating_sub(short.needed - step.memory().arena);
        match squeezed(Recompute::Budget(left)) {
            Ok(plan) => {
                observer.warn(&format!(
                    "training needs {} of {}, {} are available: parts of the forward pass are computed twice, with the \
                     same results",
                    size(short.needed),
                    short.owner.name(),
                    size(short.available)
                ));
                Ok(Some(plan))
            }
            Err(TrainError::Graph(GraphError::Budget { .. })) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Takes what a training run needs and tells it.
    ///
    /// # Errors
    /// [`TrainError::Memory`] where it is not there, with a batch or a budget that would do. `smaller` compiles both
    /// plans of another batch, `squeezed` the step under a budget.
    pub fn take_training(
        &mut self,
        footprint: &Footprint,
        step: &StepPlan,
        smaller: &dyn Fn(usize) -> Result<Footprint, TrainError>,
        squeezed: &dyn Fn(Recompute) -> Result<StepPlan, TrainError>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let Some(short) = self.short(footprint) else {
            self.take_all("the run", footprint, observer);
            return Ok(());
        };
        let batch = self.fitting(step.shape().images, short.owner, smaller)?;
        let budget = match short.owner == step.device().owner() {
            true => short.available.checked_sub(short.needed - step.memory().arena),
            false => None,
        };
        let budget = match budget.map(|left| (left, squeezed(Recompute::Budget(left)))) {
            None => None,
            Some((left, Ok(plan))) => {
                // Whole MiB read better, where the plan leaves room for rounding.
                let mebi = left >> 20;
                let bytes = if mebi << 20 >= plan.memory().arena { format!("{mebi}MiB") } else { left.to_string() };
                Some(format!("--memory-budget {bytes} keeps the batch and computes parts of the forward pass twice"))
            }
            Some((_, Err(TrainError::Graph(GraphError::Budget { .. })))) => None,
            Some((_, Err(other))) => return Err(other),
        };
        let batch = batch.map(|(batch, bytes)| format!("--batch {batch} fits, with {}", size(bytes)));
        let hints: Vec<String> = batch.into_iter().chain(budget).collect();
        let hint = if hints.is_empty() { smaller_pictures() } else { hints.join("; ") };
        Err(footprint.error("training", short, hint))
    }

    /// Takes what validation or detection needs, told by `what`.
    ///
    /// # Errors
    /// [`TrainError::Memory`], as for training.
    pub fn take_evaluation(
        &mut self,
        what: &'static str,
        evaluator: &Evaluator,
        plan: &EvalPlan,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let footprint = Footprint::of_evaluation(plan, evaluator.device());
        let Some(short) = self.short(&footprint) else {
            self.take_all(what, &footprint, observer);
            return Ok(());
        };
        let shape = plan.shape();
        let smaller = |images: usize| -> Result<Footprint, TrainError> {
            let boxes = plan.max_boxes() * images / shape.images.max(1);
            let smaller = evaluator.plan(InputShape { images, ..shape }, boxes, plan.decode())?;
            Ok(Footprint::of_evaluation(&smaller, evaluator.device()))
        };
        let hint = match self.fitting(shape.images, short.owner, &smaller)? {
            Some((batch, bytes)) => format!("--batch {batch} fits, with {}", size(bytes)),
            None => smaller_pictures(),
        };
        Err(footprint.error(what, short, hint))
    }

    /// The largest batch that leaves a part of the memory free where `device` computes, and fits the machine beside a card;
    /// told in numbers. `footprint` compiles both plans of a batch.
    ///
    /// # Errors
    /// A system that does not say what is free; no batch that fits; what compiling says, but for batches that are too large.
    pub fn largest_batch(
        &self,
        images: usize,
        device: &Device,
        footprint: &dyn Fn(usize) -> Result<Footprint, TrainError>,
        observer: &mut dyn Observer,
    ) -> Result<usize, TrainError> {
        let owner = device.owner();
        let Some(free) = self.available(owner) else {
            let message = "auto: this system does not say how much memory is free";
            return Err(TrainError::option("batch", message, Some("give a number, such as --batch 16")));
        };
        let usable = usable(free);
        let found = largest(usable, images, &mut |batch| match footprint(batch) {
            // The machine holds batches on their way to a card.
            Ok(needed) => Ok(match self.short(&needed).filter(|short| short.owner != owner) {
                Some(_) => Need::NoPlan,
                None => Need::Bytes(needed.total(owner)),
            }),
            Err(TrainError::Graph(error)) => Ok::<_, TrainError>(Need::of(error)?),
            Err(other) => Err(other),
        })?;
        let Some(Largest { batch, bytes, capped }) = found else {
            let message = format!("auto: not even one image a step fits into {} of free {}", size(free), owner.name());
            return Err(TrainError::option("batch", message, Some(&smaller_pictures())));
        };
        let limit = match capped {
            Some(TooLarge { tensor, .. }) => format!("it is the most: {tensor} would have more than 2^31 elements"),
            None if batch >= images => "the training images are no more".to_owned(),
            None => format!("the largest that leaves {:.0} % of it free", 100.0 * LEFT_FREE),
        };
        observer.info(&format!(
            "--batch auto: {batch}, which needs {} of {} of free {}; {limit}",
            size(bytes),
            size(free),
            owner.name()
        ));
        if owner == Owner::Machine {
            observer.info("on the CPU a larger batch is hardly faster: --batch 16 leaves memory for decoded images");
        }
        Ok(batch)
    }

    /// The largest of the batch's halves, quarters and so on that fits, with its bytes of the memory that was short.
    fn fitting(
        &self,
        batch: usize,
        owner: Owner,
        footprint: &dyn Fn(usize) -> Result<Footprint, TrainError>,
    ) -> Result<Option<(usize, u64)>, TrainError> {
        let mut batch = batch / 2;
        while batch > 0 {
            match footprint(batch) {
                Ok(smaller) if self.short(&smaller).is_none() => return Ok(Some((batch, smaller.total(owner)))),
                // A budget that is too small, or tensors that are too large, for this batch.
                Ok(_) | Err(TrainError::Graph(_)) => batch /= 2,
                Err(other) => return Err(other),
            }
        }
        Ok(None)
    }
}

impl Device {
    /// Whose memory arenas take.
    fn owner(&self) -> Owner {
        if self.is_cpu() { Owner::Machine } else { Owner::Card }
    }
}

fn smaller_pictures() -> String {
    "not even one image a step fits: lower --img (half of the side takes about a quarter of the memory)".to_owned()
}

/// Size of the model, and what the step's arena holds when it is fullest.
pub(crate) fn tell_step(
    model: &Model,
    step: &StepPlan,
    side: usize,
    observer: &mut dyn Observer,
) -> Result<(), TrainError> {
    let info = model.info(side, side)?;
    observer.info(&format!(
        "{}: {} classes, {} parameters in training, {} as deployed ({:.1} GFLOPs at {side}x{side})",
        model.name,
        model.nc,
        info.training.parameters,
        info.main_folded.parameters,
        info.main_folded.gflops()
    ));
    let mebi = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory = step.memory();
    let alive = |wanted: &[Category]| {
        memory
            .at_peak
            .iter()
            .filter(|(category, _)| wanted.contains(category))
            .map(|(_, bytes)| mebi(*bytes))
            .sum::<f64>()
    };
    observer.info(&format!(
        "memory of a step: {:.1} MiB of arena; where it is fullest it holds {:.1} of activations kept for the backward \
         pass, {:.1} of passing ones, {:.1} of gradients, {:.1} of workspace",
        mebi(memory.arena),
        alive(&[Category::Kept, Category::Recomputed]),
        alive(&[Category::Transient]),
        alive(&[Category::Gradient]),
        alive(&[Category::Workspace])
    ));
    Ok(())
}
