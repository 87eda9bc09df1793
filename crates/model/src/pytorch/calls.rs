//! The calls of a pickle whose results are known without making them: tensors, dicts, sets, sizes.

use super::value::{Id, Storage, Tensor, Value, Values};
use std::borrow::Cow;

type Result<T> = std::result::Result<T, String>;

/// Most dimensions of a tensor.
const MAX_DIMS: usize = 32;
/// Most tensors of a pickle: those of a model, its average and its optimiser.
const MAX_TENSORS: usize = 1 << 18;
/// Longest key of a storage, in bytes.
const MAX_KEY: usize = 255;
/// Functions within each other's arguments.
const MAX_WRAPPERS: usize = 4;

/// What a call gives, or `None` where the function is not known.
pub(crate) fn known<'a>(values: &mut Values<'a>, callable: Id, args: Id) -> Result<Option<Id>> {
    let (mut callable, mut args) = (callable, args);
    for _ in 0..MAX_WRAPPERS {
        let Some((module, name)) = values.global(callable) else { return Ok(None) };
        let Some(items) = values.sequence(args) else { return Ok(None) };
        let first = items.first().copied();
        let result = match (module, name) {
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2") => Some(tensor(values, items, None)?),
            ("torch._utils", "_rebuild_tensor_v3") => {
                let dtype = items.get(6).copied().ok_or("a tensor of its pickle has no type")?;
                Some(tensor(values, items, Some(dtype))?)
            }
            // A parameter is its tensor.
            ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") | ("torch", "Size") => {
                return Ok(first);
            }
            // The function, the class, and the arguments of the function.
            ("torch._tensor", "_rebuild_from_type" | "_rebuild_from_type_v2") => match *items {
                [inner, _, inner_args, ..] => {
                    (callable, args) = (inner, inner_args);
                    continue;
                }
                _ => None,
            },
            ("collections", "OrderedDict") => match first {
                None => Some(Value::Dict(Vec::new())),
                Some(first) => take_pairs(values, first).map(Value::Dict),
            },
            // Its factory, which fills in what is missing, and no pairs.
            ("collections", "defaultdict") if items.len() <= 1 => Some(Value::Dict(Vec::new())),
            ("builtins" | "__builtin__", "set" | "frozenset") => match first {
                None => Some(Value::Set(Vec::new())),
                // Elements are moved, not copied: calls of a large list over and over must stay cheap.
                Some(first) => match values.get_mut(first) {
                    Value::List(items) => Some(Value::Set(std::mem::take(items))),
                    _ => None,
                },
            },
            _ => None,
        };
        let Some(result) = result else { return Ok(None) };
        if matches!(result, Value::Tensor(_)) {
            values.tensors += 1;
            if values.tensors > MAX_TENSORS {
                return Err(format!("its pickle has more than {MAX_TENSORS} tensors"));
            }
        }
        let id = values.add(result);
        values.nest(id, args)?;
        return Ok(Some(id));
    }
    Err("a tensor of its pickle is wrapped too often".into())
}

/// Pairs that a dict is made of, as old files spell them out. Moved, not copied, as the elements of a set are.
fn take_pairs(values: &mut Values, start: Id) -> Option<Vec<(Id, Id)>> {
    let Value::List(items) = values.get(start) else { return None };
    let pair = |&pair: &Id| match values.sequence(pair) {
        Some(&[key, value]) => Some((key, value)),
        _ => None,
    };
    let pairs = items.iter().map(pair).collect::<Option<_>>()?;
    *values.get_mut(start) = Value::List(Vec::new());
    Some(pairs)
}

/// `(storage, offset, size, stride, ..)`.
fn tensor<'a>(values: &Values<'a>, items: &[Id], dtype: Option<Id>) -> Result<Value<'a>> {
    let &[storage, offset, size, stride, ..] = items else {
        return Err("a tensor of its pickle lacks its storage, offset, size or strides".into());
    };
    if !matches!(values.get(storage), Value::Storage(_)) {
        return Err(format!("a tensor of its pickle lies in {}", values.describe(storage)));
    }
    let offset = values.int(offset).and_then(|v| u64::try_from(v).ok());
    let list = |id: Id| -> Option<Vec<u64>> {
        let items = values.sequence(id).filter(|items| items.len() <= MAX_DIMS)?;
        items.iter().map(|&item| values.int(item).and_then(|v| u64::try_from(v).ok())).collect()
    };
    let (Some(offset), Some(dims), Some(strides)) = (offset, list(size), list(stride)) else {
        return Err("a tensor of its pickle has an offset, size or stride that is none".into());
    };
    if dims.len() != strides.len() {
        return Err(format!("a tensor of its pickle has {} extents and {} strides", dims.len(), strides.len()));
    }
    let dims = dims.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>();
    let dims = dims.map_err(|_| "a tensor of its pickle is larger than memory can be")?;
    Ok(Value::Tensor(Box::new(Tensor { storage, dtype, offset, dims, strides })))
}

/// A reference into the archive: `("storage", class, key, device, elements)`.
pub(crate) fn storage<'a>(values: &Values<'a>, id: Id) -> Result<Value<'a>> {
    let broken = || "its pickle refers to something that is no storage".to_owned();
    let &[tag, class, key, _device, elements, ref view @ ..] = values.sequence(id).ok_or_else(broken)? else {
        return Err(broken());
    };
    if values.text(tag) != Some("storage") || view.iter().any(|&v| !values.is_none(v)) {
        return Err(broken());
    }
    let Value::Global { module, name } = values.get(class) else { return Err(broken()) };
    let torch = module == "torch" || module.starts_with("torch.");
    let elements = values.int(elements).and_then(|v| u64::try_from(v).ok());
    let (true, Value::Text(key), Some(elements)) = (torch, values.get(key), elements) else { return Err(broken()) };
    if key.len() > MAX_KEY {
        return Err(broken());
    }
    let (class, key): (Cow<'a, str>, Cow<'a, str>) = (name.clone(), key.clone());
    Ok(Value::Storage(Box::new(Storage { class, key, elements })))
}
