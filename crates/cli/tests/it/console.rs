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
