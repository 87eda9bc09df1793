//! Hyper-parameters: the YAML file, its ranges, and the files embedded in the program.

use crate::TrainError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Files that need not exist on disk, by name.
pub const EMBEDDED: [(&str, &str); 4] = [
    ("hyp.scratch-low.yaml", include_str!("../hyps/hyp.scratch-low.yaml")),
    ("hyp.scratch-med.yaml", include_str!("../hyps/hyp.scratch-med.yaml")),
    ("hyp.scratch-high.yaml", include_str!("../hyps/hyp.scratch-high.yaml")),
    ("hyp.demo.yaml", include_str!("../hyps/hyp.demo.yaml")),
];

/// One key with its range and default.
struct Key {
    name: &'static str,
    range: Range,
    default: f64,
    get: fn(&mut Hyp) -> &mut f64,
}

/// Allowed values.
#[derive(Clone, Copy)]
enum Range {
    /// Both ends allowed.
    Within(f64, f64),
    /// The upper end is not allowed.
    Below(f64, f64),
    /// Whole numbers, both ends allowed.
    Whole(f64, f64),
}

impl Range {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::Within(low, high) => value >= low && value <= high,
            Self::Below(low, high) => value >= low && value < high,
            Self::Whole(low, high) => value >= low && value <= high && value.fract() == 0.0,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Within(low, high) => format!("between {low} and {high}"),
            Self::Below(low, high) => format!("at least {low} and below {high}"),
            Self::Whole(low, high) => format!("a whole number between {low} and {high}"),
        }
    }
}

