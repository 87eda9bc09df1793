//! Files written whole or not at all: a temporary file in the same folder, fsync, rename, fsync of the folder.
//!
//! A full disk or a killed run therefore never destroys the older file of that name. A killed run can leave a
//! `.NAME.*.tmp` file behind. Beside it, the place of what can be made again: the user's cache folder.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct WriteError {
    /// The step that failed, such as `rename to`.
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl WriteError {
    fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self { action, path, source }
    }
}

/// Where the content goes: written from the start, with seeking for formats that fill in sizes afterwards.
pub trait Sink: Write + Seek {}

impl<T: Write + Seek> Sink for T {}

/// Writes `path` through `write`. The file appears under its name only after everything has reached the disk; when
/// `write` or the disk fails (or `write` panics), the old file is untouched and the temporary file is gone.
///
/// A symbolic link is followed, so that the file that it points to is replaced and the link stays. An older file's
/// permissions are kept.
///
/// # Errors
/// [`WriteError`] with the path and the step that failed; the parent folder must exist, and what has the path's name
/// already must be a regular file.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut dyn Sink) -> io::Result<()>) -> Result<(), WriteError> {
    let target = follow_link(path);
    // A rename would put a file in the place of a device or a pipe.
    if fs::metadata(&target).is_ok_and(|there| !there.is_file()) {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it exists and is not a regular file");
        return Err(WriteError { action: "write", path: path.to_path_buf(), source });
    }
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(short_name(&target));
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp");
    // tempfile's own default is 0600; a run's files follow the umask as any other file does.
    #[cfg(unix)]
    let open_to_umask = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    #[cfg(unix)]
    builder.permissions(open_to_umask);
    let mut temporary = builder.tempfile_in(folder).map_err(WriteError::at("create a temporary file for", path))?;

    let mut buffered = BufWriter::with_capacity(1 << 18, temporary.as_file_mut());
    write(&mut buffered).and_then(|()| buffered.flush()).map_err(WriteError::at("write", path))?;
    drop(buffered);
    if let Ok(old) = fs::metadata(&target)
        && old.is_file()
    {
        // Some file systems have no permissions to keep; the content matters more.
        let _ = temporary.as_file().set_permissions(old.permissions());
    }
    temporary.as_file().sync_all().map_err(WriteError::at("write", path))?;
    temporary.persist(&target).map_err(|e| WriteError::at("rename to", path)(e.error))?;
    sync_folder(folder).map_err(WriteError::at("write the folder of", path))
}

/// Writes `bytes` to `path`, whole or not at all; see [`write_atomic`].
///
/// # Errors
/// As [`write_atomic`].
pub fn write_bytes_atomic(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    write_atomic(path, |w| w.write_all(bytes))
}

fn follow_link(path: &Path) -> PathBuf {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.file_type().is_symlink() => fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()),
        _ => path.to_path_buf(),
    }
}

/// The file name, cut so that the temporary name stays within the 255 bytes that file systems allow.
fn short_name(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut end = name.len().min(200);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}

/// On unix a rename is durable only once the folder itself is synced.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(folder).and_then(|f| f.sync_all()) {
        // Folders that may not be read and network file systems refuse this; the file itself is complete by now.
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// The user's cache folder for this program, from the environment.
pub fn user_cache_folder() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = if cfg!(windows) {
        from("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        from("HOME").map(|h| h.join("Library/Caches"))
    } else {
        from("XDG_CACHE_HOME").or_else(|| from("HOME").map(|h| h.join(".cache")))
    };
    base.map(|b| b.join("yolov9"))
}
