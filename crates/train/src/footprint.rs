//! What a command takes of the machine's memory, from its compiled plans: told, or refused, before any of it is
//! allocated.

use crate::evaluate::{EvalPlan, Evaluator};
use crate::plans::InputShape;
use crate::step::StepPlan;
use crate::{Observer, TrainError, system_memory};
use graph::{Category, GraphError, Recompute};
use model::Model;

/// Batches of pixels that the loader holds: in the making, waiting, and the one in use.
const LOADED_BATCHES: u64 = 4;

/// Bytes by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footprint {
    parts: Vec<(&'static str, u64)>,
}

impl Footprint {
    /// A training run. Validation has an arena of its own.
    pub fn of_training(step: &StepPlan, validation: Option<&EvalPlan>) -> Self {
        let mut parts = vec![
            ("the step's arena", step.memory().arena),
            ("weights, gradients, optimiser state and averages", step.flat_bytes()),
            // Tensors by name; the best averages, and one of the four flat buffers that is being read.
            ("a checkpoint while it is written", step.flat_bytes() / 2 * 3),
            ("loaded batches", loaded(step.shape())),
        ];
        if let Some(plan) = validation {
            parts.extend([
                ("the validation's arena", plan.arena()),
                ("folded weights", 2 * plan.flat_bytes()),
                ("loaded validation batches", loaded(plan.shape())),
            ]);
        }
        Self { parts }
    }

    /// Validation or detection alone.
    pub fn of_evaluation(plan: &EvalPlan) -> Self {
        let parts = vec![
            ("the arena", plan.arena()),
            ("weights", 3 * plan.flat_bytes()),
            ("loaded batches", loaded(plan.shape())),
        ];
        Self { parts }
    }

    pub fn total(&self) -> u64 {
        self.parts.iter().map(|p| p.1).sum()
    }

    fn text(&self) -> String {
        let parts: Vec<String> = self.parts.iter().map(|(what, bytes)| format!("{what} {}", size(*bytes))).collect();
        parts.join(", ")
    }

    fn error(&self, what: &'static str, available: u64, hint: String) -> TrainError {
        TrainError::Memory { what, needed: self.total(), available, parts: self.text(), hint }
    }
}

fn loaded(shape: InputShape) -> u64 {
    LOADED_BATCHES * 3 * (shape.images * shape.height * shape.width) as u64
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
    taken: u64,
}

impl Room {
    /// `limit` takes the place of what the system says.
    pub fn new(limit: Option<u64>) -> Self {
        Self { available: limit.or_else(system_memory::available), taken: 0 }
    }

    /// What is left for pictures: four fifths of the remainder, for it is an estimate and not ours alone. `None` where
    /// the system does not say.
    pub fn for_pictures(&self) -> Option<u64> {
        Some(self.available?.saturating_sub(self.taken) / 5 * 4)
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
        let needed = footprint.total();
        let Some(available) = self.available.filter(|&available| available < needed) else { return Ok(None) };
        let left = available.saturating_sub(needed - step.memory().arena);
        match squeezed(Recompute::Budget(left)) {
            Ok(plan) => {
                observer.warn(&format!(
                    "training needs {} of memory, {} are available: parts of the forward pass are computed twice, with \
                     the same results",
                    size(needed),
                    size(available)
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
        let needed = footprint.total();
        let Some(available) = self.available else {
            observer.info(&format!("memory of the run: {} ({})", size(needed), footprint.text()));
            return Ok(());
        };
        if needed <= available {
            observer.info(&format!("memory of the run: {} of {}: {}", size(needed), size(available), footprint.text()));
            self.take(needed);
            return Ok(());
        }
        let batch = fitting(step.shape().images, available, smaller)?;
        let others = needed - step.memory().arena;
        let left = available.saturating_sub(others);
        let budget = match squeezed(Recompute::Budget(left)) {
            Ok(plan) => {
                // Whole MiB read better, where the plan leaves room for rounding.
                let mebi = left >> 20;
                let bytes = if mebi << 20 >= plan.memory().arena { format!("{mebi}MiB") } else { left.to_string() };
                Some(format!("--memory-budget {bytes} keeps the batch and computes parts of the forward pass twice"))
            }
            Err(TrainError::Graph(GraphError::Budget { .. })) => None,
            Err(other) => return Err(other),
        };
        let batch = batch.map(|(batch, bytes)| format!("--batch {batch} fits, with {}", size(bytes)));
        let hints: Vec<String> = batch.into_iter().chain(budget).collect();
        let hint = if hints.is_empty() { smaller_pictures() } else { hints.join("; ") };
        Err(footprint.error("training", available, hint))
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
        let footprint = Footprint::of_evaluation(plan);
        let needed = footprint.total();
        let Some(available) = self.available else { return Ok(()) };
        if needed <= available {
            observer.info(&format!("memory of {what}: {} of {}: {}", size(needed), size(available), footprint.text()));
            self.take(needed);
            return Ok(());
        }
        let shape = plan.shape();
        let smaller = |images: usize| -> Result<Footprint, TrainError> {
            let boxes = plan.max_boxes() * images / shape.images.max(1);
            Ok(Footprint::of_evaluation(&evaluator.plan(InputShape { images, ..shape }, boxes)?))
        };
        let hint = match fitting(shape.images, available, &smaller)? {
            Some((batch, bytes)) => format!("--batch {batch} fits, with {}", size(bytes)),
            None => smaller_pictures(),
        };
        Err(footprint.error(what, available, hint))
    }
}

fn smaller_pictures() -> String {
    "not even one image a step fits: lower --img (half of the side takes about a quarter of the memory)".to_owned()
}

/// The largest of the batch's halves, quarters and so on that fits, with its bytes.
fn fitting(
    batch: usize,
    available: u64,
    footprint: &dyn Fn(usize) -> Result<Footprint, TrainError>,
) -> Result<Option<(usize, u64)>, TrainError> {
    let mut batch = batch / 2;
    while batch > 0 {
        match footprint(batch) {
            Ok(smaller) if smaller.total() <= available => return Ok(Some((batch, smaller.total()))),
            // A budget that is too small, or tensors that are too large, for this batch.
            Ok(_) | Err(TrainError::Graph(_)) => batch /= 2,
            Err(other) => return Err(other),
        }
    }
    Ok(None)
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
