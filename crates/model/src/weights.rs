//! Weight files: safetensors with the model's description beside its tensors. PyTorch's files are read, too.
//!
//! Tensors lie in the order of the state dict and a file's bytes depend only on its content. The metadata
//! are texts: `format` ([`FORMAT`]), `model`, `yaml`, `nc`, `strides` and `names` (JSON arrays), `folded`,
//! `crc32` (checksum over the bytes of all tensors, eight hexadecimal digits), and whatever else the writer adds.

use crate::error::{ModelError, Result};
use crate::model::Model;
use crate::number::Number;
use crate::pytorch;
use crate::state::{NamedTensor, NamedTensors};
use content::Content;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

mod content;

/// Version of the metadata that this program writes, and the newest that it reads.
pub const FORMAT: u64 = 1;
/// Key of the checksum.
const CRC32: &str = "crc32";
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
    /// `None` for files of other programs, except checkpoints whose pickled model is known here.
    pub meta: Option<WeightsMeta>,
    /// What was chosen or left out while reading, a line each, for the log.
    pub notes: Vec<String>,
}

impl WeightsMeta {
    /// The description of a model and its class names.
    pub fn of(model: &Model, names: Vec<String>, folded: bool) -> Self {
        let (name, yaml, strides) = (model.name.clone(), model.yaml.clone(), model.strides.clone());
        Self { model: name, yaml, nc: model.nc, strides, names, folded, extra: BTreeMap::new() }
    }

