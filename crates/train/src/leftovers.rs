//! The run's folder before anything is written: can it be written into, and did a killed run leave half files there.

use crate::TrainError;
use std::ffi::OsStr;
use std::path::Path;

/// Name of the file that is written to see whether a folder can be written into.
const PROBE: &str = ".yolov9-probe";

/// Refuses a folder that no file can be written into: better before the first epoch than after it.
pub(crate) fn check_writable(folder: &Path) -> Result<(), TrainError> {
    let probe = folder.join(PROBE);
    std::fs::write(&probe, [0]).map_err(TrainError::io("write into", folder))?;
    std::fs::remove_file(&probe).map_err(TrainError::io("write into", folder))
}

/// Removes temporary files that a killed run left in its folder and in `weights` below, and returns their number.
///
/// Only regular files go whose names this program gives to temporary files: `.NAME.xxxxxx.tmp` and
/// `.writing-xxxxxx.safetensors`, with six letters or digits for the `x`. What cannot be removed stays.
pub(crate) fn sweep(folder: &Path) -> usize {
    let mut removed = 0;
    for folder in [folder.to_path_buf(), folder.join("weights")] {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let ours = is_temporary(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file());
            removed += usize::from(ours && std::fs::remove_file(entry.path()).is_ok());
        }
    }
    removed
}

fn is_temporary(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    if name == PROBE {
        return true;
    }
    let random = |text: &str| text.len() == 6 && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if let Some(rest) = name.strip_prefix(".writing-") {
        return rest.strip_suffix(".safetensors").is_some_and(random);
    }
    let Some(rest) = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(".tmp")) else { return false };
    let Some((of, middle)) = rest.rsplit_once('.') else { return false };
    let extension = Path::new(of).extension().and_then(OsStr::to_str);
    random(middle) && extension.is_some_and(|e| ["safetensors", "yaml", "csv", "txt", "jpg", "json"].contains(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_files_of_this_program_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("weights")).unwrap();
        std::fs::create_dir(folder.path().join(".a.csv.AbCdEf.tmp")).unwrap();
        let ours =
            ["weights/.last.safetensors.a1B2c3.tmp", "weights/.writing-a1B2c3.safetensors", ".opt.yaml.zzzzzz.tmp"];
        let not_ours = [
            "weights/last.safetensors",
            "weights/.writing-abc.safetensors",
            "weights/.last.safetensors.tmp",
            "weights/writing-a1B2c3.safetensors",
            ".notes.a1B2c3.tmp",
            ".opt.yaml.a1B2-3.tmp",
            "results.csv",
        ];
        for name in ours.iter().chain(&not_ours) {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        check_writable(folder.path()).unwrap();
        assert_eq!(sweep(folder.path()), ours.len());
        assert!(ours.iter().all(|name| !folder.path().join(name).exists()));
        assert!(not_ours.iter().all(|name| folder.path().join(name).exists()));
        assert_eq!(sweep(&folder.path().join("nowhere")), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_into_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("weights");
        std::fs::write(&file, "a file where a folder should be").unwrap();
        let message = check_writable(&file).unwrap_err().to_string();
        assert!(message.starts_with("cannot write into ") && message.contains("weights"), "{message}");
    }
}
