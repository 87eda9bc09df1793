//! A table of samples that grows while a run lasts, such as `telemetry.csv`: a header and plain numbers.
//!
//! Cells hold all digits of their numbers; one without a value is empty. Rows are added in one write, so that a reader
//! never sees half of one while the run is alive, and what a killed run left half written is dropped when the file is
//! continued.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::atomic::write_bytes_atomic;
use crate::error::{Error, Result};

/// A table that rows are appended to.
#[derive(Debug)]
pub struct SamplesCsv {
    path: PathBuf,
    columns: usize,
}

impl SamplesCsv {
    /// Starts a new file with only the header row, replacing an older file.
    ///
    /// # Errors
    /// [`Error::BadColumnName`], [`Error::Io`].
    pub fn create(path: &Path, columns: &[&str]) -> Result<SamplesCsv> {
        write_bytes_atomic(path, header(columns)?.as_bytes())?;
        Ok(SamplesCsv { path: path.to_path_buf(), columns: columns.len() })
    }

    /// Continues a file: all whole rows stay, a last one without its line break goes. A missing or empty file is
    /// created as [`SamplesCsv::create`] does.
    ///
    /// # Errors
    /// [`Error::ColumnMismatch`] when the file has other columns, [`Error::Io`]. In each case the file is left as it was.
    pub fn resume(path: &Path, columns: &[&str]) -> Result<SamplesCsv> {
        let header = header(columns)?;
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(Error::Io { action: "read", path: path.to_path_buf(), source }),
        };
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        if whole == 0 {
            return SamplesCsv::create(path, columns);
        }
        if !bytes.starts_with(header.as_bytes()) {
            let got = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
            return Err(Error::ColumnMismatch {
                path: path.to_path_buf(),
                expected: header.trim_end().to_owned(),
                got: String::from_utf8_lossy(got).trim_end().to_owned(),
            });
        }
        if whole < bytes.len() {
            write_bytes_atomic(path, &bytes[..whole])?;
        }
        Ok(SamplesCsv { path: path.to_path_buf(), columns: columns.len() })
    }

    /// Adds rows, each with a value or none for every column.
    ///
    /// # Errors
    /// [`Error::ExtraCount`] when a row does not match the columns, [`Error::Io`]. Nothing is written for wrong rows.
    pub fn append(&mut self, rows: &[Vec<Option<f64>>]) -> Result<()> {
        let mut text = String::new();
        for row in rows {
            if row.len() != self.columns {
                return Err(Error::ExtraCount { path: self.path.clone(), expected: self.columns, got: row.len() });
            }
            let cells: Vec<String> = row.iter().map(|cell| cell.map_or(String::new(), |v| v.to_string())).collect();
            text += &cells.join(",");
            text.push('\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        // Opened anew each time, so that the file may be moved between writes.
        let mut file =
            OpenOptions::new().append(true).create(true).open(&self.path).map_err(Error::io("open", &self.path))?;
        file.write_all(text.as_bytes()).map_err(Error::io("append to", &self.path))
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn header(columns: &[&str]) -> Result<String> {
    for &name in columns {
        if name.trim().is_empty() || name.contains([',', '"', '\n', '\r']) {
            return Err(Error::BadColumnName { name: name.to_owned() });
        }
    }
    Ok(format!("{}\n", columns.join(",")))
}
