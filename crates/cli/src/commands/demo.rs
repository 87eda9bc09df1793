//! `yolov9 demo`.

use super::saved_to;
use crate::console::{Console, out, words};
use crate::demo::{DemoSettings, write_data};
use crate::failure::{Failure, INTERRUPTED};
use crate::{device, interrupt};
use clap::Args;
use report::run_folder::create_run_folder;
use std::path::{Path, PathBuf};
use std::time::Instant;
use train::TrainEnd;

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Folder to write to, new or empty [default: runs/demo, with a number where that is taken]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Epochs
    #[arg(long, value_name = "N", default_value_t = DemoSettings::default().epochs)]
    epochs: usize,
    /// Images a step
    #[arg(long, visible_alias = "batch", value_name = "N", default_value_t = DemoSettings::default().batch_size)]
    batch_size: usize,
    /// Side of the network input in pixels
    #[arg(long, visible_aliases = ["img", "img-size"], value_name = "PIXELS", default_value_t = DemoSettings::default().image_size)]
    imgsz: usize,
    /// Seed of weights and augmentation
    #[arg(long, value_name = "N", default_value_t = DemoSettings::default().seed)]
    seed: u64,
}

/// Trains on the built-in photographs, validates, and detects on those that were not trained on.
///
/// # Errors
/// What is printed when it does not succeed.
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    let settings = DemoSettings {
        epochs: args.epochs,
        batch_size: args.batch_size,
        image_size: args.imgsz,
        seed: args.seed,
        ..DemoSettings::default()
    };
    let start = Instant::now();
    device::announce();
    let folder = output_folder(args.out.as_deref())?;
    let data = write_data(&folder.join("data"))?;
    out(&format!(
        "demo: {} photographs of blood cells to train on, {} others to measure on; {} at {} pixels, {} epochs",
        data.train_pictures, data.val_pictures, settings.model, settings.image_size, settings.epochs
    ));
    let mut console = Console::default();
    interrupt::graceful(true);
    let trained = train::run(&settings.train_options(&folder, &data.yaml), &mut console)?;
    if trained.end == TrainEnd::Interrupted {
        saved_to(&folder);
        return Err(Failure::silent(INTERRUPTED));
    }
    interrupt::graceful(false);
    let Some(weights) = trained.best.or(trained.last) else {
        return Err(Failure::new(format!("{}: training wrote no weights", trained.folder.display()), None));
    };
    let found = train::detect(&settings.detect_options(&folder, &weights, &data.val_images), &mut console)?;
    let boxes: usize = found.images.iter().map(|image| image.boxes.len()).sum();
    if let Some(metrics) = trained.metrics {
        out(&format!(
            "mAP50 {:.3}, mAP50-95 {:.3} on photographs it was not trained on",
            metrics.map50, metrics.map50_95
        ));
    }
    out(&format!("{} pictures with {boxes} boxes: {}", found.images.len(), found.folder.display()));
    out(&format!("weights: {}", weights.display()));
    out(&format!("took {}; your own photographs: docs/training.md", words(start.elapsed())));
    saved_to(&folder);
    Ok(())
}

/// The folder of the demo: only a new or an empty one, so that nothing is overwritten.
fn output_folder(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(folder) = asked else { return Ok(create_run_folder(Path::new("runs"), "demo", false)?) };
    let fails = |e: std::io::Error| Failure::new(format!("cannot create {}: {e}", folder.display()), None);
    if folder.exists() {
        let mut entries = std::fs::read_dir(folder).map_err(fails)?;
        if entries.next().is_some() {
            let hint = Some("name a new folder with --out".to_owned());
            return Err(Failure::new(format!("{} is not empty", folder.display()), hint));
        }
    }
    std::fs::create_dir_all(folder).map_err(fails)?;
    Ok(folder.to_path_buf())
}
