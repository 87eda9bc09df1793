//! Files written whole or not at all, as in crate [`files`], with this crate's errors.

use std::io::{self, Write};
use std::path::Path;

use crate::error::Result;

/// See [`files::write_atomic`].
///
/// # Errors
/// [`crate::Error::Io`] with the path and the step that failed; the parent folder must exist.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    Ok(files::write_atomic(path, |sink| write(sink))?)
}

/// See [`files::write_bytes_atomic`].
///
/// # Errors
/// As [`write_atomic`].
pub fn write_bytes_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    Ok(files::write_bytes_atomic(path, bytes)?)
}
