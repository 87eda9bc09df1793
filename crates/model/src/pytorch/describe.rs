//! What a pickled module says about its model: description, classes, strides.

use super::module::Taken;
use super::scalar;
use super::value::{Id, Value, Values, shown};
use super::{archive::Archive, tensors};
use crate::model::Model;
use crate::state::NamedTensors;
use crate::weights::WeightsMeta;
use crate::yaml::MAX_CLASSES;
use crate::zoo::Source;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest text taken out of a checkpoint, in bytes.
const MAX_TEXT: usize = 1 << 16;

/// The description of the model that the weights belong to.
///
/// # Errors
/// Why there is none, for the log.
pub(crate) fn meta(
    values: &Values,
    root: Id,
    taken: &Taken,
    weights: &NamedTensors,
    archive: &mut Archive,
    path: &Path,
) -> Result<WeightsMeta, String> {
    let module = taken.module.ok_or("it holds a state dict without the model's description")?;
    let yaml = values.attribute(module, "yaml").filter(|&y| values.pairs(y).is_some());
    let yaml = yaml.ok_or("its model has no description (attribute yaml)")?;
    let nc = class_count(values, module, yaml).ok_or("its model does not say how many classes it has")?;
    let name = model_name(values, module, path);
    let text = write_yaml(values, yaml, nc)?;
    // Also the check that the architecture is one that is known here.
    let source = Source::Text(format!("{name} (from the checkpoint)"));
    let model = Model::from_yaml(&name, source, text, Some(nc))
        .map_err(|e| format!("its model is not one that this program knows: {e}"))?;
    let strides = strides(values, module, archive).unwrap_or_else(|| model.strides.clone());
    Ok(WeightsMeta {
        names: class_names(values, module, nc),
        folded: is_folded(weights),
        extra: extra(values, root, taken),
        model: model.name,
        yaml: model.yaml,
        nc,
        strides,
    })
}

/// The head's number, which its tensors have; else the description's; else the module's.
fn class_count(values: &Values, module: Id, yaml: Id) -> Option<usize> {
    let layers = values.attribute(module, "_modules").and_then(|m| values.entry(m, "model"));
    let layers = layers.and_then(|l| values.attribute(l, "_modules")).and_then(|m| values.pairs(m));
    let head = layers.and_then(|l| l.last()).and_then(|&(_, head)| values.attribute(head, "nc"));
    let stated = [head, values.entry(yaml, "nc"), values.attribute(module, "nc")];
    let counts = stated.into_iter().flatten().filter_map(|id| values.int(id)).filter_map(|v| usize::try_from(v).ok());
    counts.into_iter().find(|n| (1..=MAX_CLASSES).contains(n))
}

/// Stem of the model file that the module remembers, or of the checkpoint.
fn model_name(values: &Values, module: Id, path: &Path) -> String {
    let remembered = values.attribute(module, "yaml_file").and_then(|id| values.text(id));
    // Either system's separators: the file may come from the other one.
    let file = remembered.and_then(|f| f.rsplit(['/', '\\']).next()).unwrap_or("");
    let stem = file.strip_suffix(".yaml").or_else(|| file.strip_suffix(".yml")).unwrap_or(file);
    let own = || path.file_stem().map_or_else(|| "model".into(), |s| s.to_string_lossy().into_owned());
    if stem.is_empty() || stem.len() > 255 { own() } else { shown(stem) }
}

/// One name a class: from a dict of numbers or a list; classes without one are called by their number.
fn class_names(values: &Values, module: Id, nc: usize) -> Vec<String> {
    let mut names: Vec<String> = (0..nc).map(|i| i.to_string()).collect();
    let Some(given) = values.attribute(module, "names") else { return names };
    let mut set = |i: usize, id: Id| {
        if let (Some(name), Some(text)) = (names.get_mut(i), values.text(id).filter(|t| t.len() <= MAX_TEXT)) {
            *name = text.to_owned();
        }
    };
    if let Some(items) = values.sequence(given) {
        items.iter().enumerate().for_each(|(i, &id)| set(i, id));
    } else if let Some(pairs) = values.pairs(given) {
        for &(key, id) in pairs {
            if let Some(i) = values.int(key).and_then(|i| usize::try_from(i).ok()) {
                set(i, id);
            }
        }
    }
    names
}

/// The module's strides in pixels, from a tensor or a list.
fn strides(values: &Values, module: Id, archive: &mut Archive) -> Option<Vec<usize>> {
    let id = values.attribute(module, "stride")?;
    let numbers: Vec<f64> = match values.get(id) {
        Value::Tensor(tensor) if tensor.dims.len() == 1 && (1..=16).contains(&tensor.dims[0]) => {
            let read = tensors::read(values, &[("stride".into(), id)], archive).ok()?;
            read.first()?.values.iter().map(|&v| v.into()).collect()
        }
        _ => values.sequence(id)?.iter().take(17).map(|&v| scalar::number(values, v)).collect::<Option<_>>()?,
    };
    let whole = |v: &f64| v.fract() == 0.0 && (1.0..=1024.0).contains(v);
    let fits = (1..=16).contains(&numbers.len()) && numbers.iter().all(whole);
    fits.then(|| numbers.iter().map(|&v| v as usize).collect())
}

