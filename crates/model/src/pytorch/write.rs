//! State dicts as PyTorch writes them: a zip archive of uncompressed entries, each storage at a multiple of 64 bytes.
//!
//! The pickle uses no more than what `torch.load(.., weights_only=True)` admits: an `OrderedDict` of tensors made
//! by `_rebuild_tensor_v2`, each with a storage of its own.

use crate::error::{ModelError, Result};
use crate::state::{NamedTensor, NamedTensors};
use crate::weights::{check_half, is_counter};
use files::Sink;
use std::io::Write;
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// Folder of the entries. PyTorch takes the file's stem; a fixed name keeps equal content equal.
const ROOT: &str = "archive";
/// Multiple at which PyTorch lets storages start.
const ALIGNMENT: u16 = 64;

/// Writes `tensors` as a PyTorch state dict, whole or not at all: f32, or with `half` f16 (rounded to nearest,
/// ties to even); counters of batches are int64. Equal content gives equal bytes.
///
/// # Errors
/// [`ModelError::Tensor`] where `half` cannot hold a value; [`ModelError::Io`] names the file.
pub fn save_state_dict(path: &Path, tensors: &NamedTensors, half: bool) -> Result<()> {
    if half {
        check_half(tensors)?;
    }
    files::write_atomic(path, |sink| write(sink, tensors, half).map_err(std::io::Error::other))
        .map_err(|e| ModelError::Io { path: e.path, source: e.source })
}

fn write(sink: &mut dyn Sink, tensors: &NamedTensors, half: bool) -> zip::result::ZipResult<()> {
    let mut zip = ZipWriter::new(sink);
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .with_alignment(ALIGNMENT);
    let mut digest = crc32fast::Hasher::new();
    let mut entry = |name: &str, bytes: &[u8]| -> zip::result::ZipResult<()> {
        let large = bytes.len() as u64 >= u64::from(u32::MAX);
        zip.start_file(format!("{ROOT}/{name}"), options.large_file(large))?;
        digest.update(bytes);
        Ok(zip.write_all(bytes)?)
    };
    entry("data.pkl", &pickle(tensors, half))?;
    entry(".format_version", b"1")?;
    entry(".storage_alignment", ALIGNMENT.to_string().as_bytes())?;
    entry("byteorder", b"little")?;
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        entry(&format!("data/{i}"), &raw(Kind::of(name, tensor, half), tensor))?;
    }
    entry("version", b"3\n")?;
    // Forty digits that stand for the content.
    let id = format!("{:020}{:020}", tensors.len(), digest.finalize());
    zip.start_file(format!("{ROOT}/.data/serialization_id"), options)?;
    zip.write_all(id.as_bytes())?;
    zip.finish()?.flush()?;
    Ok(())
}

/// What the numbers of a tensor are written as.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Float,
    Half,
    Long,
}

impl Kind {
    fn of(name: &str, tensor: &NamedTensor, half: bool) -> Self {
        match (is_counter(name, tensor), half) {
            (true, _) => Kind::Long,
            (false, true) => Kind::Half,
            (false, false) => Kind::Float,
        }
    }
}

fn raw(kind: Kind, tensor: &NamedTensor) -> Vec<u8> {
    let values = tensor.values.iter();
    match kind {
        Kind::Float => values.flat_map(|v| v.to_le_bytes()).collect(),
        Kind::Half => values.flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        Kind::Long => values.flat_map(|v| (*v as i64).to_le_bytes()).collect(),
    }
}

/// Opcodes of protocol 2.
fn pickle(tensors: &NamedTensors, half: bool) -> Vec<u8> {
    let mut out = Pickler { bytes: vec![0x80, 2], kept: Vec::new() };
    out.global("collections", "OrderedDict");
    out.bytes.extend(b")R(");
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        out.text(name);
        out.global("torch._utils", "_rebuild_tensor_v2");
        // (storage, offset, size, strides, needs a gradient, hooks), the storage by reference.
        out.bytes.extend(b"((");
        out.text("storage");
        out.global(
            "torch",
            match Kind::of(name, tensor, half) {
                Kind::Float => "FloatStorage",
                Kind::Half => "HalfStorage",
                Kind::Long => "LongStorage",
            },
        );
        out.text(&i.to_string());
        out.text("cpu");
        out.int(tensor.values.len());
        out.bytes.extend(b"tQ");
        out.int(0);
        out.tuple(&tensor.dims);
        out.tuple(&strides(&tensor.dims));
        out.bytes.push(0x89);
        out.global("collections", "OrderedDict");
        out.bytes.extend(b")RtR");
    }
    out.bytes.extend(b"u.");
    out.bytes
}

/// Strides of a row-major tensor, in elements.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis].max(1);
    }
    strides
}

struct Pickler {
    bytes: Vec<u8>,
    /// Classes written before, which are then referred to.
    kept: Vec<(&'static str, &'static str)>,
}

impl Pickler {
    fn global(&mut self, module: &'static str, name: &'static str) {
        match self.kept.iter().position(|&k| k == (module, name)) {
            Some(i) => self.bytes.extend([b'h', i as u8]),
            None => {
                self.bytes.extend(format!("c{module}\n{name}\n").into_bytes());
                self.bytes.extend([b'q', self.kept.len() as u8]);
                self.kept.push((module, name));
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        self.bytes.extend((text.len() as u32).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn int(&mut self, value: usize) {
        match value {
            0..=0xFF => self.bytes.extend([b'K', value as u8]),
            _ if value <= i32::MAX as usize => {
                self.bytes.push(b'J');
                self.bytes.extend((value as i32).to_le_bytes());
            }
            // LONG1: the ninth byte is the sign's.
            _ => {
                self.bytes.extend([0x8a, 9]);
                self.bytes.extend((value as u64).to_le_bytes());
                self.bytes.push(0);
            }
        }
    }

    fn tuple(&mut self, values: &[usize]) {
        self.bytes.push(b'(');
        values.iter().for_each(|&v| self.int(v));
        self.bytes.push(b't');
    }
}
