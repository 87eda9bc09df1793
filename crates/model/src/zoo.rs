//! The embedded models and how a name finds one.

use crate::error::{ModelError, Result};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest model file read, in bytes.
pub const MAX_YAML_BYTES: u64 = 1 << 20;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        /// Name and text of every embedded model.
        pub const ZOO: &[(&str, &str)] = &[$(($name, include_str!(concat!("../zoo/", $name, ".yaml")))),*];
    };
}

embedded!(
    "yolov9-t", "yolov9-s", "yolov9-m", "yolov9-c", "yolov9-e", "gelan-t", "gelan-s", "gelan-m", "gelan-c", "gelan-e",
);

/// Where a model's description comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The zoo's file of this name.
    Embedded(&'static str),
    /// A file of the user.
    File(PathBuf),
    /// Text from elsewhere, such as a weight file; says from where.
    Text(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Embedded(name) => write!(f, "{name}.yaml (built in)"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Text(from) => f.write_str(from),
        }
    }
}

/// A model's description, found but not parsed.
#[derive(Clone, Debug)]
pub struct Found {
    /// File stem, such as `yolov9-s`.
    pub name: String,
    pub source: Source,
    pub text: String,
}

/// Finds a model: an existing file wins; otherwise the name, without folders and `.yaml`, is looked up
/// among the embedded ones.
///
/// # Errors
/// [`ModelError::UnknownModel`] lists the embedded names; [`ModelError::Io`] names a file that cannot be read.
pub fn find(cfg: &str) -> Result<Found> {
    let path = Path::new(cfg);
    let file = path.file_name().and_then(|s| s.to_str()).unwrap_or(cfg);
    let stem = file.strip_suffix(".yaml").or_else(|| file.strip_suffix(".yml")).unwrap_or(file);
    if path.is_file() {
        let text = read_text(path)?;
        return Ok(Found { name: stem.to_owned(), source: Source::File(path.to_owned()), text });
    }
    match ZOO.iter().find(|(name, _)| *name == stem) {
        Some(&(name, text)) => Ok(Found { name: name.into(), source: Source::Embedded(name), text: text.into() }),
        None => {
            let known = ZOO.iter().map(|z| z.0).collect::<Vec<_>>().join(", ");
            Err(ModelError::UnknownModel { name: cfg.to_owned(), known })
        }
    }
}

fn read_text(path: &Path) -> Result<String> {
    let io = |source| ModelError::Io { path: path.to_owned(), source };
    let yaml = |message: String| ModelError::Yaml { file: path.display().to_string(), message };
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(MAX_YAML_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_YAML_BYTES {
        return Err(yaml(format!("longer than {MAX_YAML_BYTES} bytes, this is no model description")));
    }
    String::from_utf8(bytes).map_err(|e| yaml(format!("not UTF-8 text: {e}")))
}