/// True where batch norms are folded into convolutions, which then have biases.
fn is_folded(weights: &NamedTensors) -> bool {
    !weights.iter().any(|(name, _)| name.contains(".bn."))
        && weights.iter().any(|(name, _)| name.ends_with(".conv.bias"))
}

fn extra(values: &Values, root: Id, taken: &Taken) -> BTreeMap<String, String> {
    let mut extra = BTreeMap::from([("part".to_owned(), taken.part.unwrap_or("model").to_owned())]);
    if taken.part.is_none() {
        return extra;
    }
    if let Some(epoch) = epoch(values, root) {
        extra.insert("epochs".into(), (epoch + 1).to_string());
    }
    let fitness = values.entry(root, "best_fitness").and_then(|id| scalar::number(values, id));
    if let Some(fitness) = fitness.filter(|f| f.is_finite()) {
        extra.insert("best_fitness".into(), fitness.to_string());
    }
    let date = values.entry(root, "date").and_then(|id| values.text(id));
    if let Some(date) = date.filter(|d| !d.is_empty() && d.len() <= MAX_TEXT) {
        extra.insert("date".into(), date.to_owned());
    }
    extra
}

/// The last epoch, counted from 0; a stripped checkpoint says -1.
pub(crate) fn epoch(values: &Values, root: Id) -> Option<u64> {
    let epoch = values.entry(root, "epoch").and_then(|id| values.int(id))?;
    u64::try_from(epoch).ok().filter(|&e| e < u64::from(u32::MAX))
}

/// The model's description in the form of a model file.
fn write_yaml(values: &Values, yaml: Id, nc: usize) -> Result<String, String> {
    let mut text = format!("nc: {nc}\n");
    for key in ["depth_multiple", "width_multiple", "anchors", "activation", "ch"] {
        let Some(value) = values.entry(yaml, key).filter(|&v| !values.is_none(v)) else { continue };
        text.push_str(&format!("{key}: "));
        write_flow(values, value, &mut text, 0)?;
        text.push('\n');
    }
    for part in ["backbone", "head"] {
        let rows = values.entry(yaml, part).and_then(|id| values.sequence(id));
        let rows = rows.ok_or_else(|| format!("the description of its model has no list '{part}'"))?;
        text.push_str(part);
        text.push_str(if rows.is_empty() { ": []\n" } else { ":\n" });
        for &row in rows {
            text.push_str("  - ");
            write_flow(values, row, &mut text, 0)?;
            text.push('\n');
        }
    }
    Ok(text)
}

/// A value in flow style.
fn write_flow(values: &Values, id: Id, text: &mut String, depth: usize) -> Result<(), String> {
    // A list may hold itself, and short texts can stand for long ones many times.
    if depth > 8 || text.len() > crate::zoo::MAX_YAML_BYTES as usize {
        return Err("the description of its model is too large".into());
    }
    match values.get(id) {
        Value::None => text.push_str("null"),
        Value::Bool(v) => text.push_str(&v.to_string()),
        Value::Int(v) => text.push_str(&v.to_string()),
        Value::Float(v) if v.is_finite() => text.push_str(&format!("{v:?}")),
        Value::Text(v) if v.len() <= 256 => text.push_str(&scalar_text(v)),
        Value::List(items) | Value::Tuple(items) => {
            text.push('[');
            for (i, &item) in items.iter().enumerate() {
                text.push_str(if i == 0 { "" } else { ", " });
                write_flow(values, item, text, depth + 1)?;
            }
            text.push(']');
        }
        _ => return Err(format!("the description of its model has {} in a row", values.describe(id))),
    }
    Ok(())
}

/// A plain scalar where that reads back as the same text, else one in quotes.
fn scalar_text(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let words = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let word = words.contains(&text.to_ascii_lowercase().as_str());
    // JSON's quoted texts are YAML's.
    if plain && !word { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::scalar_text;

    #[test]
    fn texts_read_back_as_texts() {
        for (text, want) in [
            ("nn.Upsample", "nn.Upsample"),
            ("None", "None"),
            ("no", "\"no\""),
            ("1e5", "\"1e5\""),
            ("", "\"\""),
            ("a: [b", "\"a: [b\""),
            ("nn.LeakyReLU(0.1)", "\"nn.LeakyReLU(0.1)\""),
            ("quote\"\n", "\"quote\\\"\\n\""),
        ] {
            assert_eq!(scalar_text(text), want);
            assert_eq!(serde_saphyr::from_str::<String>(want).unwrap(), text);
        }
    }
}
