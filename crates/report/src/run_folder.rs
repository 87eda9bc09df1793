//! Folders of runs: `runs/train/exp`, then `exp2`, `exp3`, …

use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// Longest part of a name in bytes: file systems allow 255, and a number may be appended.
const MAX_NAME: usize = 200;
/// Longest name in bytes with the folders in it: systems allow 4096 for a whole path, some less.
const MAX_PATH: usize = 1000;

/// Refuses names that cannot be a folder below the project: empty ones, `.` and `..`, absolute ones, ones with control characters and ones that
/// are too long. Names inside of a folder, such as `sub/exp`, are fine.
///
/// # Errors
/// [`Error::BadRunName`] with the reason.
pub fn check_run_name(name: &str) -> Result<()> {
    let refuse = |reason| Err(Error::BadRunName { name: name.chars().take(60).collect(), reason });
    if name.trim().is_empty() {
        return refuse("it is empty");
    }
    if name.len() > MAX_PATH {
        return refuse("it is longer than 1000 bytes");
    }
    if name.chars().any(char::is_control) {
        return refuse("it holds a control character");
    }
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) if part.len() > MAX_NAME => return refuse("it is longer than 200 bytes"),
            Component::Normal(_) => {}
            Component::CurDir | Component::ParentDir => return refuse("it holds . or .."),
            Component::RootDir | Component::Prefix(_) => return refuse("it is an absolute path"),
        }
    }
    Ok(())
}

/// Creates the folder of a run below `project` and returns it: `project/name`, or when that exists `project/name2`, `name3`, … With
/// `exist_ok` an existing `project/name` is used as it is. Missing parents are created. Two runs started at once get two folders.
///
/// # Errors
/// [`Error::BadRunName`] as [`check_run_name`], [`Error::NotAFolder`] with `exist_ok` when a file has that name,
/// [`Error::Io`] otherwise.
pub fn create_run_folder(project: &Path, name: &str, exist_ok: bool) -> Result<PathBuf> {
    check_run_name(name)?;
    let first = project.join(name);
    if let Some(parent) = first.parent() {
        fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))?;
    }
    // The number follows the last letter of the name, also where it ends in a slash.
    let stem = first
        .file_name()
        .map(|n| n.to_owned())
        .ok_or_else(|| Error::BadRunName { name: name.to_owned(), reason: "it names no folder" })?;
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
