//! The files of a set: pictures, labels, data YAML.

use crate::classes;
use crate::error::SynthError;
use crate::paint::{Rgb, paint};
use crate::scene::Scene;
use files::write_bytes_atomic;
use jpeg_encoder::{ColorType, Encoder, EncodingError, SamplingFactor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Quality of the JPEG files: with it they have 120 kB on average.
const QUALITY: u8 = 92;
/// Most pictures of a part.
const MOST: usize = 10_000_000;
/// Most classes.
const MOST_CLASSES: usize = 1000;

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetOptions {
    /// New or empty.
    pub folder: PathBuf,
    /// Pictures for training, at least one.
    pub train: usize,
    /// Pictures for validation; without any the data YAML names no such part.
    pub val: usize,
    /// 1 to 1000.
    pub classes: usize,
    pub seed: u64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetReport {
    pub yaml: PathBuf,
    pub pictures: usize,
    pub boxes: u64,
    /// Bytes of the JPEG files.
    pub bytes: u64,
}

/// The random numbers of a picture: those of no other seed, part or number.
pub fn picture_rng(seed: u64, part: u64, number: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, part, number, u64::from_le_bytes(*b"picture ")]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A JPEG file with colours at half the resolution.
///
/// # Errors
/// Sides of 0 or above 65535 pixels.
pub fn encode(picture: &Rgb) -> Result<Vec<u8>, EncodingError> {
    let side = |side: usize| u16::try_from(side).unwrap_or(0);
    let mut bytes = Vec::with_capacity(1 << 18);
    let mut encoder = Encoder::new(&mut bytes, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.encode(&picture.pixels, side(picture.width), side(picture.height), ColorType::Rgb)?;
    Ok(bytes)
}

/// Writes a set on all threads of the pool that this runs in. `progress` gets pictures done and in all, from several
/// threads. Each file is written whole or not at all, the data YAML last.
///
/// # Errors
/// Options out of range, a folder that is not empty, files that cannot be written.
pub fn write(options: &SetOptions, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<SetReport, SynthError> {
    check(options)?;
    let parts = [("train", options.train), ("val", options.val)];
    for (part, _) in parts.iter().filter(|(_, count)| *count > 0) {
        for kind in ["images", "labels"] {
            create(&options.folder.join(kind).join(part))?;
        }
    }
    let total = options.train + options.val;
    let (done, boxes, bytes) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    (0..total).into_par_iter().try_for_each(|at| -> Result<(), SynthError> {
        let (part, number) = if at < options.train { (0, at) } else { (1, at - options.train) };
        let (scene, size) = write_picture(options, (part, parts[part].0), number)?;
        boxes.fetch_add(scene.objects.len() as u64, Ordering::Relaxed);
        bytes.fetch_add(size, Ordering::Relaxed);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
        Ok(())
    })?;
    let yaml = options.folder.join("data.yaml");
    write_bytes_atomic(&yaml, data_yaml(options).as_bytes())?;
    Ok(SetReport { yaml, pictures: total, boxes: boxes.into_inner(), bytes: bytes.into_inner() })
}

fn check(options: &SetOptions) -> Result<(), SynthError> {
    let refuse = |flag, value, range| Err(SynthError::Option { flag, value, range });
    if !(1..=MOST).contains(&options.train) {
        return refuse("images", options.train, "between 1 and 10000000");
    }
    if options.val > MOST {
        return refuse("val", options.val, "at most 10000000");
    }
    if !(1..=MOST_CLASSES).contains(&options.classes) {
        return refuse("classes", options.classes, "between 1 and 1000");
    }
    let folder = &options.folder;
    if folder.exists() {
        let fails = |source| SynthError::Folder { action: "read", path: folder.clone(), source };
        if std::fs::read_dir(folder).map_err(fails)?.next().is_some() {
            return Err(SynthError::NotEmpty { folder: folder.clone() });
        }
    }
    Ok(())
}

fn create(folder: &Path) -> Result<(), SynthError> {
    let fails = |source| SynthError::Folder { action: "create", path: folder.to_path_buf(), source };
    std::fs::create_dir_all(folder).map_err(fails)
}

/// Writes one picture and its labels, the labels first: a picture without them would be a background.
fn write_picture(options: &SetOptions, (part, name): (usize, &str), number: usize) -> Result<(Scene, u64), SynthError> {
    let mut rng = picture_rng(options.seed, part as u64, number as u64);
    let scene = Scene::draw(options.classes as u32, &mut rng);
    let file = |kind: &str, suffix: &str| options.folder.join(kind).join(name).join(format!("{number:012}.{suffix}"));
    let path = file("images", "jpg");
    let jpeg = encode(&paint(&scene, &mut rng)).map_err(|source| SynthError::Encode { path: path.clone(), source })?;
    write_bytes_atomic(&file("labels", "txt"), scene.label_rows().as_bytes())?;
    write_bytes_atomic(&path, &jpeg)?;
    Ok((scene, jpeg.len() as u64))
}

fn data_yaml(options: &SetOptions) -> String {
    let mut text = format!(
        "# Drawn by `yolov9 synth --images {} --val {} --classes {} --seed {}`.\npath: .\ntrain: images/train\n",
        options.train, options.val, options.classes, options.seed
    );
    if options.val > 0 {
        text += "val: images/val\n";
    }
    text += "names:\n";
    for class in 0..options.classes {
        text += &format!("  {class}: {}\n", classes::name(class));
    }
    text
}
