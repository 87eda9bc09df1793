//! What is left of a file, and beside it, after a write that went well or failed.

use std::fs;
use std::io::{self, SeekFrom};
use std::path::Path;

use files::{write_atomic, write_bytes_atomic};

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
fn a_writer_can_go_back_and_fill_in_a_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.bin");
    write_atomic(&path, |sink| {
        sink.write_all(b"????content")?;
        sink.seek(SeekFrom::Start(0))?;
        sink.write_all(b"0011")
    })
    .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"0011content");
}
