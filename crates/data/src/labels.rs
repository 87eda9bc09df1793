//! YOLO label files: rows of boxes and polygons, judged one by one.
//!
//! A row with 5 numbers is a box (class, centre, size), one with 7, 9, ... is a polygon (class, then
//! points). A bad row drops that row with its line and reason; the image goes only when it has rows and
//! none parses.

use crate::error::Problem;
use std::collections::HashSet;
use std::path::Path;

/// One object: class id and box as fractions of the picture's width and height.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Label {
    /// Class id from 0.
    pub class: u32,
    /// Centre x.
    pub cx: f32,
    /// Centre y.
    pub cy: f32,
    /// Width.
    pub w: f32,
    /// Height.
    pub h: f32,
}

/// Points x, y; fractions of the picture in label files, pixels in recipes.
pub type Polygon = Vec<[f32; 2]>;

/// How far above 1 or below 0 a coordinate may lie and still be clipped instead of refused.
pub const CLIP_TOLERANCE: f64 = 0.05;
/// Largest label file that is read, in bytes.
pub const MAX_LABEL_BYTES: u64 = 32 << 20;
/// Rows with problems that are named of one file; further ones are counted in a last line.
const MAX_NAMED: usize = 3;
/// Bytes from the start of a file in which a NUL means that it is no text.
const TEXT_PROBE: usize = 1024;
/// Longest value of a row that is repeated in a message, in characters.
const MAX_SHOWN: usize = 40;

/// Rows of one label file.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ParsedLabels {
    /// Boxes in file order.
    pub labels: Vec<Label>,
    /// The outline of each row that has one; as long as `labels`.
    pub segments: Vec<Option<Polygon>>,
    /// Line of each row, counted from 1.
    pub lines: Vec<u32>,
    /// Flaws, in file order.
    pub problems: Vec<Problem>,
    /// Rows that were dropped because they cannot be used.
    pub bad_rows: usize,
    /// Rows removed because an equal one came before.
    pub duplicates: usize,
    /// Coordinates moved to the edge of the picture.
    pub clipped: usize,
}

impl ParsedLabels {
    /// True when the file has rows but none can be used, which drops the image.
    pub fn is_unusable(&self) -> bool {
        self.labels.is_empty() && self.bad_rows > 0
    }
}

/// Parses a label file. `names` are the classes' names, for rows that say the name instead of the id.
/// `Err` is a file that is no label text at all (UTF-16, binary, too large).
pub fn parse_labels(file: &Path, bytes: &[u8], names: &[String]) -> Result<ParsedLabels, Problem> {
    let text = text_of(file, bytes)?;
    let mut out = ParsedLabels::default();
    let mut seen = HashSet::new();
    let mut unnamed = 0usize;
    let mut note = |problems: &mut Vec<Problem>, line: usize, reason: String| {
        if problems.len() < MAX_NAMED {
            problems.push(Problem::of_line(file, line, reason));
        } else {
            unnamed += 1;
        }
    };
    for (index, raw) in lines_of(&text) {
        let line = raw.split('#').next().unwrap_or("").trim_matches(|c: char| c.is_whitespace() || c == '\0');
        if line.is_empty() {
            continue;
        }
        match parse_row(line, names) {
            Err(reason) => {
                out.bad_rows += 1;
                note(&mut out.problems, index, format!("{reason}; the row is dropped"));
            }
            Ok(row) => {
                let mut remarks = row.remarks;
                out.clipped += row.clipped;
                let l = row.label;
                // Adding 0 makes -0 and 0 the same key.
                let is_new = seen.insert((l.class, [l.cx, l.cy, l.w, l.h].map(|v| (v + 0.0).to_bits())));
                if !is_new {
                    out.duplicates += 1;
                    remarks.push("the same label as on an earlier line; the row is dropped".to_string());
                }
                if !remarks.is_empty() {
                    note(&mut out.problems, index, remarks.join("; "));
                }
                if !is_new {
                    continue;
                }
                out.labels.push(l);
                out.segments.push(row.polygon);
                out.lines.push(u32::try_from(index).unwrap_or(u32::MAX));
            }
        }
    }
    if unnamed > 0 {
        out.problems.push(Problem::of_file(file, format!("and {unnamed} more rows of this file")));
    }
    Ok(out)
}

