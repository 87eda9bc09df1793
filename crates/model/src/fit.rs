//! Which model a set of tensors belongs to: its classes, the sizes of its head, folded or not, with or without the
//! auxiliary branch. The tensors decide, because files of other programs carry no description and published ones
//! differ from their description (the class tower of YOLOv9-T is 80 wide, its rule says 128).

use crate::blocks::{BOX_CHANNELS, Hidden, Mode, Tower};
use crate::error::{ModelError, Result};
use crate::fold::fold;
use crate::model::{Branches, BuildOptions, Model};
use crate::single_branch::SingleBranch;
use crate::state::{NamedTensors, StateKind, TransferReport};
use crate::weights::Weights;
use crate::yaml::{MAX_CHANNELS, MAX_CLASSES};
use crate::zoo::{Source, ZOO};

/// Weights and the model that they fill.
#[derive(Debug)]
pub struct Fitted {
    pub model: Model,
    /// Under the model's names: a training state dict, or folded tensors.
    pub tensors: NamedTensors,
    /// True where batch norms are folded into the convolutions.
    pub folded: bool,
    /// Branches that the tensors fill.
    pub branches: Branches,
    /// One a class; `class0`, `class1`, … where the file does not say.
    pub names: Vec<String>,
    /// What a user may want to know, a line each.
    pub notes: Vec<String>,
}

impl Fitted {
    /// The folded tensors.
    ///
    /// # Errors
    /// See [`fold()`].
    pub fn fold(&self) -> Result<NamedTensors> {
        if self.folded { Ok(self.tensors.clone()) } else { fold(&self.tensors) }
    }
}

/// How well tensors fill a model.
enum Filling {
    /// They fill this build; the tensors bear the model's names.
    Whole(BuildOptions, NamedTensors),
    /// They do not, compared with the training state dict.
    Part(TransferReport),
}

/// Finds the model of a file's tensors, which all that it computes with must be there.
///
/// `cfg` names a description; without it the file's own is taken. A description with an auxiliary branch also fits
/// tensors that were converted to one branch. `what` stands for the file in messages.
///
/// # Errors
/// [`ModelError::NoDescription`] where neither says which model it is, [`ModelError::Misfit`] with what is missing or
/// of another shape, and what reading `cfg` refuses.
pub fn fit(weights: &Weights, cfg: Option<&str>, what: &str) -> Result<Fitted> {
    let described = described(weights, what)?;
    let model = match (cfg, &described) {
        (Some(cfg), _) => Model::load(cfg, None)?,
        (None, Some(model)) => model.with_classes(model.nc)?,
        (None, None) => return Err(ModelError::NoDescription { what: what.to_owned() }),
    };
    let tensors = reference_names(&weights.tensors)?;
    let single = model.single_branch()?.map(|s| s.model);
    let mut best: Option<(TransferReport, String)> = None;
    for candidate in [Some(model), single].into_iter().flatten() {
        let nc = classes_of(&candidate, &tensors).unwrap_or(candidate.nc);
        let (model, notes) = shaped(candidate.with_classes(nc)?, &tensors, what);
        match filling(&model, &tensors)? {
            Filling::Whole(options, tensors) => {
                let known = weights.meta.as_ref().map(|m| m.names.clone()).filter(|n| n.len() == model.nc);
                let names = known.unwrap_or_else(|| (0..model.nc).map(|i| format!("class{i}")).collect());
                let (folded, branches) = (options.mode == Mode::Folded, options.branches);
                return Ok(Fitted { model, tensors, folded, branches, names, notes });
            }
            Filling::Part(report) => {
                if best.as_ref().is_none_or(|(b, _)| report.transferred > b.transferred) {
                    best = Some((report, model.name.clone()));
                }
            }
        }
    }
    let (report, model) = best.unwrap_or_default();
    let hint = match (cfg, described) {
        (Some(_), Some(own)) => format!("the file says that it is a {}: leave --cfg out", own.name),
        _ => "name the model that the weights were trained as with --cfg: a built-in name or its YAML file".to_owned(),
    };
    let total = report.total;
    let detail = format!("{} of {total} tensors are there; {}", report.transferred, report.reasons());
    Err(ModelError::Misfit { what: what.to_owned(), model, detail, hint })
}

/// What went into a model to be trained.
#[derive(Debug)]
pub struct Transfer {
    /// The model, its head as wide as the weights' where the rest is the same.
    pub model: Model,
    /// Initial weights with those of the file in their places.
    pub tensors: NamedTensors,
    pub report: TransferReport,
    /// What a user may want to know, a line each.
    pub notes: Vec<String>,
}

