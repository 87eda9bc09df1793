//! Where the weights of a checkpoint are: a state dict, or pickled modules that are walked into one.

use super::value::{Id, Value, Values, shown};

type Result<T> = std::result::Result<T, String>;

/// Most tensors of a model.
const MAX_TENSORS: usize = 1 << 16;
/// Deepest nesting of modules.
const MAX_DEPTH: usize = 64;
/// Longest name of a tensor, in bytes.
const MAX_NAME: usize = 1024;
/// Most entries looked at in a walk.
const MAX_WORK: usize = 1 << 22;

/// Keys that hold weights, the preferred first: the average is what the reference validates and publishes.
const PARTS: [&str; 4] = ["ema", "model", "state_dict", "model_state_dict"];

/// The weights that are taken.
pub(crate) struct Taken {
    /// Key of the checkpoint, or `None` where the file holds nothing but the weights.
    pub part: Option<&'static str>,
    /// The module, or `None` for a state dict.
    pub module: Option<Id>,
    /// Names and places of its tensors, in the order of the state dict.
    pub tensors: Vec<(String, Id)>,
    /// Entries that are no tensors.
    pub skipped: usize,
}

/// Finds the weights of a file.
pub(crate) fn find(values: &Values, root: Id) -> Result<Taken> {
    for part in PARTS {
        let Some(value) = values.entry(root, part).filter(|&v| !values.is_none(v)) else { continue };
        if let Some(taken) = take(values, value, Some(part))? {
            return Ok(taken);
        }
    }
    take(values, root, None)?.ok_or_else(|| {
        format!(
            "it holds no weights: its content is {}\n  hint: a checkpoint has its weights under one of {}",
            values.describe(root),
            PARTS.join(", ")
        )
    })
}

fn take(values: &Values, value: Id, part: Option<&'static str>) -> Result<Option<Taken>> {
    if values.attribute(value, "_modules").is_some() {
        let module = unwrapped(values, value);
        let mut walk = Walk { values, tensors: Vec::new(), prefix: String::new(), work: 0 };
        walk.module(module, 0)?;
        return Ok(Some(Taken { part, module: Some(module), tensors: walk.tensors, skipped: 0 }));
    }
    let Some(pairs) = values.pairs(value) else { return Ok(None) };
    let named = |&(key, v): &(Id, Id)| match (values.text(key), values.get(v)) {
        (Some(name), Value::Tensor(_)) => Some((name, v)),
        _ => None,
    };
    let found: Vec<(&str, Id)> = pairs.iter().filter_map(named).collect();
    if found.is_empty() {
        return Ok(None);
    }
    // Trained on several devices: every name carries the wrapper's.
    let wrapped = found.iter().all(|(name, _)| name.starts_with("module."));
    let mut tensors = Vec::with_capacity(found.len().min(MAX_TENSORS));
    for &(name, id) in &found {
        let name = if wrapped { &name["module.".len()..] } else { name };
        add(&mut tensors, name.to_owned(), id)?;
    }
    Ok(Some(Taken { part, module: None, tensors, skipped: pairs.len() - found.len() }))
}

/// The module inside the wrappers of training on several devices.
fn unwrapped(values: &Values, module: Id) -> Id {
    let Value::Object(object) = values.get(module) else { return module };
    let wrapper = values.global(object.class).is_some_and(|(_, name)| name.ends_with("DataParallel"));
    let inner = values.attribute(module, "_modules").and_then(|m| values.entry(m, "module"));
    match inner {
        Some(inner) if wrapper && values.attribute(inner, "_modules").is_some() => inner,
        _ => module,
    }
}

fn add(tensors: &mut Vec<(String, Id)>, name: String, id: Id) -> Result<()> {
    if tensors.len() == MAX_TENSORS {
        return Err(format!("it has more than {MAX_TENSORS} tensors"));
    }
    if name.len() > MAX_NAME {
        return Err(format!("its tensor {} has a name of {} bytes", shown(&name), name.len()));
    }
    tensors.push((name, id));
    Ok(())
}

/// A walk through the tables of modules, in the order of PyTorch's `state_dict`.
struct Walk<'v, 'a> {
    values: &'v Values<'a>,
    tensors: Vec<(String, Id)>,
    /// Names of the modules above, each with its dot.
    prefix: String,
    work: usize,
}

impl<'v> Walk<'v, '_> {
    fn module(&mut self, module: Id, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(format!("its module {} is nested more than {MAX_DEPTH} deep", shown(&self.prefix)));
        }
        self.charge(self.attributes(module))?;
        for table in ["_parameters", "_buffers"] {
            self.tensors_of(module, table)?;
        }
        let values = self.values;
        let Some(children) = values.attribute(module, "_modules").and_then(|m| values.pairs(m)) else { return Ok(()) };
        self.charge(children.len())?;
        for &(name, child) in children {
            if values.is_none(child) {
                continue;
            }
            let name = self.key(name)?;
            if self.prefix.len() + name.len() > MAX_NAME {
                return Err(format!("its module {}{} has a name too long", shown(&self.prefix), shown(name)));
            }
            let above = self.prefix.len();
            self.prefix.push_str(name);
            self.prefix.push('.');
            self.module(child, depth + 1)?;
            self.prefix.truncate(above);
        }
        Ok(())
    }

    fn tensors_of(&mut self, module: Id, table: &str) -> Result<()> {
        let values = self.values;
        let Some(pairs) = values.attribute(module, table).and_then(|t| values.pairs(t)) else { return Ok(()) };
        // Buffers that PyTorch itself leaves out of the state dict.
        let transient = match values.attribute(module, "_non_persistent_buffers_set").map(|id| values.get(id)) {
            Some(Value::Set(names)) if table == "_buffers" => names.as_slice(),
            _ => &[],
        };
        self.charge(pairs.len().saturating_mul(1 + transient.len()))?;
        for &(name, value) in pairs {
            let name = self.key(name)?;
            if values.is_none(value) || transient.iter().any(|&t| values.text(t) == Some(name)) {
                continue;
            }
            add(&mut self.tensors, format!("{}{name}", self.prefix), value)?;
        }
        Ok(())
    }

    fn key(&self, name: Id) -> Result<&'v str> {
        let values = self.values;
        values.text(name).ok_or_else(|| {
            format!("its module {} has {} in place of a name", shown(&self.prefix), values.describe(name))
        })
    }

    fn attributes(&self, module: Id) -> usize {
        match self.values.get(module) {
            Value::Object(object) => object.state.and_then(|s| self.values.pairs(s)).map_or(1, |pairs| 1 + pairs.len()),
            _ => 1,
        }
    }

    /// Modules that hold each other over and over must not keep the walk busy.
    fn charge(&mut self, entries: usize) -> Result<()> {
        self.work = self.work.saturating_add(entries);
        if self.work > MAX_WORK { Err("its modules hold each other too often".into()) } else { Ok(()) }
    }
}
