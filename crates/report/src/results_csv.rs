//! `results.csv`: one row an epoch, in the columns and widths that plotting scripts of the field expect.
//!
//! Every cell is 20 characters wide (names right-aligned, numbers as `%20.5g`) and cells are joined by commas. Columns of our own may
//! follow the standard ones. After a resume the file holds exactly the epochs that the resumed state has seen, and the additional
//! columns of both parts of the run: a machine may have been left for one that measures more, or less.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::atomic::write_bytes_atomic;
use crate::error::{Error, Result};
use crate::number::format_g;

/// The standard columns, in order.
pub const COLUMNS: [&str; 14] = [
    "epoch",
    "train/box_loss",
    "train/cls_loss",
    "train/dfl_loss",
    "metrics/precision",
    "metrics/recall",
    "metrics/mAP_0.5",
    "metrics/mAP_0.5:0.95",
    "val/box_loss",
    "val/cls_loss",
    "val/dfl_loss",
    "x/lr0",
    "x/lr1",
    "x/lr2",
];

const WIDTH: usize = 20;
const DIGITS: usize = 5;

/// The numbers of one epoch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EpochResults {
    /// Epoch counted from 0.
    pub epoch: usize,
    /// Mean box, class and DFL loss of the epoch's batches.
    pub train_losses: [f64; 3],
    /// Precision, 0..=1.
    pub precision: f64,
    /// Recall, 0..=1.
    pub recall: f64,
    /// Mean AP at IoU 0.5, 0..=1.
    pub map50: f64,
    /// Mean AP over IoU 0.50..=0.95, 0..=1.
    pub map50_95: f64,
    /// Box, class and DFL loss on the validation set.
    pub val_losses: [f64; 3],
    /// Learning rates of the three parameter groups.
    pub learning_rates: [f64; 3],
    /// Values of the additional columns, in their order.
    pub extra: Vec<f64>,
}

/// A `results.csv` that rows are appended to.
#[derive(Debug)]
pub struct ResultsCsv {
    path: PathBuf,
    extra_columns: usize,
    /// For each additional column of the file its place in [`EpochResults::extra`]; none where another part of the run wrote it.
    places: Vec<Option<usize>>,
}

impl ResultsCsv {
    /// Starts a new file with only the header row, replacing an older file. `extra_columns` follow the standard columns.
    ///
    /// # Errors
    /// [`Error::BadColumnName`], [`Error::Io`].
    pub fn create(path: &Path, extra_columns: &[&str]) -> Result<ResultsCsv> {
        let header = header_row(extra_columns)?;
        write_bytes_atomic(path, format!("{header}\n").as_bytes())?;
        let places = (0..extra_columns.len()).map(Some).collect();
        Ok(ResultsCsv { path: path.to_path_buf(), extra_columns: extra_columns.len(), places })
    }

    /// Continues the file of a run that goes on with `next_epoch`: rows of that and later epochs go, and so does a last row that a killed
    /// run left half written. A missing or empty file is created as [`ResultsCsv::create`] does.
    ///
    /// The file keeps the additional columns that it has, and those of `extra_columns` that it lacks follow: `nan` in the rows kept,
    /// which are not changed otherwise. Columns of the file that are not in `extra_columns` are `nan` in the rows that come.
    ///
    /// # Errors
    /// [`Error::ColumnMismatch`] when the file has other standard columns, [`Error::BadRow`] with the line number when another row than
    /// the last one cannot be read, [`Error::Io`]. In each case the file is left as it was.
    pub fn resume(path: &Path, extra_columns: &[&str], next_epoch: usize) -> Result<ResultsCsv> {
        let wanted = header_row(extra_columns)?;
        let text = match fs::read(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
            Err(source) => return Err(Error::Io { action: "read", path: path.to_path_buf(), source }),
        };
        if text.trim().is_empty() {
            return ResultsCsv::create(path, extra_columns);
        }
        let parsed = parse(path, &text)?;
        let Some(before) = parsed.columns.strip_prefix(&COLUMNS.map(str::to_owned)[..]) else {
            let expected: Vec<&str> = wanted.split(',').map(str::trim).collect();
            return Err(Error::ColumnMismatch {
                path: path.to_path_buf(),
                expected: expected.join(","),
                got: parsed.columns.join(","),
            });
        };
        let ours: Vec<&str> = extra_columns.iter().map(|name| name.trim()).collect();
        let mut all: Vec<&str> = before.iter().map(String::as_str).collect();
        all.extend(ours.iter().filter(|name| !before.iter().any(|b| b == *name)));
        let header = header_row(&all)?;
        let added = format!(",{:>WIDTH$}", format_g(f64::NAN, DIGITS)).repeat(all.len() - before.len());
        let mut kept = format!("{header}\n");
        for (line, values) in parsed.rows {
            if values[0] < next_epoch as f64 {
                kept += line;
                kept += &added;
                kept.push('\n');
            }
        }
        if kept != text {
            write_bytes_atomic(path, kept.as_bytes())?;
        }
        let places = all.iter().map(|name| ours.iter().position(|o| o == name)).collect();
        Ok(ResultsCsv { path: path.to_path_buf(), extra_columns: ours.len(), places })
    }

