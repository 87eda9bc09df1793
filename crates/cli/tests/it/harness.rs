//! Runs the binary in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// What a run of the binary left.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Ran {
    /// Lines of stderr that start with `label:`, without it.
    pub fn labelled(&self, label: &str) -> Vec<&str> {
        let prefix = format!("{label}: ");
        self.stderr.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect()
    }
}

/// A folder that the binary runs in.
#[derive(Debug)]
pub struct Place {
    folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: TempDir::new().expect("a temporary folder") }
    }

    pub fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    /// Writes a file with its folders.
    pub fn write(&self, inside: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(inside);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        std::fs::write(&path, bytes).expect("a file");
    }

    /// The command with a clean environment, not run yet.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_yolov9"));
        command.args(args).current_dir(self.folder.path()).stdin(Stdio::null());
        // Help is wrapped to this width.
        command.env("COLUMNS", "100");
        // What a card computes is not what a snapshot shows.
        command.env("CUDA_VISIBLE_DEVICES", "");
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "RUST_BACKTRACE"] {
            command.env_remove(name);
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args))
    }

    /// A data set of `count` photographs for training and as many for validation, labels as given for each.
    pub fn data_set(&self, count: usize, labels: &str) {
        for part in ["train", "val"] {
            for (i, jpeg) in photographs(part).iter().take(count).enumerate() {
                self.write(&format!("set/images/{part}/{i}.jpg"), std::fs::read(jpeg).expect("a photograph"));
                self.write(&format!("set/labels/{part}/{i}.txt"), labels);
            }
        }
        self.write("set/data.yaml", "train: images/train\nval: images/val\nnames: [cell, other]\n");
    }
}

pub fn ran(mut command: Command) -> Ran {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8").replace('\\', "/");
    Ran { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
}

/// Photographs of the demo.
pub fn photographs(part: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/bccd-demo/images").join(part);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).expect("assets").flatten().map(|e| e.path()).collect();
    files.sort();
    files
}