/// Starts a model from weights of this or another one: what agrees in name and shape is taken, the rest is random.
///
/// Where one of the two models has an auxiliary branch and the other is the same without it, tensors find their places
/// under the other's names. The sizes inside of the head are taken from the tensors.
///
/// # Errors
/// [`ModelError::Misfit`] where the weights are folded, which cannot be trained; what [`crate::init()`] refuses.
pub fn transfer(model: Model, weights: &Weights, seed: u64, what: &str) -> Result<Transfer> {
    let tensors = reference_names(&weights.tensors)?;
    if is_folded(&tensors) || weights.meta.as_ref().is_some_and(|m| m.folded) {
        return Err(ModelError::Misfit {
            what: what.to_owned(),
            model: model.name,
            detail: "its batch norms are folded into the convolutions: such weights can be run but not trained".into(),
            hint: "start from the file that was folded".into(),
        });
    }
    let described = described(weights, what)?;
    let mut sources = vec![(tensors.clone(), None)];
    if let Some(single) = model.single_branch()? {
        sources
            .push((single.restore(&tensors)?, Some("they have no auxiliary branch, which starts from random weights")));
    }
    for whole in wholes_of(&model, described)? {
        sources.push((whole.convert(&tensors)?, Some("the auxiliary branch that they have is left out")));
    }
    let mut best: Option<Transfer> = None;
    for (source, note) in sources {
        let (model, mut notes) = shaped(model.with_classes(model.nc)?, &source, what);
        notes.extend(note.map(|n| format!("{what}: {n}")));
        let mut tensors = crate::init(&model, seed)?;
        let report = tensors.transfer_from(&source);
        if best.as_ref().is_none_or(|b| report.transferred > b.report.transferred) {
            best = Some(Transfer { model, tensors, report, notes });
        }
    }
    Ok(best.expect("the tensors as they are named are one of the sources"))
}

/// The model that the file describes, if it does.
fn described(weights: &Weights, what: &str) -> Result<Option<Model>> {
    let Some(meta) = &weights.meta else { return Ok(None) };
    let source = Source::Text(format!("{} (from {what})", meta.model));
    Ok(Some(Model::from_yaml(&meta.model, source, meta.yaml.clone(), Some(meta.nc))?))
}

/// Models with two branches of which `model` is the main one: the file's own, or the zoo's.
fn wholes_of(model: &Model, described: Option<Model>) -> Result<Vec<SingleBranch>> {
    let mut found = Vec::new();
    if model.has_aux() {
        return Ok(found);
    }
    let zoo = || ZOO.iter().map(|&(name, text)| (name, Source::Embedded(name), text));
    let candidates = match described {
        Some(own) => vec![own.with_classes(model.nc)?],
        None => zoo()
            .map(|(name, source, text)| Model::from_yaml(name, source, text.to_owned(), Some(model.nc)))
            .collect::<Result<_>>()?,
    };
    for candidate in candidates {
        found.extend(candidate.single_branch()?.filter(|single| single.model.same_rows(model)));
    }
    Ok(found)
}

/// Tensors under the reference's names, `model.<row>.…`: without the starts that wrappers add.
fn reference_names(tensors: &NamedTensors) -> Result<NamedTensors> {
    let mut start = String::new();
    let all = |start: &str| !tensors.is_empty() && tensors.iter().all(|(name, _)| name.starts_with(start));
    let wrappers = ["module.", "_orig_mod.", "ema.", "model."];
    while let Some(longer) = wrappers.iter().map(|w| format!("{start}{w}")).find(|longer| all(longer)) {
        start = longer;
    }
    let mut renamed = NamedTensors::new();
    let numbered = tensors.iter().all(|(name, _)| name[start.len()..].starts_with(|c: char| c.is_ascii_digit()));
    for (name, tensor) in tensors.iter() {
        let rest = &name[start.len()..];
        let name = if numbered { format!("model.{rest}") } else { rest.to_owned() };
        renamed.insert(name, tensor.dims.clone(), tensor.values.clone())?;
    }
    Ok(renamed)
}

fn is_folded(tensors: &NamedTensors) -> bool {
    let ends = |end: &str| tensors.iter().any(|(name, _)| name.ends_with(end));
    ends(".conv.bias") && !ends(".bn.running_var")
}