    /// Adds the row of one epoch.
    ///
    /// # Errors
    /// [`Error::ExtraCount`] when `results.extra` does not match the additional columns, [`Error::Io`].
    pub fn append(&mut self, results: &EpochResults) -> Result<()> {
        if results.extra.len() != self.extra_columns {
            return Err(Error::ExtraCount {
                path: self.path.clone(),
                expected: self.extra_columns,
                got: results.extra.len(),
            });
        }
        let extra: Vec<f64> = self.places.iter().map(|place| place.map_or(f64::NAN, |at| results.extra[at])).collect();
        let line = format!("{}\n", data_row(results, &extra));
        // One write for the whole row; the file is opened anew so that it may be moved or edited between epochs.
        let mut file =
            OpenOptions::new().append(true).create(true).open(&self.path).map_err(Error::io("open", &self.path))?;
        file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(Error::io("append to", &self.path))
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The content of a results file.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultsTable {
    /// Column names without their padding.
    pub columns: Vec<String>,
    /// One vector of numbers a row, as long as `columns`; may hold NaN and infinities.
    pub rows: Vec<Vec<f64>>,
}

/// Reads a results file, ours or another trainer's. A half-written last row is left out.
///
/// # Errors
/// [`Error::Io`], [`Error::BadRow`] with the line number.
pub fn read_results(path: &Path) -> Result<ResultsTable> {
    let bytes = fs::read(path).map_err(Error::io("read", path))?;
    let text = String::from_utf8_lossy(&bytes);
    let parsed = parse(path, &text)?;
    Ok(ResultsTable { columns: parsed.columns, rows: parsed.rows.into_iter().map(|(_, values)| values).collect() })
}

struct Parsed<'a> {
    columns: Vec<String>,
    /// Each row's text without line break, and its numbers.
    rows: Vec<(&'a str, Vec<f64>)>,
}

fn parse<'a>(path: &Path, text: &'a str) -> Result<Parsed<'a>> {
    let bad = |line: usize, message: String| Error::BadRow { path: path.to_path_buf(), line, message };
    let mut lines = text.split_inclusive('\n').enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
    let Some((_, header)) = lines.next() else {
        return Err(bad(1, "the file is empty".to_owned()));
    };
    let header = header.trim_start_matches('\u{feff}');
    let columns: Vec<String> = header.split(',').map(|name| name.trim().to_owned()).collect();
    let mut rows = Vec::new();
    while let Some((index, line)) = lines.next() {
        let whole = line.ends_with('\n');
        let line = line.trim_end_matches(['\r', '\n']);
        match parse_row(line, columns.len()) {
            Ok(values) if whole => rows.push((line, values)),
            // Without its line break even a readable last row may have lost digits.
            _ if lines.peek().is_none() && !whole => {}
            Ok(values) => rows.push((line, values)),
            Err(message) => return Err(bad(index + 1, message)),
        }
    }
    Ok(Parsed { columns, rows })
}

fn parse_row(line: &str, columns: usize) -> std::result::Result<Vec<f64>, String> {
    let cells: Vec<&str> = line.split(',').map(str::trim).collect();
    if cells.len() != columns {
        return Err(format!("{} values for {columns} columns", cells.len()));
    }
    cells.iter().map(|cell| cell.parse().map_err(|_| format!("{cell:?} is not a number"))).collect()
}

fn header_row(extra_columns: &[&str]) -> Result<String> {
    for &name in extra_columns {
        if name.trim().is_empty() || name.contains([',', '"', '\n', '\r']) {
            return Err(Error::BadColumnName { name: name.to_owned() });
        }
    }
    let cells: Vec<String> =
        COLUMNS.iter().chain(extra_columns).map(|name| format!("{:>WIDTH$}", name.trim())).collect();
    Ok(cells.join(","))
}

/// `extra` are the values of all additional columns of the file.
fn data_row(results: &EpochResults, extra: &[f64]) -> String {
    // Five digits would turn epoch 123456 into 1.2346e+05 and lose which one it was.
    let epoch =
        if results.epoch < 100_000 { format_g(results.epoch as f64, DIGITS) } else { results.epoch.to_string() };
    let metrics = [results.precision, results.recall, results.map50, results.map50_95];
    let numbers = results
        .train_losses
        .iter()
        .chain(&metrics)
        .chain(&results.val_losses)
        .chain(&results.learning_rates)
        .chain(extra);
    let mut row = format!("{epoch:>WIDTH$}");
    for &number in numbers {
        row += &format!(",{:>WIDTH$}", format_g(number, DIGITS));
    }
    row
}
