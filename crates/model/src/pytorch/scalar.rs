//! Numbers of a checkpoint that are no weights: Python's own, and NumPy's scalars and arrays of one element.

use super::value::{Id, Value, Values};

/// A number, or `None` where the value is none.
pub(crate) fn number(values: &Values, id: Id) -> Option<f64> {
    match values.get(id) {
        Value::Int(v) => Some(*v as f64),
        Value::Float(v) => Some(*v),
        Value::Object(object) => {
            let (module, name) = values.global(object.class)?;
            if !matches!(module, "numpy.core.multiarray" | "numpy._core.multiarray") {
                return None;
            }
            match name {
                // scalar(dtype, data).
                "scalar" => match values.sequence(object.args)? {
                    &[dtype, data] => of_numpy(values, dtype, data),
                    _ => None,
                },
                // Filled with (version, shape, dtype, order, data).
                "_reconstruct" => match values.sequence(object.state?)? {
                    &[_, _, dtype, _, data] => of_numpy(values, dtype, data),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    }
}

/// One number of the type `dtype`: dtype(code, ..), filled with (version, byte order, ..).
fn of_numpy(values: &Values, dtype: Id, data: Id) -> Option<f64> {
    let Value::Object(dtype) = values.get(dtype) else { return None };
    if values.global(dtype.class) != Some(("numpy", "dtype")) {
        return None;
    }
    let order = values.sequence(dtype.state?)?.get(1).and_then(|&o| values.text(o))?;
    let code = values.text(*values.sequence(dtype.args)?.first()?)?;
    if order == ">" {
        return None;
    }
    let raw = bytes(values, data)?;
    Some(match code {
        "f8" => f64::from_le_bytes(raw.try_into().ok()?),
        "f4" => f32::from_le_bytes(raw.try_into().ok()?).into(),
        "f2" => half::f16::from_le_bytes(raw.try_into().ok()?).into(),
        "i8" => i64::from_le_bytes(raw.try_into().ok()?) as f64,
        "i4" => i32::from_le_bytes(raw.try_into().ok()?).into(),
        _ => return None,
    })
}

/// Up to eight bytes; protocol 2 has them as a text whose characters stand for bytes.
fn bytes(values: &Values, id: Id) -> Option<Vec<u8>> {
    match values.get(id) {
        Value::Bytes(bytes) => (bytes.len() <= 8).then(|| bytes.to_vec()),
        Value::Text(text) if text.len() <= 16 => text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect(),
        Value::Object(object) => {
            let text = *values.sequence(object.args)?.first()?;
            let is_text = matches!(values.get(text), Value::Text(_));
            (is_text && values.global(object.class) == Some(("_codecs", "encode"))).then(|| bytes(values, text))?
        }
        _ => None,
    }
}
