//! Atomic writes, run folders, output names.

use std::fs;
use std::path::Path;

use report::Error;
use report::atomic::{write_atomic, write_bytes_atomic};
use report::output_names::OutputNames;
use report::run_folder::create_run_folder;

#[test]
fn a_failed_write_is_this_crates_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none/a.bin");
    for outcome in [write_bytes_atomic(&path, b"x"), write_atomic(&path, |w| w.write_all(b"x"))] {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Io { action: "create a temporary file for", path: p, .. } if *p == path));
    }
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
