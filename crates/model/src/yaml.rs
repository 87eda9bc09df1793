//! The model description: keys and rows of the file, with their lines. Blocks read their own arguments.

use crate::error::{ModelError, Result};
use crate::zoo::MAX_YAML_BYTES;
use graph::ops::Activation;
use serde::Deserialize;
use serde_saphyr::Spanned;

/// Most rows of backbone and head together.
pub const MAX_ROWS: usize = 512;
/// Most channels of one tensor.
pub const MAX_CHANNELS: usize = 1 << 16;
/// Most repetitions of a row, or of the bottlenecks inside a block.
pub const MAX_REPEATS: usize = 128;
/// Most repetitions of all rows together, bottlenecks inside blocks counted.
pub const MAX_BLOCKS: usize = 4096;
/// Most classes.
pub const MAX_CLASSES: usize = 1 << 14;

/// An argument of a row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Arg {
    Null(()),
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Arg>),
}

/// Input rows: one or several, negative ones counted back from the row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum From {
    One(i64),
    Many(Vec<i64>),
}

/// One row as written.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub from: Vec<i64>,
    pub repeats: i64,
    /// Without a leading `nn.`.
    pub module: String,
    pub args: Vec<Arg>,
    /// 1-based line in the file; 0 where unknown.
    pub line: u64,
}

/// A parsed description; rows are not yet resolved.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub nc: usize,
    pub depth: f64,
    pub width: f64,
    /// Anchors a level: only the rule that leaves widths equal to `anchors * (nc + 5)` unscaled reads it.
    pub anchors: usize,
    pub activation: Activation,
    /// Channels of the picture.
    pub channels: usize,
    pub rows: Vec<Row>,
}

/// `[from, repeats, module, args]` with its place in the file.
type RawRow = Spanned<(From, i64, String, Vec<Arg>)>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nc: Option<i64>,
    depth_multiple: Option<f64>,
    width_multiple: Option<f64>,
    anchors: Option<Arg>,
    activation: Option<String>,
    ch: Option<i64>,
    backbone: Vec<RawRow>,
    head: Vec<RawRow>,
}

impl Description {
    /// Parses a description; `nc` replaces the file's number of classes. `file` names it in errors.
    pub fn parse(text: &str, file: &str, nc: Option<usize>) -> Result<Self> {
        let error = |message: String| ModelError::Yaml { file: file.to_owned(), message };
        if text.len() as u64 > MAX_YAML_BYTES {
            return Err(error(format!("longer than {MAX_YAML_BYTES} bytes, this is no model description")));
        }
        let parsed: File = serde_saphyr::from_str(text).map_err(|e| error(parser_message(&e)))?;
        let nc = match nc {
            Some(nc) => nc,
            None => {
                let nc = parsed.nc.ok_or_else(|| error("the key nc (number of classes) is missing".into()))?;
                usize::try_from(nc).map_err(|_| error(format!("nc is {nc}, not a number of classes")))?
            }
        };
        if nc == 0 || nc > MAX_CLASSES {
            return Err(error(format!("nc is {nc}, it must be 1 to {MAX_CLASSES}")));
        }
        let multiple = |name: &str, value: Option<f64>| match value.unwrap_or(1.0) {
            v if v > 0.0 && v <= 64.0 => Ok(v),
            v => Err(error(format!("{name} is {v}, it must lie above 0 and at most at 64"))),
        };
        let channels = parsed.ch.unwrap_or(3);
        if !(1..=64).contains(&channels) {
            return Err(error(format!("ch is {channels}, a picture has 1 to 64 channels")));
        }
        let rows: Vec<Row> = parsed.backbone.into_iter().chain(parsed.head).map(Row::from_spanned).collect();
        if rows.is_empty() || rows.len() > MAX_ROWS {
            return Err(error(format!("{} rows; a model has 1 to {MAX_ROWS}", rows.len())));
        }
        Ok(Self {
            nc,
            depth: multiple("depth_multiple", parsed.depth_multiple)?,
            width: multiple("width_multiple", parsed.width_multiple)?,
            anchors: anchors(parsed.anchors).map_err(error)?,
            activation: match parsed.activation.as_deref() {
                None => Activation::Silu,
                Some(text) => activation(text).map_err(error)?,
            },
            channels: channels as usize,
            rows,
        })
    }

