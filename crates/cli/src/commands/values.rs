//! Values of flags that need more than a number or a text.

use std::path::{Path, PathBuf};

/// A path, where the empty text means none.
pub fn optional_path(text: &str) -> Option<PathBuf> {
    let text = text.trim();
    (!text.is_empty()).then(|| PathBuf::from(text))
}

/// The one file of `--weights`; several would be an ensemble.
///
/// # Errors
/// More or fewer than one.
pub fn one_weights_file(files: Vec<String>) -> Result<PathBuf, crate::failure::Failure> {
    match <[String; 1]>::try_from(files) {
        Ok([file]) if !file.trim().is_empty() => Ok(PathBuf::from(file)),
        Ok(_) => Err(crate::failure::Failure::usage(
            "--weights: no file is named",
            "a training run writes runs/train/NAME/weights/best.safetensors",
        )),
        Err(_) => Err(crate::failure::Failure::usage(
            "--weights: ensembles of several files are not supported",
            "name one file, or run the command once for each",
        )),
    }
}

/// `10GiB`, `512M`, `1000000`: bytes, with a binary (`KiB`) or decimal (`KB`, `K`) unit.
///
/// # Errors
/// A sentence about what is wrong.
pub fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| format!("'{text}' does not start with a number"))?;
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        other => return Err(format!("'{other}' is no unit of bytes; known are KB, MB, GB, KiB, MiB, GiB")),
    };
    let value = number * factor as f64;
    if value < 1.0 || value > i64::MAX as f64 { Err(format!("{text} is out of range")) } else { Ok(value as u64) }
}

/// Images a step, where `auto` is -1.
///
/// # Errors
/// A sentence about what is wrong.
pub fn batch(text: &str) -> Result<i64, String> {
    match text.trim() {
        "auto" => Ok(-1),
        number => number.parse().map_err(|_| format!("'{text}' is neither a number nor auto")),
    }
}

/// A path as it can be pasted into a shell.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:\\".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_know_decimal_and_binary_units() {
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("1.5 GiB"), Ok(3 << 29));
        assert_eq!(bytes("512M"), Ok(512_000_000));
        for wrong in ["", "GiB", "10 parsec", "-1", "0", "1e9", "99999999999 GiB", "1..2"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_with_spaces_are_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("runs/train/exp2")), "runs/train/exp2");
        assert_eq!(quoted(Path::new("my runs/it's")), r"'my runs/it'\''s'");
    }

    #[test]
    fn empty_weights_mean_from_scratch() {
        assert_eq!(optional_path(""), None);
        assert_eq!(optional_path("a.safetensors"), Some(PathBuf::from("a.safetensors")));
    }
}
