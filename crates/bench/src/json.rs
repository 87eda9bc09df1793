//! Reports as files.

use crate::BenchError;
use serde::Serialize;
use std::path::Path;

/// Writes a report as JSON, whole or not at all.
///
/// # Errors
/// What the system says of the file.
pub(crate) fn write_json(path: &Path, report: &impl Serialize) -> Result<(), BenchError> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(files::write_bytes_atomic(path, text.as_bytes())?)
}
