//! Tensors of a checkpoint to f32: views checked against the bytes that are there, then gathered.

use super::archive::Archive;
use super::value::{Id, Storage, Value, Values, shown};
use crate::number::Number;
use crate::state::NamedTensor;

type Result<T> = std::result::Result<T, String>;

/// Most elements of all tensors together.
const MAX_ELEMENTS: u64 = 1 << 31;
/// Elements that even a small file may have.
const SMALL: u64 = 1 << 20;

/// A view that fits its storage.
struct View<'v> {
    key: &'v str,
    number: Number,
    offset: usize,
    dims: &'v [usize],
    strides: &'v [u64],
    elements: usize,
}

/// The values of tensors, each storage read once. `wanted` has names and places of tensors.
pub(crate) fn read(values: &Values, wanted: &[(String, Id)], archive: &mut Archive) -> Result<Vec<NamedTensor>> {
    let views: Vec<View> = wanted
        .iter()
        .map(|(name, id)| view(values, *id, archive).map_err(|e| format!("its tensor {}: {e}", shown(name))))
        .collect::<Result<_>>()?;
    // Bounded by what the storages hold: neither strides of zero nor a storage of many tensors make much of little.
    let mut keys: Vec<&str> = views.iter().map(|v| v.key).collect();
    keys.sort_unstable();
    keys.dedup();
    let held: u64 = keys.iter().filter_map(|key| archive.storage_size(key)).sum();
    let limit = MAX_ELEMENTS.min(held.saturating_mul(2).saturating_add(SMALL));
    let total = views.iter().fold(0u64, |sum, v| sum.saturating_add(v.elements as u64));
    if total > limit {
        return Err(format!("its tensors claim {total} elements out of {held} bytes"));
    }
    let mut order: Vec<usize> = (0..views.len()).collect();
    order.sort_by_key(|&i| views[i].key);
    let mut tensors: Vec<Option<NamedTensor>> = vec![None; views.len()];
    let mut current: (&str, Vec<u8>) = ("", Vec::new());
    for (position, &i) in order.iter().enumerate() {
        let view = &views[i];
        if position == 0 || view.key != current.0 {
            current = (view.key, archive.storage(view.key)?);
        }
        tensors[i] = Some(NamedTensor { dims: view.dims.to_vec(), values: view.gather(&current.1) });
    }
    Ok(tensors.into_iter().flatten().collect())
}

fn view<'v>(values: &'v Values, id: Id, archive: &Archive) -> Result<View<'v>> {
    let Value::Tensor(tensor) = values.get(id) else {
        return Err(format!("{} is no plain tensor", values.describe(id)));
    };
    let Value::Storage(storage) = values.get(tensor.storage) else { return Err("it has no storage".into()) };
    let number = number(values, storage, tensor.dtype)?;
    let have = archive
        .storage_size(&storage.key)
        .ok_or_else(|| format!("its storage data/{} is missing from the archive", shown(&storage.key)))?;
    let unit = class_number(&storage.class).map_or(1, Number::size) as u64;
    let need = storage.elements.checked_mul(unit);
    if need.is_none_or(|need| need > have) {
        return Err(format!("its storage claims {} elements, the file holds {have} bytes of it", storage.elements));
    }
    let within = need.unwrap_or(0) / number.size() as u64;
    let too_large = || format!("shape {:?} with strides {:?} lies beyond its storage", tensor.dims, tensor.strides);
    let elements = tensor.dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
    if elements > 0 {
        let last = tensor
            .dims
            .iter()
            .zip(&tensor.strides)
            .try_fold(tensor.offset, |at, (&dim, &stride)| at.checked_add(stride.checked_mul(dim as u64 - 1)?));
        if last.is_none_or(|last| last >= within) {
            return Err(too_large());
        }
    }
    let offset = if elements == 0 { 0 } else { tensor.offset as usize };
    Ok(View { key: &storage.key, number, offset, dims: &tensor.dims, strides: &tensor.strides, elements })
}

/// Type of a tensor's numbers.
fn number(values: &Values, storage: &Storage, dtype: Option<Id>) -> Result<Number> {
    let (name, known) = match dtype {
        Some(dtype) => match values.global(dtype) {
            Some(("torch", name)) => (name, dtype_number(name)),
            _ => return Err(format!("its type is {}", values.describe(dtype))),
        },
        None => (storage.class.as_ref(), class_number(&storage.class)),
    };
    known.ok_or_else(|| format!("it has the type {}, which no weights have", shown(name)))
}

fn class_number(class: &str) -> Option<Number> {
    Some(match class {
        "HalfStorage" => Number::F16,
        "BFloat16Storage" => Number::BF16,
        "FloatStorage" => Number::F32,
        "DoubleStorage" => Number::F64,
        "LongStorage" => Number::I64,
        "IntStorage" => Number::I32,
        "ShortStorage" => Number::I16,
        "CharStorage" => Number::I8,
        "ByteStorage" | "UntypedStorage" => Number::U8,
        "BoolStorage" => Number::Bool,
        _ => return None,
    })
}

fn dtype_number(name: &str) -> Option<Number> {
    Some(match name {
        "float16" | "half" => Number::F16,
        "bfloat16" => Number::BF16,
        "float32" | "float" => Number::F32,
        "float64" | "double" => Number::F64,
        "int64" | "long" => Number::I64,
        "int32" | "int" => Number::I32,
        "int16" | "short" => Number::I16,
        "int8" => Number::I8,
        "uint8" => Number::U8,
        "bool" => Number::Bool,
        _ => return None,
    })
}

impl View<'_> {
    /// Row-major values.
    fn gather(&self, storage: &[u8]) -> Vec<f32> {
        if self.elements == 0 {
            return Vec::new();
        }
        let size = self.number.size();
        if self.is_contiguous() {
            return self.number.widen(&storage[self.offset * size..(self.offset + self.elements) * size]);
        }
        let mut raw = Vec::with_capacity(self.elements * size);
        let mut index = vec![0usize; self.dims.len()];
        let mut at = self.offset;
        for _ in 0..self.elements {
            raw.extend_from_slice(&storage[at * size..(at + 1) * size]);
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                at += self.strides[axis] as usize;
                if index[axis] < self.dims[axis] {
                    break;
                }
                at -= self.strides[axis] as usize * self.dims[axis];
                index[axis] = 0;
            }
        }
        self.number.widen(&raw)
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.dims.iter().zip(self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim as u64;
            fits
        })
    }
}
