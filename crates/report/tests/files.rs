//! Atomic writes, run folders, output names.

use std::fs;
use std::io;
use std::path::Path;

use report::Error;
use report::atomic::{write_atomic, write_bytes_atomic};
use report::output_names::OutputNames;
use report::run_folder::create_run_folder;

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_failed_write_keeps_the_old_file_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last.safetensors");
    write_bytes_atomic(&path, b"old weights").unwrap();
    let failed = write_atomic(&path, |w| {
        w.write_all(&vec![1; 1 << 20])?;
        Err(io::Error::new(io::ErrorKind::StorageFull, "no space left"))
    });
    let message = failed.unwrap_err().to_string();
    assert!(message.starts_with("cannot write ") && message.ends_with("no space left"), "{message}");
    assert_eq!(fs::read(&path).unwrap(), b"old weights");
    assert_eq!(entries(dir.path()), ["last.safetensors"]);
}

#[test]
fn a_panic_while_writing_keeps_the_old_file_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last.safetensors");
    write_bytes_atomic(&path, b"old weights").unwrap();
    let outcome = std::panic::catch_unwind(|| write_atomic(&path, |_| panic!("a bug in the writer")));
    assert!(outcome.is_err());
    assert_eq!(fs::read(&path).unwrap(), b"old weights");
    assert_eq!(entries(dir.path()), ["last.safetensors"]);
}

#[test]
fn the_new_file_replaces_the_old_one_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    write_bytes_atomic(&path, &[7; 300_000]).unwrap();
    write_bytes_atomic(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
}

#[test]
fn a_missing_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let message = write_bytes_atomic(&dir.path().join("none/a.bin"), b"x").unwrap_err().to_string();
    assert!(message.contains("none/a.bin") || message.contains("none\\a.bin"), "{message}");
}

#[test]
fn a_file_name_of_the_greatest_length_can_be_written() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["n".repeat(255), "陷".repeat(85)] {
        write_bytes_atomic(&dir.path().join(&name), b"x").unwrap();
    }
}

#[cfg(unix)]
#[test]
fn permissions_follow_the_umask_or_the_old_file_and_links_stay_links() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let (plain, path, link) = (dir.path().join("plain"), dir.path().join("real"), dir.path().join("link"));
    fs::write(&plain, b"").unwrap();
    write_bytes_atomic(&path, b"1").unwrap();
    assert_eq!(mode(&path), mode(&plain));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&path, &link).unwrap();
    write_bytes_atomic(&link, b"2").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&path).unwrap(), b"2");
    assert_eq!(mode(&path), 0o640);
}

#[test]
fn runs_are_numbered_and_exist_ok_uses_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("runs/train");
    let name = |path: std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let made: Vec<String> = (0..3).map(|_| name(create_run_folder(&project, "exp", false).unwrap())).collect();
    assert_eq!(made, ["exp", "exp2", "exp3"]);
    assert_eq!(name(create_run_folder(&project, "exp", true).unwrap()), "exp");
    assert_eq!(name(create_run_folder(&project, "new", true).unwrap()), "new");
    fs::remove_dir(project.join("exp2")).unwrap();
    assert_eq!(name(create_run_folder(&project, "exp", false).unwrap()), "exp2");
    assert_eq!(create_run_folder(&project, "sub/ä", false).unwrap(), project.join("sub").join("ä"));
}

#[test]
fn run_names_stay_inside_the_project() {
    let dir = tempfile::tempdir().unwrap();
    let long = "e".repeat(201);
    for name in
        ["", " ", "..", "../other", "a/../../b", ".", "/", "/elsewhere", "a\nb", "a\0", &long, &"deep/".repeat(201)]
    {
        assert!(matches!(create_run_folder(dir.path(), name, false), Err(Error::BadRunName { .. })), "{name:?}");
    }
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(matches!(create_run_folder(dir.path(), "file", true), Err(Error::NotAFolder { .. })));
    assert_eq!(create_run_folder(dir.path(), "file", false).unwrap(), dir.path().join("file2"));
}

#[test]
fn runs_started_at_once_get_folders_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let mut folders: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..8).map(|_| scope.spawn(|| create_run_folder(dir.path(), "exp", false).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    folders.sort();
    folders.dedup();
    assert_eq!(folders.len(), 8);
}

#[test]
fn sources_of_one_stem_get_outputs_of_their_own() {
    let mut names = OutputNames::default();
    let sources = ["d1/i.jpg", "d2/i.jpg", "d3/I.png", "i_2.jpg", "other.jpg", ""];
    let stems = sources.map(|s| names.assign(Path::new(s)));
    assert_eq!(stems.clone().map(|s| s.stem), ["i", "i_2", "I_3", "i_2_2", "other", "image"]);
    assert_eq!(stems.map(|s| s.renamed), [false, true, true, true, false, false]);
}