    fn to_texts(&self, crc32: u32) -> BTreeMap<String, String> {
        let mut texts = self.extra.clone();
        texts.extend([
            ("format".into(), FORMAT.to_string()),
            ("model".into(), self.model.clone()),
            ("yaml".into(), self.yaml.clone()),
            ("nc".into(), self.nc.to_string()),
            ("strides".into(), json(&self.strides)),
            ("names".into(), json(&self.names)),
            ("folded".into(), self.folded.to_string()),
            (CRC32.into(), format!("{crc32:08x}")),
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
        let known = ["format", "model", "yaml", "nc", "strides", "names", "folded", CRC32];
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

/// Writes a weight file whole or not at all (see [`files::write_atomic`]), so that a reader finds either the old
/// file or the new one.
///
/// # Errors
/// [`ModelError::Io`] names the file; the old one is left as it was.
pub fn save(path: &Path, tensors: &NamedTensors, meta: &WeightsMeta) -> Result<()> {
    save_as(path, tensors, meta, false)
}

/// [`save`], with `half` in half precision (rounded to nearest, ties to even).
///
/// # Errors
/// As [`save`]; [`ModelError::Tensor`] where `half` cannot hold a value.
pub fn save_as(path: &Path, tensors: &NamedTensors, meta: &WeightsMeta, half: bool) -> Result<()> {
    if half {
        check_half(tensors)?;
    }
    let float = if half { Dtype::F16 } else { Dtype::F32 };
    files::write_atomic(path, |out| write(out, tensors, meta, float))
        .map_err(|e| ModelError::Io { path: e.path, source: e.source })
}

/// Refuses values that half precision cannot hold.
pub(crate) fn check_half(tensors: &NamedTensors) -> Result<()> {
    for (name, tensor) in tensors.iter().filter(|(name, tensor)| !is_counter(name, tensor)) {
        let lost = |v: &&f32| v.is_finite() && half::f16::from_f32(**v).is_infinite();
        if let Some(value) = tensor.values.iter().find(lost) {
            let message = format!("{value} is beyond what half precision holds (65504)\n  hint: write full precision");
            return Err(ModelError::Tensor { name: name.to_owned(), message });
        }
    }
    Ok(())
}

fn write(out: &mut dyn Write, tensors: &NamedTensors, meta: &WeightsMeta, float: Dtype) -> std::io::Result<()> {
    // The checksum stands before what it is of: the tensors are gone through twice.
    let mut crc32 = crc32fast::Hasher::new();
    write_data(tensors, float, |bytes| {
        crc32.update(bytes);
        Ok(())
    })?;
    let mut header = format!("{{\"__metadata__\":{}", json(&meta.to_texts(crc32.finalize())));
    let mut offset = 0;
    for (name, tensor) in tensors.iter() {
        let dtype = if is_counter(name, tensor) { Dtype::I64 } else { float };
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
    write_data(tensors, float, |bytes| out.write_all(bytes))
}

/// Hands over the bytes of all tensors, piece by piece.
fn write_data(
    tensors: &NamedTensors,
    float: Dtype,
    mut piece: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    for (name, tensor) in tensors.iter() {
        let counter = is_counter(name, tensor);
        for values in tensor.values.chunks(1 << 14) {
            bytes.clear();
            match (counter, float) {
                (true, _) => bytes.extend(values.iter().flat_map(|&v| (v as i64).to_le_bytes())),
                (_, Dtype::F16) => bytes.extend(values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes())),
                _ => bytes.extend(values.iter().flat_map(|&v| v.to_le_bytes())),
            }
            piece(&bytes)?;
        }
    }
    Ok(())
}

/// Counters are integers, as in the reference's files.
pub(crate) fn is_counter(name: &str, tensor: &NamedTensor) -> bool {
    tensor.dims.is_empty() && name.ends_with("num_batches_tracked")
}

/// Reads a weight file; half-precision, double and integer tensors become f32.
///
/// The content decides, not the name: safetensors, or a zip archive of PyTorch: a state dict, a dict that has one
/// under `state_dict` or `model_state_dict`, or a checkpoint with whole pickled modules under `ema` (preferred) or
/// `model`. Of a module the description, the class names and the strides come along, so that `meta` is there as in
/// a file of this program; `extra` says which `part` was taken and holds `epochs`, `best_fitness` and `date` where
/// the checkpoint has them.
///
/// # Errors
/// [`ModelError::Truncated`] says how many bytes are there; [`ModelError::Damaged`] that a checksum does not match;
/// [`ModelError::Format`] and [`ModelError::Version`] what is wrong with the content, or what it looks like instead.
pub fn load(path: &Path) -> Result<Weights> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let format = |message: String| ModelError::Format { path: path.to_owned(), message };
    // Opening a pipe would wait for its other end.
    let about = std::fs::metadata(path).map_err(io)?;
    if !about.is_file() {
        return Err(format(format!("it is {}", if about.is_dir() { "a folder" } else { "no regular file" })));
    }
    let mut file = File::open(path).map_err(io)?;
    let mut start = Vec::new();
    (&file).take(content::START).read_to_end(&mut start).map_err(io)?;
    match content::recognise(&start) {
        Content::Safetensors => {}
        Content::Zip => return pytorch::load(path),
        Content::Other(message) => return Err(format(message)),
    }
    file.seek(SeekFrom::Start(0)).map_err(io)?;
    load_safetensors(path, file)
}

fn load_safetensors(path: &Path, file: File) -> Result<Weights> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let format = |message: String| ModelError::Format { path: path.to_owned(), message };
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
    let texts = header.metadata().as_ref();
    let meta = texts.map(|texts| WeightsMeta::from_texts(texts, path)).transpose()?.flatten();
    // Another program may mean something else by the key.
    let expected = texts.and_then(|texts| texts.get(CRC32)).filter(|_| meta.is_some());
    let mut tensors = NamedTensors::new();
    let mut crc32 = crc32fast::Hasher::new();
    let mut raw = Vec::new();
    for name in names {
        let info = header.info(&name).expect("offset_keys lists the header's own names");
        raw.resize(info.data_offsets.1 - info.data_offsets.0, 0);
        reader.read_exact(&mut raw).map_err(io)?;
        crc32.update(&raw);
        let number = number(info.dtype)
            .ok_or_else(|| format(format!("tensor {name} has the type {:?}, which no weights have", info.dtype)))?;
        tensors.insert(name, info.shape.clone(), number.widen(&raw))?;
    }
    if let Some(expected) = expected
        && *expected != format!("{:08x}", crc32.finalize())
    {
        let message = "its data do not match their checksum: the file is damaged".to_owned();
        return Err(ModelError::Damaged { path: path.to_owned(), message });
    }
    Ok(Weights { tensors, meta, notes: Vec::new() })
}

fn number(dtype: Dtype) -> Option<Number> {
    Some(match dtype {
        Dtype::F32 => Number::F32,
        Dtype::F64 => Number::F64,
        Dtype::F16 => Number::F16,
        Dtype::BF16 => Number::BF16,
        Dtype::I32 => Number::I32,
        Dtype::I64 => Number::I64,
        _ => return None,
    })
}
