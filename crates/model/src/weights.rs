//! Weight files: safetensors with the model's description beside its tensors.
//!
//! Tensors lie in the order of the state dict and a file's bytes depend only on its content. The metadata
//! are texts: `format` ([`FORMAT`]), `model`, `yaml`, `nc`, `strides` and `names` (JSON arrays), `folded`,
//! and whatever else the writer adds.

use crate::error::{ModelError, Result};
use crate::model::Model;
use crate::state::{NamedTensor, NamedTensors};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

/// Version of the metadata that this program writes, and the newest that it reads.
pub const FORMAT: u64 = 1;
/// Longest header read, in bytes.
const MAX_HEADER: u64 = 32 << 20;
/// Most tensors of a file.
const MAX_TENSORS: usize = 1 << 16;

/// What a weight file says about its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsMeta {
    /// Such as `yolov9-s`.
    pub model: String,
    /// The model's description.
    pub yaml: String,
    pub nc: usize,
    pub strides: Vec<usize>,
    /// One name a class.
    pub names: Vec<String>,
    /// True where batch norms are folded into the convolutions.
    pub folded: bool,
    /// Further texts, kept as they are.
    pub extra: BTreeMap<String, String>,
}

/// A weight file's content.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    pub tensors: NamedTensors,
    /// `None` for files of other programs.
    pub meta: Option<WeightsMeta>,
}

impl WeightsMeta {
    /// The description of a model and its class names.
    pub fn of(model: &Model, names: Vec<String>, folded: bool) -> Self {
        let (name, yaml, strides) = (model.name.clone(), model.yaml.clone(), model.strides.clone());
        Self { model: name, yaml, nc: model.nc, strides, names, folded, extra: BTreeMap::new() }
    }

    fn to_texts(&self) -> BTreeMap<String, String> {
        let mut texts = self.extra.clone();
        texts.extend([
            ("format".into(), FORMAT.to_string()),
            ("model".into(), self.model.clone()),
            ("yaml".into(), self.yaml.clone()),
            ("nc".into(), self.nc.to_string()),
            ("strides".into(), json(&self.strides)),
            ("names".into(), json(&self.names)),
            ("folded".into(), self.folded.to_string()),
        ]);
        texts
    }

    /// `None` where no `format` is given: another program's file.
    fn from_texts(texts: &HashMap<String, String>, path: &Path) -> Result<Option<Self>> {
        let Some(format) = texts.get("format") else { return Ok(None) };
        let error = |message: String| ModelError::Format { path: path.to_owned(), message };
        // Other programs use the key too, such as with the value "pt".
        let Ok(found) = format.parse::<u64>() else { return Ok(None) };
        if found > FORMAT {
            return Err(ModelError::Version { path: path.to_owned(), found, known: FORMAT });
        }
        let get = |key: &str| texts.get(key).ok_or_else(|| error(format!("its metadata lack '{key}'")));
        let bad = |key: &str, e: &dyn std::fmt::Display| error(format!("metadata '{key}': {e}"));
        let nc: usize = get("nc")?.parse().map_err(|e| bad("nc", &e))?;
        let names: Vec<String> = serde_json::from_str(get("names")?).map_err(|e| bad("names", &e))?;
        if names.len() != nc {
            return Err(error(format!("{} class names for {nc} classes", names.len())));
        }
        let known = ["format", "model", "yaml", "nc", "strides", "names", "folded"];
        let extra = texts.iter().filter(|(key, _)| !known.contains(&key.as_str()));
        Ok(Some(Self {
            model: get("model")?.clone(),
            yaml: get("yaml")?.clone(),
            nc,
            strides: serde_json::from_str(get("strides")?).map_err(|e| bad("strides", &e))?,
            names,
            folded: get("folded")?.parse().map_err(|e| bad("folded", &e))?,
            extra: extra.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }))
    }
}

/// JSON text of numbers, texts and lists of them.
fn json<T: serde::Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("numbers, texts and lists of them have a JSON form")
}

/// Writes a weight file: to a temporary file beside it, synced, then renamed, so that a reader finds
/// either the old file or the whole new one.
///
/// # Errors
/// [`ModelError::Io`] names the file; the old one is left as it was.
pub fn save(path: &Path, tensors: &NamedTensors, meta: &WeightsMeta) -> Result<()> {
    replace_file(path, |out| write(out, tensors, meta))
        .map_err(|source| ModelError::Io { path: path.to_owned(), source })
}

