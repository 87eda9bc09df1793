//! What the training part was when a run began: to notice that it has changed between two sittings, and to name what
//! has.
//!
//! The checkpoint holds one digest. `train-images.txt` in the run's folder has a line an image, from which a
//! difference is told by name; a run goes on without that file as well.

use crate::TrainError;
use data::Sample;
use std::collections::BTreeMap;
use std::path::Path;

/// Name of the list in a run's folder.
const FILE: &str = "train-images.txt";
/// Names told of each kind of change.
const MAX_NAMED: usize = 3;

/// The images of a set in order, by name and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    images: Vec<(u64, String)>,
}

impl Fingerprint {
    /// Of a scanned set. Names count without their folders: a data set may move.
    pub fn of(samples: &[Sample]) -> Self {
        Self { images: samples.iter().map(|s| (hash(s), name(s))).collect() }
    }

    /// One number for all of it.
    pub fn digest(&self) -> String {
        let mut fnv = Fnv::default();
        self.images.iter().for_each(|(hash, _)| fnv.add(&hash.to_le_bytes()));
        format!("{:016x}", fnv.0)
    }

    /// Writes the list into a run's folder.
    pub fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let text: String = self.images.iter().map(|(hash, name)| format!("{hash:016x} {name}\n")).collect();
        Ok(report::atomic::write_bytes_atomic(&folder.join(FILE), text.as_bytes())?)
    }

    /// The list of a run's folder; `None` where it is absent or damaged.
    pub fn read(folder: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
        let image = |line: &str| {
            let (hash, name) = line.split_once(' ')?;
            Some((u64::from_str_radix(hash, 16).ok()?, name.to_owned()))
        };
        Some(Self { images: text.lines().map(image).collect::<Option<_>>()? })
    }

    /// What is different in `now`, in words, such as `added: b.jpg; removed: a.jpg`.
    pub fn changes(&self, now: &Self) -> String {
        let (before, after) = (self.by_name(), now.by_name());
        let absent = |from: &BTreeMap<&str, Vec<u64>>, other: &BTreeMap<&str, Vec<u64>>| -> Vec<String> {
            let missing = |name: &str| other.get(name).is_none_or(|o| o.len() < from[name].len());
            from.keys().filter(|name| missing(name)).map(|name| (*name).to_owned()).collect()
        };
        let edited = before
            .iter()
            .filter(|(name, old)| after.get(*name).is_some_and(|new| new.len() == old.len() && new != *old));
        let kinds = [
            ("added", absent(&after, &before)),
            ("removed", absent(&before, &after)),
            ("edited, the image or its labels", edited.map(|(name, _)| (*name).to_owned()).collect()),
        ];
        let told: Vec<String> = kinds
            .iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(kind, names)| {
                let more = names.len().saturating_sub(MAX_NAMED);
                let shown = names[..names.len() - more].join(", ");
                format!("{kind}: {shown}{}", if more > 0 { format!(" and {more} more") } else { String::new() })
            })
            .collect();
        if told.is_empty() { "the images come in another order".to_owned() } else { told.join("; ") }
    }

    fn by_name(&self) -> BTreeMap<&str, Vec<u64>> {
        let mut found: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        self.images.iter().for_each(|(hash, name)| found.entry(name).or_default().push(*hash));
        found.values_mut().for_each(|hashes| hashes.sort_unstable());
        found
    }
}

/// The file's name on one line.
fn name(sample: &Sample) -> String {
    let name = sample.path.file_name().unwrap_or_default().to_string_lossy();
    name.replace(char::is_control, "?")
}

fn hash(sample: &Sample) -> u64 {
    let mut fnv = Fnv::default();
    fnv.add(sample.path.file_name().unwrap_or_default().as_encoded_bytes());
    // The size of the file stands for its content, which would take an epoch to read. A file that is gone is noticed
    // when it is needed.
    let bytes = std::fs::metadata(&sample.path).map_or(0, |m| m.len());
    fnv.add(&[sample.width.to_le_bytes(), sample.height.to_le_bytes()].concat());
    fnv.add(&bytes.to_le_bytes());
    for (label, outline) in sample.labels.iter().zip(sample.segments.iter().chain(std::iter::repeat(&None))) {
        fnv.add(&label.class.to_le_bytes());
        [label.cx, label.cy, label.w, label.h].iter().for_each(|v| fnv.add(&v.to_bits().to_le_bytes()));
        outline.iter().flatten().flatten().for_each(|v| fnv.add(&v.to_bits().to_le_bytes()));
    }
    fnv.0
}

/// FNV-1a over 64 bits: a change must be noticed, nobody attacks it.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.0 = (self.0 ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(images: &[(&str, u64)]) -> Fingerprint {
        Fingerprint { images: images.iter().map(|(name, hash)| (*hash, (*name).to_owned())).collect() }
    }

    #[test]
    fn changes_are_told_by_name() {
        let before = of(&[("a", 1), ("b", 2), ("c", 3)]);
        for (now, told) in [
            (of(&[("a", 1), ("b", 2), ("c", 3), ("d", 4)]), "added: d"),
            (of(&[("b", 2)]), "removed: a, c"),
            (of(&[("a", 1), ("b", 7), ("c", 3)]), "edited, the image or its labels: b"),
            (of(&[("b", 2), ("a", 1), ("c", 3)]), "the images come in another order"),
            (of(&[("a", 1), ("a", 1), ("c", 8)]), "added: a; removed: b; edited, the image or its labels: c"),
            (of(&[("v", 1), ("w", 1), ("x", 1), ("y", 1), ("z", 1)]), "added: v, w, x and 2 more; removed: a, b, c"),
        ] {
            assert_eq!(before.changes(&now), told);
            assert_ne!(before.digest(), now.digest(), "{told}");
        }
    }

    #[test]
    fn the_list_is_read_back_and_damage_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Fingerprint::read(folder.path()), None);
        let images = of(&[("a b.jpg", u64::MAX), ("ü.png", 0)]);
        images.write(folder.path()).unwrap();
        assert_eq!(Fingerprint::read(folder.path()), Some(images));
        std::fs::write(folder.path().join(FILE), "zz a\n").unwrap();
        assert_eq!(Fingerprint::read(folder.path()), None);
    }
}
