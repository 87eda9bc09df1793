//! A small made-up data set, and an observer that remembers.

use report::draw::Canvas;
use std::path::{Path, PathBuf};
use train::{Observer, Progress, TrainOptions, Workers};

/// Writes `train` and `val` pictures of 72x56 with one coloured rectangle each, and the data YAML; returns its path.
pub fn data_set(folder: &Path, train: usize, val: usize) -> PathBuf {
    for (split, count) in [("train", train), ("val", val)] {
        let (images, labels) = (folder.join("images").join(split), folder.join("labels").join(split));
        std::fs::create_dir_all(&images).unwrap();
        std::fs::create_dir_all(&labels).unwrap();
        for i in 0..count {
            let (width, height) = (72usize, 56usize);
            let mut canvas = Canvas::filled(width, height, [90, 90, 90]).unwrap();
            let (left, top) = ((7 * i + 5) % 40, (5 * i + 3) % 24);
            let colour = if i % 2 == 0 { [230, 40, 30] } else { [30, 60, 220] };
            canvas.fill(left as i64, top as i64, left as i64 + 28, top as i64 + 24, colour);
            report::jpeg::save_png(&images.join(format!("{split}{i:02}.png")), &canvas).unwrap();
            let (cx, cy) = ((left as f64 + 14.0) / width as f64, (top as f64 + 12.0) / height as f64);
            let row = format!("{} {cx} {cy} {} {}\n", i % 2, 28.0 / width as f64, 24.0 / height as f64);
            std::fs::write(labels.join(format!("{split}{i:02}.txt")), row).unwrap();
        }
    }
    let yaml = folder.join("data.yaml");
    std::fs::write(&yaml, "train: images/train\nval: images/val\nnames: [red, blue]\n").unwrap();
    yaml
}

/// A dual model small enough to train whole runs in a test.
const MICRO: &str = "\
nc: 2
depth_multiple: 1.0
width_multiple: 1.0
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, AConv, [24]]
  - [-1, 1, RepNCSPELAN4, [24, 16, 8, 1]]
  - [-1, 1, AConv, [32]]
  - [-1, 1, AConv, [40]]
head:
  - [-1, 1, SPPELAN, [40, 16]]
  - [-1, 1, nn.Upsample, [None, 2, nearest]]
  - [[-1, 4], 1, Concat, [1]]
  - [-1, 1, Conv, [32, 1, 1]]
  - [[3, 4, 5, 3, 9, 6], 1, DualDDetect, [nc]]
";

/// Options of a tiny run: 64 px, batches of 3, two batches a step, a short warm-up.
pub fn tiny(folder: &Path, data: &Path, name: &str) -> TrainOptions {
    let hyp = folder.join("hyp.yaml");
    let text = "warmup_epochs: 0\nwarmup_min_iterations: 3\nnominal_batch: 6\nbox: 5\nmosaic: 0.5\nmixup: 0.5\n";
    std::fs::write(&hyp, text).unwrap();
    let cfg = folder.join("micro.yaml");
    std::fs::write(&cfg, MICRO).unwrap();
    TrainOptions {
        cfg: Some(cfg),
        data: data.to_path_buf(),
        hyp,
        epochs: 2,
        batch_size: 3,
        imgsz: 64,
        workers: Workers::Count(2),
        project: folder.join("runs"),
        name: name.to_owned(),
        close_mosaic: 1,
        noplots: true,
        device: "cpu".to_owned(),
        ..TrainOptions::default()
    }
}

/// Remembers lines, and stops after some training batches.
#[allow(dead_code, reason = "not every binary of tests needs it")]
#[derive(Default)]
pub struct Memory {
    pub lines: Vec<String>,
    pub warnings: Vec<String>,
    pub batches: usize,
    /// Side of the network input of each batch, and the bytes that were taken then.
    pub sides: Vec<(usize, u64)>,
    pub stop_after: Option<usize>,
}

impl Observer for Memory {
    fn info(&mut self, line: &str) {
        self.lines.push(line.to_owned());
    }

    fn warn(&mut self, line: &str) {
        self.warnings.push(line.to_owned());
    }

    fn progress(&mut self, progress: &Progress) {
        if let Progress::Train(train) = progress {
            self.batches += 1;
            self.sides.push((train.image_size, train.memory));
        }
    }

    fn should_stop(&self) -> bool {
        self.stop_after.is_some_and(|n| self.batches >= n)
    }
}
