//! The zip archive around a checkpoint: entries by name, read whole and checked against their checksums.

use super::pickle;
use super::value::shown;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use zip::{CompressionMethod, ZipArchive, result::ZipError};

/// Most entries of an archive.
const MAX_ENTRIES: usize = 1 << 18;

type Result<T> = std::result::Result<T, String>;

/// An open checkpoint.
pub(crate) struct Archive {
    zip: ZipArchive<BufReader<File>>,
    /// Folder of every entry, with its slash.
    root: String,
    /// Entries whose checksums have been verified.
    read: HashSet<usize>,
}

impl Archive {
    /// Opens an archive and refuses those that are no PyTorch file by what they look like.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| e.to_string())?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut zip = ZipArchive::new(BufReader::new(file)).map_err(|e| match e {
            ZipError::Io(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => e.to_string(),
            e => format!(
                "it starts as a zip archive does, but its directory cannot be read ({e}): it is cut short or damaged"
            ),
        })?;
        if zip.len() > MAX_ENTRIES {
            return Err(format!("a zip archive of {} entries, at most {MAX_ENTRIES} are read", zip.len()));
        }
        if zip.has_duplicate_names() {
            return Err("a zip archive with two entries of one name".into());
        }
        let root = root(&zip)?;
        let total = (0..zip.len()).try_fold(0u64, |sum, i| {
            let entry = zip.by_index_raw(i).map_err(|e| damaged(&format!("number {i}"), &e))?;
            if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
                let name = shown(&String::from_utf8_lossy(entry.name_raw()));
                return Err(format!(
                    "a zip archive whose entry {name} is compressed or encrypted, which PyTorch's files are not"
                ));
            }
            Ok::<_, String>(sum.saturating_add(entry.size().max(entry.compressed_size())))
        })?;
        if total > length {
            return Err(format!("its entries claim {total} bytes, the file has {length}"));
        }
        let mut archive = Self { zip, root, read: HashSet::new() };
        if let Some(order) = archive.entry("byteorder", 16)?
            && order.trim_ascii() != b"little"
        {
            let order = shown(&String::from_utf8_lossy(&order));
            return Err(format!(
                "its numbers are '{order}'-endian, only little-endian files are read\n  hint: load it with PyTorch on \
                 the machine that wrote it and save it as safetensors"
            ));
        }
        Ok(archive)
    }

    /// The pickle that describes the content.
    pub fn pickle(&mut self) -> Result<Vec<u8>> {
        Ok(self.entry("data.pkl", pickle::MAX_BYTES)?.expect("found while opening"))
    }

    /// Bytes of a storage, or `None` where there is none of this key.
    pub fn storage_size(&self, key: &str) -> Option<u64> {
        let index = self.zip.index_for_name(&format!("{}data/{key}", self.root))?;
        self.zip.by_index_data(index).ok().map(|entry| entry.size())
    }

    /// A storage.
    pub fn storage(&mut self, key: &str) -> Result<Vec<u8>> {
        let name = format!("data/{key}");
        self.entry(&name, u64::MAX)?.ok_or_else(|| format!("its entry {} is missing", shown(&name)))
    }

    /// Verifies the checksums of entries that were not needed: damage anywhere is worth an error.
    pub fn verify_rest(&mut self) -> Result<()> {
        for index in (0..self.zip.len()).filter(|i| !self.read.contains(i)) {
            let mut entry = self.zip.by_index(index).map_err(|e| damaged(&format!("number {index}"), &e))?;
            let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
            std::io::copy(&mut entry, &mut std::io::sink()).map_err(|e| damaged(&name, &e))?;
        }
        Ok(())
    }

    fn entry(&mut self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(index) = self.zip.index_for_name(&format!("{}{name}", self.root)) else { return Ok(None) };
        let mut entry = self.zip.by_index(index).map_err(|e| damaged(name, &e))?;
        let size = entry.size();
        if size > limit {
            return Err(format!("its entry {} has {size} bytes, at most {limit} are read", shown(name)));
        }
        // No more than the file holds: the sum of all sizes was checked.
        let mut bytes = Vec::with_capacity(size as usize);
        entry.by_ref().take(size + 1).read_to_end(&mut bytes).map_err(|e| damaged(name, &e))?;
        if bytes.len() as u64 != size {
            return Err(format!("its entry {} has {} of {size} bytes: the file is damaged", shown(name), bytes.len()));
        }
        self.read.insert(index);
        Ok(Some(bytes))
    }
}

/// A checksum that does not match, or headers that do not.
fn damaged(name: &str, e: &dyn std::fmt::Display) -> String {
    format!("its entry {} cannot be read ({e}): the file is damaged", shown(name))
}

/// The folder that holds `data.pkl`.
fn root(zip: &ZipArchive<BufReader<File>>) -> Result<String> {
    let names: Vec<_> = zip.file_names_raw().map(String::from_utf8_lossy).collect();
    let mut roots = names
        .iter()
        .filter_map(|n| n.strip_suffix("data.pkl"))
        .filter(|folder| folder.is_empty() || folder.ends_with('/') && folder.matches('/').count() == 1);
    let root = match (roots.next(), roots.next()) {
        (Some(root), None) => root.to_owned(),
        (Some(_), Some(_)) => return Err("a zip archive with two data.pkl: no PyTorch file has two".into()),
        (None, _) => {
            let some = names.iter().take(3).map(|n| shown(n)).collect::<Vec<_>>().join(", ");
            let hint = match names.iter().find(|n| n.ends_with(".pt") || n.ends_with(".pth")) {
                Some(inner) => format!("\n  hint: unpack it and take {}", shown(inner)),
                None => String::new(),
            };
            return Err(format!("a zip archive without data.pkl ({some}): not a PyTorch file{hint}"));
        }
    };
    if names.iter().any(|n| n.strip_prefix(&root).is_some_and(|n| n.starts_with("code/") || n == "constants.pkl")) {
        return Err(
            "a TorchScript archive: a compiled program, not a checkpoint\n  hint: take the .pt file that it was \
                    exported from"
                .into(),
        );
    }
    Ok(root)
}