fn text_of<'a>(file: &Path, bytes: &'a [u8]) -> Result<std::borrow::Cow<'a, str>, Problem> {
    if bytes.len() as u64 > MAX_LABEL_BYTES {
        let reason = format!("{} bytes are too many for a label file (limit {MAX_LABEL_BYTES})", bytes.len());
        return Err(Problem::of_file(file, reason));
    }
    if let Some(reason) = utf16_reason(bytes) {
        return Err(Problem::of_file(file, reason));
    }
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    // Files of a crashed machine end in zeros; those are no reason to lose the rows.
    let end = bytes.iter().rposition(|&b| b != 0 && !b.is_ascii_whitespace()).map_or(0, |last| last + 1);
    if bytes[..end.min(TEXT_PROBE)].contains(&0) {
        return Err(Problem::of_file(file, "not text"));
    }
    // A stray byte in a comment or a class name is no reason to lose the other rows.
    Ok(String::from_utf8_lossy(bytes))
}

/// Why a text is not read, if it looks like UTF-16.
pub(crate) fn utf16_reason(bytes: &[u8]) -> Option<String> {
    let marked = bytes.starts_with(b"\xFF\xFE") || bytes.starts_with(b"\xFE\xFF");
    let head = &bytes[..bytes.len().min(64)];
    let zeros = |parity: usize| head.iter().skip(parity).step_by(2).filter(|&&b| b == 0).count();
    let full = head.len() / 2;
    let unmarked = full >= 2 && (zeros(0) == full && zeros(1) == 0 || zeros(1) == full && zeros(0) == 0);
    (marked || unmarked).then(|| "the text is UTF-16; save it as UTF-8".to_string())
}

/// Lines with their numbers; ends are LF, CR LF, a lone CR, or a form feed or vertical tab.
fn lines_of(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = Some(text);
    let mut number = 0;
    std::iter::from_fn(move || {
        let current = rest?;
        number += 1;
        match current.find(['\n', '\r', '\x0B', '\x0C']) {
            None => {
                rest = None;
                Some((number, current))
            }
            Some(end) => {
                let skip = if current[end..].starts_with("\r\n") { 2 } else { 1 };
                rest = Some(&current[end + skip..]);
                Some((number, &current[..end]))
            }
        }
    })
}

struct Row {
    label: Label,
    polygon: Option<Polygon>,
    remarks: Vec<String>,
    clipped: usize,
}

