//! Folders of runs: `runs/train/exp`, then `exp2`, `exp3`, …

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// Creates the folder of a run below `project` and returns it: `project/name`, or when that exists `project/name2`, `name3`, … With
/// `exist_ok` an existing `project/name` is used as it is. Missing parents are created. Two runs started at once get two folders.
///
/// # Errors
/// [`Error::BadRunName`] for a name that is empty or holds `..`, [`Error::NotAFolder`] with `exist_ok` when a file has that name,
/// [`Error::Io`] otherwise.
pub fn create_run_folder(project: &Path, name: &str, exist_ok: bool) -> Result<PathBuf> {
    let mut parts = Path::new(name).components().peekable();
    if name.trim().is_empty()
        || parts.peek().is_none()
        || parts.any(|c| matches!(c, Component::ParentDir | Component::CurDir))
    {
        return Err(Error::BadRunName { name: name.to_owned() });
    }
    let first = project.join(name);
    if let Some(parent) = first.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
    }
    // The number follows the last letter of the name, also where it ends in a slash.
    let stem = first.file_name().map(|n| n.to_owned()).ok_or_else(|| Error::BadRunName { name: name.to_owned() })?;
    let mut number = 1_u64;
    loop {
        let mut file_name = stem.clone();
        if number > 1 {
            file_name.push(number.to_string());
        }
        let folder = first.with_file_name(file_name);
        // create_dir fails when the name is taken: that makes look and creation one step.
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                if exist_ok {
                    return if folder.is_dir() { Ok(folder) } else { Err(Error::NotAFolder { path: folder }) };
                }
                number += 1;
            }
            Err(source) => return Err(Error::Io { action: "create the folder", path: folder, source }),
        }
    }
}
