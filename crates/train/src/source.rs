//! What `--source` means: an image, a folder, or a pattern.

use crate::{Observer, TrainError};
use data::listing::IMAGE_SUFFIXES;
use std::path::{Path, PathBuf};

/// Images of a source in the order of their names.
///
/// An existing path wins over a pattern, so that folders with brackets in their names work.
///
/// # Errors
/// Nothing there, or a source of a kind that is not supported.
pub(crate) fn images_of(source: &str, observer: &mut dyn Observer) -> Result<Vec<PathBuf>, TrainError> {
    let path = Path::new(source);
    let missing = |what: &'static str, hint: &str| TrainError::Missing {
        what,
        path: path.to_path_buf(),
        hint: Some(hint.to_owned()),
    };
    if source.trim().is_empty() {
        return Err(TrainError::option(
            "source",
            "is empty",
            Some("an image, a folder of images, or a pattern with *"),
        ));
    }
    if path.is_file() {
        return Ok(vec![path.to_path_buf()]);
    }
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(TrainError::io("list", path))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
        files.sort();
        let total = files.len();
        files.retain(|p| has_image_suffix(p));
        if files.is_empty() {
            let hint = format!("folders inside are not searched; images end in one of: {}", IMAGE_SUFFIXES.join(", "));
            return Err(TrainError::option("source", format!("the folder {source} holds no image"), Some(&hint)));
        }
        if files.len() < total {
            observer.info(&format!("{source}: {} files that are no images are passed over", total - files.len()));
        }
        return Ok(files);
    }
    if source.contains("://") || source.parse::<u32>().is_ok() || source.starts_with("screen") {
        let message = format!("{source}: web addresses, cameras and screens are not supported yet");
        return Err(TrainError::option("source", message, Some("an image, a folder of images, or a pattern with *")));
    }
    if source.contains(['*', '?', '[']) {
        let found = glob::glob(source).map_err(|e| TrainError::option("source", format!("{source}: {e}"), None))?;
        let mut files: Vec<PathBuf> = found.flatten().filter(|p| p.is_file() && has_image_suffix(p)).collect();
        files.sort();
        return match files.is_empty() {
            true => Err(TrainError::option(
                "source",
                format!("no image matches {source}"),
                Some("check the folder and the suffix"),
            )),
            false => Ok(files),
        };
    }
    Err(missing("the source", "give an image, a folder of images, or a pattern with * in quotes"))
}

fn has_image_suffix(path: &Path) -> bool {
    let suffix = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    IMAGE_SUFFIXES.contains(&suffix.as_str())
}