macro_rules! hyper_parameters {
    ($($(#[doc = $doc:literal])* $name:ident = $default:literal in $range:expr;)*) => {
        /// Hyper-parameters of a training run, each within its range.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Hyp { $($(#[doc = $doc])* pub $name: f64,)* }

        const KEYS: &[Key] = &[$(Key {
            name: stringify!($name),
            range: $range,
            default: $default,
            get: |hyp| &mut hyp.$name,
        }),*];

        impl Default for Hyp {
            fn default() -> Self { Self { $($name: $default,)* } }
        }
    };
}

use Range::{Below, Whole, Within};

hyper_parameters! {
    /// Learning rate after the warm-up.
    lr0 = 0.01 in Within(0.0, 100.0);
    /// Last learning rate as a fraction of `lr0`.
    lrf = 0.01 in Within(0.0, 10.0);
    /// Momentum of SGD, first beta of the others.
    momentum = 0.937 in Below(0.0, 1.0);
    /// For a batch of `nominal_batch`.
    weight_decay = 0.0005 in Within(0.0, 1.0);
    /// Length of the warm-up.
    warmup_epochs = 3.0 in Within(0.0, 10000.0);
    /// Momentum at the start of the warm-up.
    warmup_momentum = 0.8 in Below(0.0, 1.0);
    /// Learning rate of biases at the start of the warm-up.
    warmup_bias_lr = 0.1 in Within(0.0, 100.0);
    /// Shortest warm-up in iterations.
    warmup_min_iterations = 100.0 in Whole(0.0, 1e9);
    /// Images whose gradients are added up before a step.
    nominal_batch = 64.0 in Whole(1.0, 1e6);
    /// Gain of 1 - CIoU.
    box_gain = 7.5 in Within(0.0, 1000.0);
    /// Gain of the class loss.
    cls = 0.5 in Within(0.0, 1000.0);
    /// Gain of the distribution focal loss.
    dfl = 1.5 in Within(0.0, 1000.0);
    /// Weight of positive class targets.
    cls_pw = 1.0 in Within(0.0, 1000.0);
    /// Exponent of the focal loss; 0 turns it off.
    fl_gamma = 0.0 in Within(0.0, 10.0);
    /// Label smoothing, see [`detect::LossConfig::label_smoothing`]; `--label-smoothing` goes before it.
    label_smoothing = 0.0 in Below(0.0, 1.0);
    /// Unused, accepted.
    obj = 0.7 in Within(0.0, 1000.0);
    /// Unused, accepted.
    obj_pw = 1.0 in Within(0.0, 1000.0);
    /// Unused, accepted.
    iou_t = 0.2 in Within(0.0, 1.0);
    /// Unused, accepted.
    anchor_t = 5.0 in Within(0.0, 1000.0);
    /// Largest relative change of the hue.
    hsv_h = 0.015 in Within(0.0, 1.0);
    /// Largest relative change of the saturation.
    hsv_s = 0.7 in Within(0.0, 1.0);
    /// Largest relative change of the value.
    hsv_v = 0.4 in Within(0.0, 1.0);
    /// Largest rotation in degrees.
    degrees = 0.0 in Within(0.0, 180.0);
    /// Largest shift as a fraction of the size.
    translate = 0.1 in Within(0.0, 1.0);
    /// Scale factors lie within 1 - scale and 1 + scale.
    scale = 0.9 in Below(0.0, 1.0);
    /// Largest shear in degrees.
    shear = 0.0 in Below(0.0, 90.0);
    /// Largest perspective entry of the matrix.
    perspective = 0.0 in Within(0.0, 0.01);
    /// Probability of a vertical flip.
    flipud = 0.0 in Within(0.0, 1.0);
    /// Probability of a horizontal flip.
    fliplr = 0.5 in Within(0.0, 1.0);
    /// Probability of a mosaic.
    mosaic = 1.0 in Within(0.0, 1.0);
    /// Probability of blending two mosaics.
    mixup = 0.15 in Within(0.0, 1.0);
    /// Fraction of instances that are pasted once more.
    copy_paste = 0.3 in Within(0.0, 1.0);
}

/// `box` is a keyword, so the field has another name than the key.
fn file_name(key: &'static str) -> &'static str {
    if key == "box_gain" { "box" } else { key }
}

/// Hyper-parameters with what is worth telling about where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedHyp {
    pub hyp: Hyp,
    /// Log lines.
    pub notes: Vec<String>,
    /// Values that are obeyed but are hardly meant.
    pub warnings: Vec<String>,
}

/// A gain further than this factor from its usual value is warned about.
const FAR_GAIN: f64 = 4.0;

impl Hyp {
    /// Reads a file, or the embedded one of that name where the path does not exist.
    ///
    /// Keys that the file does not have take the value of `hyp.scratch-high.yaml`.
    ///
    /// # Errors
    /// [`TrainError::Missing`] where there is neither; otherwise as [`Hyp::parse`].
    pub fn load(path: &Path) -> Result<LoadedHyp, TrainError> {
        if path.exists() {
            let text = std::fs::read_to_string(path).map_err(TrainError::io("read", path))?;
            let (hyp, absent) = Self::parse(&path.display().to_string(), &text)?;
            let mut notes = Vec::new();
            if !absent.is_empty() {
                let keys = absent.join(", ");
                notes.push(format!("{}: not given, so as in hyp.scratch-high.yaml: {keys}", path.display()));
            }
            let warnings = hyp.unusual_gains();
            return Ok(LoadedHyp { hyp, notes, warnings });
        }
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let Some((name, text)) = EMBEDDED.iter().find(|(known, _)| *known == name) else {
            let known = EMBEDDED.map(|(name, _)| name).join(", ");
            let hint = Some(format!("embedded files are {known}"));
            return Err(TrainError::Missing { what: "the hyper-parameter file", path: path.to_path_buf(), hint });
        };
        let (hyp, _) = Self::parse(name, text)?;
        let notes = vec![format!("hyper-parameters: {name} (embedded)")];
        Ok(LoadedHyp { hyp, notes, warnings: Vec::new() })
    }

    /// Parses the text of a file; also returns the keys that it lacks and a user may expect. `file` is for messages.
    ///
    /// # Errors
    /// Text that is not a YAML map of numbers, unknown keys, values outside of their range (NaN and infinity too).
    pub fn parse(file: &str, text: &str) -> Result<(Self, Vec<&'static str>), TrainError> {
        let text = text.trim_start_matches('\u{feff}');
        let given: BTreeMap<String, f64> = serde_saphyr::from_str(text).map_err(|e| {
            let line = e.location().map(|l| l.line()).filter(|&l| l > 0);
            let at = line.and_then(|l| text.lines().nth(usize::try_from(l).ok()?.checked_sub(1)?)).unwrap_or("");
            let key = at.split(':').next().unwrap_or("").trim();
            let again = text.lines().filter(|l| l.split(':').next().unwrap_or("").trim() == key).count() > 1;
            let message = match KEYS.iter().find(|k| file_name(k.name) == key) {
                Some(_) if again => format!("{key} is given twice"),
                Some(known) => format!("`{}`: {key} must be a number, {}", at.trim(), known.range.text()),
                None => format!("`{}` is not a `key: number` line", at.trim()),
            };
            TrainError::HypFile { file: file.to_owned(), line, message }
        })?;
        let place = |key: &str| {
            let line = text.lines().position(|l| l.split(':').next().is_some_and(|k| k.trim() == key));
            line.map_or(file.to_owned(), |l| format!("{file}:{}", l + 1))
        };
        let mut hyp = Self::default();
        for (key, &value) in &given {
            let Some(known) = KEYS.iter().find(|k| file_name(k.name) == key) else {
                return Err(TrainError::HypKey { file: place(key), key: key.clone(), nearest: nearest(key) });
            };
            if !known.range.holds(value) {
                let (file, key, range) = (place(key), file_name(known.name), known.range.text());
                return Err(TrainError::HypRange { file, key, value, range });
            }
            *(known.get)(&mut hyp) = value;
        }
        let optional =
            ["warmup_min_iterations", "nominal_batch", "label_smoothing", "obj", "obj_pw", "iou_t", "anchor_t"];
        let absent = KEYS
            .iter()
            .map(|k| file_name(k.name))
            .filter(|name| !given.contains_key(*name) && !optional.contains(name))
            .collect();
        Ok((hyp, absent))
    }

    /// The file that [`Hyp::parse`] reads back to the same values.
    pub fn to_yaml(&self) -> String {
        let mut copy = self.clone();
        KEYS.iter().map(|k| format!("{}: {:?}\n", file_name(k.name), *(k.get)(&mut copy))).collect()
    }

    /// A line for each gain that is more than four times above or below the value that YOLOv9's loss expects.
    ///
    /// Such gains come out of files that were written for other trainers: YOLOv5's loss is scaled otherwise (box 0.05),
    /// and the reference trainer reads the gains of a file without using them, so that nobody notices there.
    pub fn unusual_gains(&self) -> Vec<String> {
        let gains = [
            ("box", self.box_gain, 7.5, "boxes"),
            ("cls", self.cls, 0.5, "classes"),
            ("dfl", self.dfl, 1.5, "the edges of boxes"),
        ];
        let line = |(key, value, usual, learnt): (&str, f64, f64, &str)| {
            let of_yolov5 = key == "box" && (0.02..=0.1).contains(&value);
            if value == 0.0 {
                Some(format!("{key}: 0 turns this part of the loss off: {learnt} will not be learned"))
            } else if of_yolov5 {
                Some(format!(
                    "{key}: {value} is a YOLOv5 gain; YOLOv9's loss expects about {usual}: {learnt} will hardly be learned"
                ))
            } else if value < usual / FAR_GAIN {
                Some(format!(
                    "{key}: {value} is far below the {usual} that YOLOv9's loss expects: {learnt} will hardly be learned"
                ))
            } else if value > usual * FAR_GAIN {
                Some(format!(
                    "{key}: {value} is far above the {usual} that YOLOv9's loss expects: {learnt} will outweigh the rest"
                ))
            } else {
                None
            }
        };
        gains.into_iter().filter_map(line).collect()
    }

    /// One line of all values that differ from `hyp.scratch-high.yaml`, for the log.
    pub fn differences(&self) -> String {
        let mut copy = self.clone();
        let changed: Vec<String> = KEYS
            .iter()
            .filter_map(|k| {
                let value = *(k.get)(&mut copy);
                (value != k.default).then(|| format!("{}={value}", file_name(k.name)))
            })
            .collect();
        changed.join(" ")
    }
}

/// The key that was probably meant.
fn nearest(key: &str) -> Option<&'static str> {
    let distance = |known: &str| edit_distance(key.as_bytes(), known.as_bytes());
    KEYS.iter().map(|k| file_name(k.name)).min_by_key(|k| distance(k)).filter(|k| distance(k) <= 3)
}

fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
