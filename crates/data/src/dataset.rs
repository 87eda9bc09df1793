//! The data YAML: where the images are and what the classes are called.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;

use crate::error::DataError;
use crate::labels::utf16_reason;

/// A part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    Val,
    Test,
}

impl Split {
    /// The key in the data YAML.
    pub fn key(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

/// A data YAML, with every path absolute or relative to the current folder and known to exist.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The file itself.
    pub yaml: PathBuf,
    /// `path:` resolved against the YAML's folder.
    pub root: PathBuf,
    /// Class names; their number is the number of classes.
    pub names: Vec<String>,
    /// Things worth telling the user.
    pub notes: Vec<String>,
    train: Vec<PathBuf>,
    val: Vec<PathBuf>,
    test: Vec<PathBuf>,
}

impl Dataset {
    /// Reads a data YAML.
    pub fn load(yaml: &Path) -> Result<Self, DataError> {
        let bytes = crate::decode::read_file(yaml)?;
        Self::parse(yaml, &bytes)
    }

    /// Number of classes.
    pub fn nc(&self) -> usize {
        self.names.len()
    }

    /// Folders and list files of a split.
    pub fn split(&self, split: Split) -> Result<&[PathBuf], DataError> {
        let places = match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
            Split::Test => &self.test,
        };
        if places.is_empty() {
            return Err(DataError::MissingSplit { yaml: self.yaml.clone(), split: split.key() });
        }
        Ok(places)
    }

    /// Whether the YAML names this split.
    pub fn has(&self, split: Split) -> bool {
        self.split(split).is_ok()
    }

    fn parse(yaml: &Path, bytes: &[u8]) -> Result<Self, DataError> {
        let fail = |line: Option<usize>, reason: String, hint: Option<&str>| DataError::Yaml {
            path: yaml.to_path_buf(),
            line,
            reason,
            hint: hint.map(str::to_string),
        };
        if let Some(reason) = utf16_reason(bytes) {
            return Err(fail(None, reason, Some("in Notepad: Save as, encoding UTF-8")));
        }
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = bytes[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count() + 1;
            fail(Some(line), "the text is not UTF-8".to_string(), Some("save the file as UTF-8"))
        })?;
        // YAML 1.1 words such as `no` and `on` are class names here, never truth values.
        let options = serde_saphyr::options! { strict_booleans: true };
        let raw: RawDataset = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
            let line = e.location().and_then(|l| usize::try_from(l.line()).ok()).filter(|&l| l > 0);
            fail(
                line,
                yaml_reason(&e),
                Some("expected keys: path, train, val, names (a list, or a map from id to name)"),
            )
        })?;
        let mut notes = Vec::new();
        let names = names_of(&raw, &mut notes).map_err(|(line, reason)| fail(line, reason, None))?;
        if names.is_empty() {
            return Err(fail(None, "'names:' is missing".into(), Some("add for instance `names: [cat, dog]`")));
        }
        let folder = yaml.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let root = match &raw.path {
            None => folder.to_path_buf(),
            Some(path) => {
                let root = folder.join(&path.value.0);
                if !root.is_dir() {
                    return Err(DataError::MissingPath {
                        yaml: yaml.to_path_buf(),
                        line: line_of(path),
                        key: "path",
                        looked_for: root,
                        hint: Some(format!("`path` is relative to the folder of the data YAML, {}", folder.display())),
                    });
                }
                root
            }
        };
        let has_download = raw.download.is_some();
        let mut resolve = |key: &'static str, places: &Option<Spanned<Places>>| -> Result<Vec<PathBuf>, DataError> {
            let Some(places) = places else { return Ok(Vec::new()) };
            places
                .value
                .0
                .iter()
                .map(|place| {
                    let wanted = root.join(place);
                    if wanted.exists() {
                        return Ok(wanted);
                    }
                    // Exports of annotation services write ../train/images although the folder lies beside the YAML.
                    if let Some(inside) = place.strip_prefix("../").map(|p| root.join(p)).filter(|p| p.exists()) {
                        notes.push(format!("{key}: {place} does not exist, {} is used", inside.display()));
                        return Ok(inside);
                    }
                    let hint = if has_download {
                        "`download:` is never run; fetch the data yourself".to_string()
                    } else {
                        format!("`{key}` is relative to `path` ({})", root.display())
                    };
                    let line = line_of(places);
                    Err(DataError::MissingPath {
                        yaml: yaml.to_path_buf(),
                        line,
                        key,
                        looked_for: wanted,
                        hint: Some(hint),
                    })
                })
                .collect()
        };
        let train = resolve("train", &raw.train)?;
        let val = resolve("val", &raw.val)?;
        let test = resolve("test", &raw.test)?;
        if train.is_empty() && val.is_empty() && test.is_empty() {
            return Err(fail(None, "neither 'train:' nor 'val:' nor 'test:' is given".into(), None));
        }
        Ok(Self { yaml: yaml.to_path_buf(), root, names, notes, train, val, test })
    }
}