/// Classes of the tensors: outputs of the main class tower's last convolution.
fn classes_of(model: &Model, tensors: &NamedTensors) -> Option<usize> {
    let towers = &model.head().towers;
    let name = format!("model.{}.{}.0.2.weight", model.layers.len() - 1, towers[towers.len() - 1].classes);
    let nc = *tensors.get(&name)?.dims.first()?;
    (1..=MAX_CLASSES).contains(&nc).then_some(nc)
}

/// The model with head sizes as in the tensors, where their head has the same inputs; a note for each that differs
/// from the rule.
fn shaped(mut model: Model, tensors: &NamedTensors, what: &str) -> (Model, Vec<String>) {
    let head = model.layers.len() - 1;
    let mut notes = Vec::new();
    for tower in &mut model.head_mut().towers {
        let Some(found) = hidden_of(tower, head, tensors) else { continue };
        let rule = tower.rule();
        tower.hidden = found;
        let mut tell = |of: &str, have: String, want: String| {
            if have != want {
                notes.push(format!(
                    "{what}: {of} of the {} branch: {have}, the description's rule gives {want}",
                    tower.name
                ));
            }
        };
        tell("width of the class tower", found.class_width.to_string(), rule.class_width.to_string());
        tell("width of the box tower", found.box_width.to_string(), rule.box_width.to_string());
        let groups = |h: Hidden| format!("{} and {}", h.box_groups[0], h.box_groups[1]);
        tell("groups of the box tower", groups(found), groups(rule));
    }
    (model, notes)
}

fn hidden_of(tower: &Tower, head: usize, tensors: &NamedTensors) -> Option<Hidden> {
    let dims = |part: &str, end: &str| match tensors.get(&format!("model.{head}.{part}.{end}"))?.dims[..] {
        [out, per_group, ..] if (1..=MAX_CHANNELS).contains(&out) && per_group > 0 => Some((out, per_group)),
        _ => None,
    };
    let same_inputs = tower.channels.iter().enumerate().all(|(level, &channels)| {
        dims(tower.boxes, &format!("{level}.0.conv.weight")).is_some_and(|(_, inputs)| inputs == channels)
    });
    let (box_width, _) = dims(tower.boxes, "0.0.conv.weight").filter(|_| same_inputs)?;
    let groups = |end: &str, outputs: usize| {
        let (out, per_group) = dims(tower.boxes, end)?;
        let groups = box_width / per_group;
        let divides = box_width % per_group == 0 && outputs.is_multiple_of(groups);
        (out == outputs && divides).then_some(groups)
    };
    let box_groups = [groups("0.1.conv.weight", box_width)?, groups("0.2.weight", BOX_CHANNELS)?];
    let (class_width, _) = dims(tower.classes, "0.0.conv.weight")?;
    Some(Hidden { box_width, class_width, box_groups })
}

/// Holds tensors against the builds of a model that they may fill, the whole training state first.
fn filling(model: &Model, tensors: &NamedTensors) -> Result<Filling> {
    // Folding also completes a file of which only a part is folded.
    let folded = fold(tensors).ok();
    let likely = if is_folded(tensors) { Mode::Folded } else { Mode::Training };
    let mut part = None;
    for (mode, tensors) in [(Mode::Training, Some(tensors)), (Mode::Folded, folded.as_ref())] {
        let Some(tensors) = tensors else { continue };
        for branches in [Branches::All, Branches::Main] {
            let options = BuildOptions { mode, branches };
            let entries = model.state(options)?;
            // Counters and the fixed bins are not computed with.
            let (needed, other): (Vec<_>, Vec<_>) =
                entries.iter().partition(|e| matches!(e.kind, StateKind::Param | StateKind::Buffer));
            let others: Vec<&str> = other.iter().map(|e| e.name.as_str()).collect();
            let mut report = tensors.compare(needed.iter().map(|e| (e.name.as_str(), e.dims.as_slice())));
            report.foreign.retain(|name| !others.contains(&name.as_str()));
            if report.transferred == report.total {
                let mut own = NamedTensors::zeros(&entries);
                own.transfer_from(tensors);
                return Ok(Filling::Whole(options, own));
            }
            let better = |p: &TransferReport| report.transferred > p.transferred;
            if mode == likely && part.as_ref().is_none_or(better) {
                part = Some(report);
            }
        }
    }
    Ok(Filling::Part(part.unwrap_or_default()))
}