    /// Output channels of a conv-like row: `ceil(c * width / 8) * 8`, except that the number of outputs
    /// of an anchor-based head, `anchors * (nc + 5)`, stays as it is.
    pub fn scaled(&self, channels: usize) -> usize {
        if channels == self.anchors * (self.nc + 5) {
            return channels;
        }
        (channels as f64 * self.width / 8.0).ceil() as usize * 8
    }

    /// Repetitions of a row: `max(round(n * depth), 1)` above one, halves rounded to even.
    pub fn repeats(&self, n: usize) -> usize {
        if n > 1 { ((n as f64 * self.depth).round_ties_even() as usize).max(1) } else { n }
    }
}

impl Row {
    fn from_spanned(row: RawRow) -> Self {
        let line = row.referenced.line();
        let (from, repeats, module, args) = row.value;
        let from = match from {
            From::One(i) => vec![i],
            From::Many(list) => list,
        };
        let module = module.strip_prefix("nn.").unwrap_or(&module).to_owned();
        Self { from, repeats, module, args, line }
    }
}

/// The parser's message, which shows the lines, without its own heading.
fn parser_message(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

fn anchors(arg: Option<Arg>) -> std::result::Result<usize, String> {
    match arg {
        None => Ok(3),
        Some(Arg::Int(n)) if (1..=64).contains(&n) => Ok(n as usize),
        Some(Arg::List(levels)) => match levels.first() {
            Some(Arg::List(pairs)) if pairs.len() >= 2 && pairs.len() <= 128 => Ok(pairs.len() / 2),
            _ => Err("anchors: expected a number or a list of [w, h, ...] for each level".into()),
        },
        Some(other) => Err(format!("anchors: expected a number from 1 to 64, found {}", other.show())),
    }
}

fn activation(text: &str) -> std::result::Result<Activation, String> {
    let text = text.trim();
    let name = text.strip_prefix("nn.").unwrap_or(text);
    let (name, args) = name.split_once('(').unwrap_or((name, ")"));
    let args = args.strip_suffix(')').unwrap_or("").trim();
    let plain = args.is_empty() || args == "inplace=True" || args == "inplace=False";
    match name {
        "SiLU" if plain => Ok(Activation::Silu),
        "ReLU" if plain => Ok(Activation::Relu),
        "Identity" if plain => Ok(Activation::Identity),
        "LeakyReLU" if args.is_empty() => Ok(Activation::LeakyRelu(0.01)),
        "LeakyReLU" => {
            let slope = args.strip_prefix("negative_slope=").unwrap_or(args).trim();
            match slope.parse::<f32>() {
                Ok(slope) if slope.is_finite() => Ok(Activation::LeakyRelu(slope)),
                _ => Err(format!("activation: '{args}' is not a slope")),
            }
        }
        _ => Err(format!(
            "activation '{text}' is not known\n  hint: nn.SiLU(), nn.ReLU(), nn.LeakyReLU(0.1), nn.Identity()"
        )),
    }
}

impl Arg {
    /// None, also where it comes as text.
    pub fn is_none(&self) -> bool {
        matches!(self, Arg::Null(())) || matches!(self, Arg::Text(t) if t == "None")
    }

    /// As in an error message.
    pub fn show(&self) -> String {
        match self {
            Arg::Null(()) => "null".into(),
            Arg::Bool(v) => v.to_string(),
            Arg::Int(v) => v.to_string(),
            Arg::Float(v) => v.to_string(),
            Arg::Text(v) => format!("'{}'", v.chars().take(40).collect::<String>()),
            Arg::List(v) => format!("a list of {}", v.len()),
        }
    }
}