/// What is wrong with the text, in words that need no knowledge of the parser.
fn yaml_reason(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as E;
    match error.without_snippet() {
        E::AliasError { error, .. } => yaml_reason(error),
        E::DuplicateMappingKey { key: Some(key), .. } => format!("the key '{key}' is given twice"),
        E::DuplicateMappingKey { .. } => "a key is given twice".to_string(),
        E::RecursiveReferencesRequireWeakTypes { .. } => "an alias (*name) leads back to itself".to_string(),
        E::UnknownAnchor { .. } => "an alias (*name) has no anchor (&name)".to_string(),
        E::Budget { .. }
        | E::AliasReplayCounterOverflow { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => {
            "the text is too large or nested too deep for a data YAML".to_string()
        }
        E::MultipleDocuments { .. } => "there is more than one document (`---`) in the file".to_string(),
        E::Eof { .. } => "the file is empty".to_string(),
        E::Unexpected { expected: "mapping start", .. } => "expected a mapping with keys".to_string(),
        E::SerdeInvalidType { unexpected, expected, .. } | E::SerdeInvalidValue { unexpected, expected, .. } => {
            let found = match unexpected.as_str() {
                "unit value" | "Option value" => "nothing",
                "map" => "a mapping",
                "sequence" => "a list",
                other => other,
            };
            let expected = if expected.starts_with("struct") { "a mapping with keys" } else { expected.as_str() };
            format!("expected {expected}, found {found}")
        }
        other => {
            let message = other.to_string();
            let first = message.lines().next().unwrap_or("not valid YAML");
            // The place is said with the file.
            first.split(" at line ").next().unwrap_or(first).to_string()
        }
    }
}

fn line_of<T>(at: &Spanned<T>) -> Option<usize> {
    usize::try_from(at.referenced.line()).ok().filter(|&l| l > 0)
}

fn names_of(raw: &RawDataset, notes: &mut Vec<String>) -> Result<Vec<String>, (Option<usize>, String)> {
    let declared = match &raw.nc {
        None => None,
        Some(nc) => match nc.value.0.parse::<usize>() {
            Ok(n) if (1..=MAX_CLASSES).contains(&n) => Some(n),
            _ if is_above(&nc.value.0, MAX_CLASSES) => {
                return Err((line_of(nc), format!("nc: {} classes are too many (limit {MAX_CLASSES})", nc.value.0)));
            }
            _ => return Err((line_of(nc), format!("nc: {:?} is not a number of classes", nc.value.0))),
        },
    };
    let Some(names) = &raw.names else {
        return Ok(declared.map(|n| (0..n).map(|i| format!("class{i}")).collect()).unwrap_or_default());
    };
    let line = line_of(names);
    let list = match &names.value {
        Names::List(list) => list.clone(),
        Names::Map(entries) => {
            let mut slots: Vec<Option<String>> = Vec::new();
            for (key, name) in entries {
                if is_above(key.trim(), MAX_CLASSES - 1) {
                    return Err((line, format!("names: id {} is too large (limit {})", key.trim(), MAX_CLASSES - 1)));
                }
                let id = key
                    .trim()
                    .parse::<usize>()
                    .ok()
                    .filter(|&i| i < MAX_CLASSES)
                    .ok_or_else(|| (line, format!("names: key {key:?} is not a class id (0, 1, 2, ...)")))?;
                if slots.len() <= id {
                    slots.resize(id + 1, None);
                }
                if slots[id].replace(name.clone()).is_some() {
                    return Err((line, format!("names: id {id} is given twice")));
                }
            }
            let gaps: Vec<usize> = (0..slots.len()).filter(|&i| slots[i].is_none()).collect();
            if !gaps.is_empty() {
                let shown: Vec<String> = gaps.iter().take(10).map(usize::to_string).collect();
                notes.push(format!(
                    "names: {} ids have no name ({}{}); they are called class<id> and count as classes",
                    gaps.len(),
                    shown.join(", "),
                    if gaps.len() > 10 { ", ..." } else { "" }
                ));
            }
            slots.into_iter().enumerate().map(|(i, n)| n.unwrap_or_else(|| format!("class{i}"))).collect()
        }
    };
    if list.len() > MAX_CLASSES {
        return Err((line, format!("names: {} classes are too many (limit {MAX_CLASSES})", list.len())));
    }
    if let Some(nc) = declared.filter(|&n| n != list.len()) {
        notes.push(format!("nc: {nc} is ignored, names has {} classes", list.len()));
    }
    Ok(list)
}

/// Whether a text is a whole number above `limit`.
fn is_above(text: &str, limit: usize) -> bool {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits && text.parse::<usize>().map_or(true, |n| n > limit)
}

/// More classes than this are taken for a mistake in the file.
const MAX_CLASSES: usize = 100_000;

#[derive(Deserialize)]
struct RawDataset {
    path: Option<Spanned<Text>>,
    train: Option<Spanned<Places>>,
    val: Option<Spanned<Places>>,
    test: Option<Spanned<Places>>,
    names: Option<Spanned<Names>>,
    nc: Option<Spanned<Text>>,
    download: Option<de::IgnoredAny>,
}

/// A scalar as it would be said: numbers and truth values are text here (digits are good class names).
#[derive(Clone, Debug)]
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl Visitor<'_> for TextVisitor {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a single value (a name, a number or a path)")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Text, E> {
                Ok(Text(v.to_string()))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Text, E> {
                Ok(Text(v.to_string()))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Text, E> {
                Ok(Text(v.to_string()))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Text, E> {
                Ok(Text(v.to_string()))
            }
            fn visit_bool<E: de::Error>(self, v: bool) -> Result<Text, E> {
                Ok(Text(v.to_string()))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// One path or a list of paths; nothing (`test:` with no value) is an empty list.
#[derive(Debug)]
struct Places(Vec<String>);

impl<'de> Deserialize<'de> for Places {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlacesVisitor;
        impl<'de> Visitor<'de> for PlacesVisitor {
            type Value = Places;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a folder, a list file, or a list of those")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Places, E> {
                Ok(Places(if v.trim().is_empty() { Vec::new() } else { vec![v.trim().to_string()] }))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Places, E> {
                Ok(Places(vec![v.to_string()]))
            }
            fn visit_unit<E: de::Error>(self) -> Result<Places, E> {
                Ok(Places(Vec::new()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Places, A::Error> {
                let mut out = Vec::new();
                while let Some(Text(place)) = seq.next_element()? {
                    out.push(place);
                }
                Ok(Places(out))
            }
        }
        deserializer.deserialize_any(PlacesVisitor)
    }
}

#[derive(Debug)]
enum Names {
    List(Vec<String>),
    Map(Vec<(String, String)>),
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamesVisitor;
        impl<'de> Visitor<'de> for NamesVisitor {
            type Value = Names;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list or a mapping of class names")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Names, E> {
                Ok(Names::List(vec![v.to_string()]))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Names, E> {
                Ok(Names::List(vec![v.to_string()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Names, A::Error> {
                let mut out = Vec::new();
                while let Some(Text(name)) = seq.next_element()? {
                    out.push(name);
                }
                Ok(Names::List(out))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut out = Vec::new();
                while let Some((Text(key), Text(name))) = map.next_entry()? {
                    out.push((key, name));
                }
                Ok(Names::Map(out))
            }
        }
        deserializer.deserialize_any(NamesVisitor)
    }
}
