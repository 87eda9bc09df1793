//! Pipes, colours and terminals.

use crate::harness::{Place, ran};
use std::process::Stdio;

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = Place::new();
    let mut command = place.command(&["info", "yolov9-s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

/// `/dev/full` is a device of Linux.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error() {
    let place = Place::new();
    for args in [["info", "yolov9-t"].as_slice(), &["--help"], &["info", "--help"], &["--version"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = place.command(args);
        let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write to stdout: "), "{args:?}: {stderr}");
    }
}

#[test]
fn colours_appear_only_where_they_are_wanted() {
    let place = Place::new();
    let with = |variables: &[(&str, &str)]| {
        let mut command = place.command(&["info", "no-such-model"]);
        command.envs(variables.iter().copied());
        ran(command).stderr
    };
    assert!(with(&[]).starts_with("error: "), "no terminal, no colours");
    assert!(with(&[("CLICOLOR_FORCE", "1")]).starts_with("\u{1b}["), "asked for");
    assert!(with(&[("NO_COLOR", "1")]).starts_with("error: "), "refused");
}