fn parse_row(line: &str, names: &[String]) -> Result<Row, String> {
    let named = if line.contains(',') && !line.contains(char::is_whitespace) {
        return Err("values are separated by commas; YOLO labels use blanks".to_string());
    } else {
        split_name(line, names)
    };
    let mut remarks = Vec::new();
    let (class, fields): (u32, Vec<&str>) = match named {
        Some((class, rest)) => {
            remarks.push(format!("class given by its name; taken as {class}"));
            (class, rest.split_whitespace().collect())
        }
        None => {
            let mut fields = line.split_whitespace();
            let first = fields.next().unwrap_or("");
            (parse_class(first, names)?, fields.collect())
        }
    };
    match fields.len() {
        n if n < 4 => return Err(format!("a row needs 5 columns (class cx cy width height), this has {}", n + 1)),
        5 => {
            return Err("6 columns: a 6th value after the box looks like a confidence (predictions reused as labels) \
                        or an instance number; labels have 5"
                .to_string());
        }
        n if n > 4 && n % 2 == 1 => {
            return Err(format!("a polygon needs pairs of x and y, this has {n} numbers after the class"));
        }
        _ => {}
    }
    let mut clipped = 0;
    let mut values = Vec::with_capacity(fields.len());
    let mut moved: Vec<String> = Vec::new();
    for text in &fields {
        let field = shown(text);
        let value: f64 = text.parse().map_err(|_| format!("{field:?} is not a number"))?;
        if !value.is_finite() {
            return Err(format!("{field} is not a finite number"));
        }
        if value < -CLIP_TOLERANCE {
            return Err(format!("{field} is negative; coordinates are fractions of the picture, 0 to 1"));
        }
        if value > 1.0 + CLIP_TOLERANCE {
            let pixels = if value > 2.0 { " (pixels? divide by the picture's width and height)" } else { "" };
            return Err(format!("{field} is above 1; coordinates are fractions of the picture{pixels}"));
        }
        if !(0.0..=1.0).contains(&value) {
            moved.push(field);
            clipped += 1;
        }
        values.push(value.clamp(0.0, 1.0) as f32);
    }
    match moved.as_slice() {
        [] => {}
        [one] => remarks.push(format!("{one} lies slightly outside 0..1; clipped")),
        [first, ..] => {
            remarks.push(format!("{} values ({first}, ...) lie slightly outside 0..1; clipped", moved.len()))
        }
    }
    let polygon: Option<Polygon> = (values.len() > 4).then(|| values.chunks_exact(2).map(|p| [p[0], p[1]]).collect());
    let label = match &polygon {
        Some(polygon) => box_of(class, polygon),
        None => Label { class, cx: values[0], cy: values[1], w: values[2], h: values[3] },
    };
    // Nothing can overlap it, so it could neither be learned nor found.
    if label.w == 0.0 || label.h == 0.0 {
        return Err("a box without area".to_string());
    }
    Ok(Row { label, polygon, remarks, clipped })
}

/// A value as it is said in a message: not longer than a message should be.
fn shown(text: &str) -> String {
    let mut chars = text.chars();
    let head: String = chars.by_ref().take(MAX_SHOWN).collect();
    if chars.next().is_some() { head + "..." } else { head }
}

/// The upright box around a polygon.
pub fn box_of(class: u32, polygon: &Polygon) -> Label {
    let [x0, y0, x1, y1] = bounds(polygon);
    Label { class, cx: (x0 + x1) / 2.0, cy: (y0 + y1) / 2.0, w: x1 - x0, h: y1 - y0 }
}

/// Smallest and largest x and y (xyxy); zeros for no points.
pub(crate) fn bounds(polygon: &Polygon) -> [f32; 4] {
    let start = [f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
    let b = polygon.iter().fold(start, |b, &[x, y]| [b[0].min(x), b[1].min(y), b[2].max(x), b[3].max(y)]);
    if polygon.is_empty() { [0.0; 4] } else { b }
}

fn parse_class(whole: &str, names: &[String]) -> Result<u32, String> {
    let text = shown(whole);
    let Ok(value) = whole.parse::<f64>() else {
        let known = if names.is_empty() { String::new() } else { format!("; the names are {}", short_list(names)) };
        return Err(format!("class {text:?} is neither a number nor one of the data set's names{known}"));
    };
    if !value.is_finite() {
        return Err(format!("class {text} is not a finite number"));
    }
    if value < 0.0 {
        return Err(format!("class {text} is negative; ids start at 0"));
    }
    if value.fract() != 0.0 {
        return Err(format!("class {text} is not a whole number"));
    }
    if value > f64::from(u32::MAX) {
        return Err(format!("class {text} is too large"));
    }
    Ok(value as u32)
}

/// A row that begins with a class name, which may hold blanks.
fn split_name<'a>(line: &'a str, names: &[String]) -> Option<(u32, &'a str)> {
    if line.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+' || c == '.') {
        return None;
    }
    let longest = names
        .iter()
        .enumerate()
        .filter(|(_, name)| {
            !name.is_empty()
                && line.starts_with(name.as_str())
                && line[name.len()..].chars().next().is_none_or(char::is_whitespace)
        })
        .max_by_key(|(_, name)| name.len())?;
    Some((longest.0 as u32, &line[longest.1.len()..]))
}

fn short_list(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
    let dots = if names.len() > 8 { ", ..." } else { "" };
    format!("{}{dots}", shown.join(", "))
}
