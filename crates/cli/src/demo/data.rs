//! The built-in photographs of blood cells with their labels (`assets/bccd-demo`), and how they get into a folder.

use crate::failure::Failure;
use std::path::{Path, PathBuf};

/// A picture with its labels.
struct Item {
    stem: &'static str,
    jpeg: &'static [u8],
    labels: &'static str,
}

macro_rules! path {
    ($kind:literal, $part:literal, $number:literal, $suffix:literal) => {
        concat!("../../../../assets/bccd-demo/", $kind, "/", $part, "/BloodImage_", $number, $suffix)
    };
}

macro_rules! items {
    ($part:literal: $($number:literal,)*) => {
        &[$(Item {
            stem: concat!("BloodImage_", $number),
            jpeg: include_bytes!(path!("images", $part, $number, ".jpg")),
            labels: include_str!(path!("labels", $part, $number, ".txt")),
        }),*]
    };
}

#[rustfmt::skip]
const TRAIN: &[Item] = items!(
    "train":
        "00001", "00003", "00004", "00005", "00006", "00008", "00009", "00010", "00012", "00013", "00020",
        "00022", "00023", "00024", "00026", "00032", "00034", "00036", "00038", "00039", "00040", "00042",
        "00043", "00044", "00045", "00046", "00047", "00048", "00049", "00050", "00052", "00054", "00056",
        "00059", "00069", "00070", "00071", "00076", "00078", "00079", "00081", "00082", "00083", "00086",
        "00087", "00090", "00091", "00092", "00094", "00095", "00097", "00100", "00101", "00106", "00107",
        "00108",
);

#[rustfmt::skip]
const VAL: &[Item] = items!(
    "val":
        "00000", "00002", "00014", "00017", "00028", "00029", "00030", "00035", "00037", "00053", "00055",
        "00064", "00066", "00072", "00073", "00089", "00099", "00104", "00109", "00111", "00115", "00125",
        "00130", "00140",
);

/// Files at the root of the data set.
const FILES: [(&str, &str); 3] = [
    ("data.yaml", include_str!("../../../../assets/bccd-demo/data.yaml")),
    ("README.md", include_str!("../../../../assets/bccd-demo/README.md")),
    ("LICENSE", include_str!("../../../../assets/bccd-demo/LICENSE")),
];

/// Where the data set was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoData {
    pub yaml: PathBuf,
    pub val_images: PathBuf,
    pub train_pictures: usize,
    pub val_pictures: usize,
}

/// Writes the data set into `folder`.
///
/// # Errors
/// Folders and files that cannot be written.
pub fn write_data(folder: &Path) -> Result<DemoData, Failure> {
    for (part, items) in [("train", TRAIN), ("val", VAL)] {
        let (images, labels) = (folder.join("images").join(part), folder.join("labels").join(part));
        for place in [&images, &labels] {
            std::fs::create_dir_all(place).map_err(|e| cannot("create", place, &e))?;
        }
        for item in items {
            write(&images.join(item.stem).with_extension("jpg"), item.jpeg)?;
            write(&labels.join(item.stem).with_extension("txt"), item.labels.as_bytes())?;
        }
    }
    for (name, text) in FILES {
        write(&folder.join(name), text.as_bytes())?;
    }
    Ok(DemoData {
        yaml: folder.join("data.yaml"),
        val_images: folder.join("images").join("val"),
        train_pictures: TRAIN.len(),
        val_pictures: VAL.len(),
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|e| cannot("write", path, &e))
}

fn cannot(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot {action} {}: {error}", path.display()), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_of_the_data_set_is_a_box_of_one_of_three_classes() {
        for item in TRAIN.iter().chain(VAL) {
            assert!(item.jpeg.starts_with(&[0xFF, 0xD8]) && item.jpeg.ends_with(&[0xFF, 0xD9]), "{}", item.stem);
            for row in item.labels.lines() {
                let fields: Vec<f64> = row.split_whitespace().map(|f| f.parse().unwrap()).collect();
                assert_eq!(fields.len(), 5, "{}: {row}", item.stem);
                assert!(fields[0] < 3.0 && fields[1..].iter().all(|f| (0.0..=1.0).contains(f)), "{}: {row}", item.stem);
            }
        }
    }

    #[test]
    fn no_picture_is_in_both_parts() {
        assert!(TRAIN.iter().all(|t| VAL.iter().all(|v| v.stem != t.stem && v.jpeg != t.jpeg)));
        assert!(TRAIN.len() + VAL.len() <= 80);
    }
}