fn write(out: &mut dyn Write, tensors: &NamedTensors, meta: &WeightsMeta) -> std::io::Result<()> {
    let mut header = format!("{{\"__metadata__\":{}", json(&meta.to_texts()));
    let mut offset = 0;
    for (name, tensor) in tensors.iter() {
        let dtype = stored_type(name, tensor);
        let end = offset + tensor.values.len() * dtype.bitsize() / 8;
        let info = TensorInfo { dtype, shape: tensor.dims.clone(), data_offsets: (offset, end) };
        header.push_str(&format!(",{}:{}", json(name), json(&info)));
        offset = end;
    }
    header.push('}');
    // Data start at a multiple of 8.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for (name, tensor) in tensors.iter() {
        match stored_type(name, tensor) {
            Dtype::I64 => tensor.values.iter().try_for_each(|&v| out.write_all(&(v as i64).to_le_bytes()))?,
            _ => tensor.values.iter().try_for_each(|&v| out.write_all(&v.to_le_bytes()))?,
        }
    }
    Ok(())
}

/// Counters are integers, as in the reference's files.
fn stored_type(name: &str, tensor: &NamedTensor) -> Dtype {
    if tensor.dims.is_empty() && name.ends_with("num_batches_tracked") { Dtype::I64 } else { Dtype::F32 }
}

/// Reads a weight file; half-precision, double and integer tensors become f32.
///
/// # Errors
/// [`ModelError::Truncated`] says how many bytes are there; [`ModelError::Format`] and
/// [`ModelError::Version`] what is wrong with the content.
pub fn load(path: &Path) -> Result<Weights> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let format = |message: String| ModelError::Format { path: path.to_owned(), message };
    let file = File::open(path).map_err(io)?;
    let have = file.metadata().map_err(io)?.len();
    let truncated = |need| ModelError::Truncated { path: path.to_owned(), have, need };
    if have < 8 {
        return Err(truncated(8));
    }
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut length = [0; 8];
    reader.read_exact(&mut length).map_err(io)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(format("it does not start as a safetensors file does".into()));
    }
    if have < 8 + length {
        return Err(truncated(8 + length));
    }
    let mut header = vec![0; length as usize];
    reader.read_exact(&mut header).map_err(io)?;
    let header: Metadata = serde_json::from_slice(&header).map_err(|e| format(format!("header: {e}")))?;
    let need = 8 + length + header.data_len() as u64;
    if have < need {
        return Err(truncated(need));
    }
    if have > need {
        return Err(format(format!("{} bytes follow its {need}", have - need)));
    }
    let names = header.offset_keys();
    if names.len() > MAX_TENSORS {
        return Err(format(format!("{} tensors, at most {MAX_TENSORS}", names.len())));
    }
    let meta = match header.metadata() {
        Some(texts) => WeightsMeta::from_texts(texts, path)?,
        None => None,
    };
    let mut tensors = NamedTensors::new();
    let mut raw = Vec::new();
    for name in names {
        let info = header.info(&name).expect("offset_keys lists the header's own names");
        raw.resize(info.data_offsets.1 - info.data_offsets.0, 0);
        reader.read_exact(&mut raw).map_err(io)?;
        let values = widen(&raw, info.dtype)
            .ok_or_else(|| format(format!("tensor {name} has the type {:?}, which no weights have", info.dtype)))?;
        tensors.insert(name, info.shape.clone(), values)?;
    }
    Ok(Weights { tensors, meta })
}

fn widen(raw: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F32 => raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F64 => raw.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        Dtype::F16 => raw.as_chunks::<2>().0.iter().map(|b| half(u16::from_le_bytes(*b))).collect(),
        Dtype::BF16 => {
            raw.as_chunks::<2>().0.iter().map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)).collect()
        }
        Dtype::I32 => raw.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
        Dtype::I64 => raw.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as f32).collect(),
        _ => return None,
    })
}

/// An IEEE half-precision number.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10) & 31, u32::from(bits & 0x3FF));
    match exponent {
        // Subnormal: fraction * 2^-24, exact in f32.
        0 => f32::from_bits(sign | (fraction as f32 / (1u32 << 24) as f32).to_bits()),
        31 => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Writes through a temporary file in the same folder.
fn replace_file(path: &Path, content: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".writing-").suffix(".safetensors");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any other new file: the user's mask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder)?;
    {
        let mut out = BufWriter::with_capacity(1 << 20, file.as_file_mut());
        content(&mut out)?;
        out.flush()?;
    }
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    // The rename itself is durable once the folder is synced; not every system can.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_numbers_are_read_exactly() {
        let cases =
            [(0x3C00, 1.0), (0xC000, -2.0), (0x7BFF, 65504.0), (0x0400, 6.103_515_6e-5), (0x0001, 5.960_464_5e-8)];
        for (bits, want) in cases {
            assert_eq!(half(bits), want, "{bits:#06x}");
        }
        assert_eq!(half(0x8000).to_bits(), (-0.0f32).to_bits());
        assert!(half(0x7E00).is_nan());
        assert_eq!(half(0xFC00), f32::NEG_INFINITY);
    }
}
