//! Training that is stopped from outside: by Ctrl-C, by other signals, at any time, and by a full disk.

use crate::harness::{Place, Ran, ran};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A model of a few thousand parameters.
const MICRO: &str = "\
nc: 2
backbone:
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [8, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
  - [-1, 1, Conv, [16, 3, 2]]
head:
  - [[2, 3, 4], 1, DDetect, [nc]]
";
const HYP: &str = "warmup_epochs: 0\nwarmup_min_iterations: 3\nnominal_batch: 3\nmosaic: 1.0\nmixup: 0.5\n";

/// A folder with `images` photographs, the model and the hyper-parameters.
fn place(images: usize) -> Place {
    let place = Place::new();
    place.data_set(images, "0 .5 .5 .4 .4\n1 .3 .3 .2 .2\n");
    place.write("micro.yaml", MICRO);
    place.write("hyp.yaml", HYP);
    place
}

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let base = "train --data set/data.yaml --cfg micro.yaml --hyp hyp.yaml --cache ram --threads 1 --workers 1";
    base.split(' ').chain(more.iter().copied()).collect()
}

fn last(place: &Place, run: &str) -> PathBuf {
    place.path(&format!("runs/train/{run}/weights/last.safetensors"))
}

fn rows(place: &Place, run: &str) -> Vec<Vec<f64>> {
    let path = place.path(&format!("runs/train/{run}/results.csv"));
    report::results_csv::read_results(&path).unwrap().rows
}

/// Waits until `done` holds, and fails after half a minute.
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A command that has started.
struct Started(Option<Child>);

impl Started {
    fn new(place: &Place, args: &[&str]) -> Self {
        let mut command = place.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().unwrap()
    }

    fn ended(&mut self) -> bool {
        self.child().try_wait().unwrap().is_some()
    }

    /// Sends a signal; one that comes too late is lost.
    fn signal(&mut self, name: &str) {
        let script = format!("kill -{name} {} 2>/dev/null", self.child().id());
        std::process::Command::new("sh").args(["-c", &script]).status().unwrap();
    }

    fn finish(mut self) -> Ran {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { stdout: text(output.stdout), stderr: text(output.stderr), code: output.status.code() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The bytes of a safetensors file behind its header.
fn tensor_bytes(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap();
    let header = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn interrupts_and_terminations_save_and_the_run_ends_as_if_undisturbed() {
    let place = place(4);
    let more = ["--img", "64", "--batch", "2", "--epochs", "40", "--close-mosaic", "10", "--patience", "0"];
    let whole = place.run(&train(&[more.as_slice(), &["--name", "whole"]].concat()));
    assert_eq!(whole.code, Some(0), "{whole:?}");

    let mut args: Vec<String> =
        train(&[more.as_slice(), &["--name", "cut"]].concat()).iter().map(|a| a.to_string()).collect();
    let csv = place.path("runs/train/cut/results.csv");
    let mut stopped = 0;
    for (signal, wait_ms) in [("INT", 0), ("TERM", 15), ("INT", 40), ("TERM", 5), ("INT", 70)] {
        let begun = std::fs::read(&csv).unwrap_or_default();
        let mut run = Started::new(&place, &args.iter().map(String::as_str).collect::<Vec<_>>());
        // Something new was written: it is past its start, in whatever part of an epoch.
        wait("an epoch", || run.ended() || std::fs::read(&csv).is_ok_and(|now| now.len() > begun.len()));
        std::thread::sleep(Duration::from_millis(wait_ms));
        run.signal(signal);
        let ran = run.finish();
        if ran.code == Some(0) {
            break;
        }
        stopped += 1;
        assert_eq!(ran.code, Some(130), "{signal}: {ran:?}");
        assert!(ran.labelled("note")[0].starts_with("stopping after this step"), "{ran:?}");
        let line = ran.stdout.lines().last().unwrap();
        let command = line.strip_prefix("stopped; go on with: yolov9 ").unwrap_or_else(|| panic!("{ran:?}"));
        args = command.split(' ').map(str::to_owned).collect();
        assert_eq!(args, ["train", "--resume", "runs/train/cut"]);
    }
    assert!(stopped > 1, "the run ended before it was stopped");
    let ran = place.run(&["train", "--resume", "runs/train/cut"]);
    assert!(ran.code == Some(0) || ran.stderr.contains("all 40 epochs of it are done"), "{ran:?}");
    assert!(tensor_bytes(&last(&place, "whole")) == tensor_bytes(&last(&place, "cut")), "stopped {stopped} times");
    let best = |run: &str| std::fs::read(place.path(&format!("runs/train/{run}/weights/best.safetensors"))).unwrap();
    assert!(best("whole") == best("cut"));
    assert_eq!(rows(&place, "whole"), rows(&place, "cut"));
}

#[test]
fn a_second_interrupt_quits_at_once_and_leaves_the_checkpoint_before() {
    let place = place(8);
    // One long step an epoch. On a busy machine it may end before the second signal comes: then once more.
    for name in ["twice", "twice2", "twice3", "twice4", "twice5"] {
        let args = ["--img", "640", "--batch", "8", "--epochs", "3", "--noval", "--noplots", "--name", name];
        let mut run = Started::new(&place, &train(&args));
        let last = last(&place, name);
        wait("a checkpoint", || last.is_file() || run.ended());
        let before = std::fs::read(&last).unwrap();
        run.signal("INT");
        std::thread::sleep(Duration::from_millis(10));
        run.signal("INT");
        let ran = run.finish();
        assert_eq!(ran.code, Some(130), "{ran:?}");
        if ran.stdout.contains("go on with") {
            continue;
        }
        assert!(std::fs::read(&last).unwrap() == before);
        let resumed = place.run(&["train", "--resume", &format!("runs/train/{name}")]);
        assert_eq!(resumed.code, Some(0), "{resumed:?}");
        assert_eq!(rows(&place, name).len(), 3);
        return;
    }
    panic!("five times the step was finished before the run quit");
}

/// Kills a run again and again while it saves with nearly every breath. `YOLOV9_TEST_KILLS` asks for more kills.
#[test]
fn a_killed_run_leaves_a_whole_checkpoint_and_goes_on() {
    let kills: u64 = std::env::var("YOLOV9_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let place = place(1);
    let first = ["--img", "64", "--batch", "1", "--epochs", "100000", "--patience", "0", "--save-period", "1"];
    let first = train(&[first.as_slice(), &["--noplots", "--name", "killed"]].concat());
    let last = last(&place, "killed");
    let folder = place.path("runs/train/killed/weights");
    let is_half = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with('.');
    let half = || std::fs::read_dir(&folder).unwrap().flatten().filter(|e| is_half(&e.file_name())).count();
    let (mut seed, mut epochs, mut halves) = (20_u64, 0, 0);
    for kill in 0..kills {
        let args = if kill == 0 { first.clone() } else { vec!["train", "--resume", "runs/train/killed"] };
        let begun = std::fs::metadata(&last).and_then(|m| m.modified()).ok();
        let mut run = Started::new(&place, &args);
        wait("a save", || run.ended() || std::fs::metadata(&last).and_then(|m| m.modified()).ok() != begun);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((seed >> 33) % 40_000));
        assert!(!run.ended(), "kill {kill}: {:?}", run.finish());
        run.signal("KILL");
        assert_eq!(run.finish().code, None);
        halves += usize::from(half() > 0);
        let loaded = model::weights::load(&last).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
        let now: usize = loaded.meta.unwrap().extra["epochs"].parse().unwrap();
        assert!(now > epochs, "kill {kill}: epoch {now} after {epochs}");
        epochs = now;
        // The epochs that are kept must not fill the disk.
        std::fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("epoch"))
            .for_each(|e| {
                model::weights::load(&e.path()).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
                std::fs::remove_file(e.path()).unwrap();
            });
    }
    println!("{kills} kills, {epochs} epochs, half-written files after {halves} kills");
    std::fs::write(folder.join(".writing-AbCdEf.safetensors"), "half").unwrap();
    let all = (epochs + 1).to_string();
    let ended = place.run(&["train", "--resume", "runs/train/killed", "--epochs", &all]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(half(), 0, "half-written files stay");
    let numbers: Vec<f64> = rows(&place, "killed").iter().map(|row| row[0]).collect();
    assert_eq!(numbers, (0..=epochs).map(|n| n as f64).collect::<Vec<_>>());
}

/// A limit of the size of files stands for a full disk: writing fails in the middle.
#[test]
fn a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_the_one_before() {
    let place = place(2);
    let args = train(&["--img", "64", "--batch", "2", "--epochs", "2", "--noplots", "--name", "full"]);
    let limited = |args: &[&str], kilobytes: u64| {
        let command = place.command(args);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut shell = std::process::Command::new("sh");
        // Blocks of 512 bytes. The signal that comes with the error would end the program without a word.
        let script = format!("trap '' XFSZ; ulimit -f {}; exec {program} {}", 2 * kilobytes, args.join(" "));
        shell.args(["-c", &script]).current_dir(place.path("")).stdin(Stdio::null());
        ran(shell)
    };
    // `last` holds the weights three times, `best` once: the limit lies between.
    let whole = place.run(&train(&["--img", "64", "--batch", "2", "--epochs", "1", "--noplots", "--name", "whole"]));
    assert_eq!(whole.code, Some(0), "{whole:?}");
    let limit = std::fs::metadata(last(&place, "whole")).unwrap().len() / 1024 * 3 / 4;

    let refused = limited(&args, limit);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let error = refused.labelled("error")[0];
    assert!(error.starts_with("cannot write runs/train/full/weights/last.safetensors: "), "{refused:?}");
    assert!(refused.labelled("hint")[0].contains("without a checkpoint"), "{refused:?}");
    assert!(!last(&place, "full").exists());

    let resume = ["train", "--resume", "runs/train/whole", "--epochs", "3"];
    let before = std::fs::read(last(&place, "whole")).unwrap();
    let refused = limited(&resume, limit);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.labelled("error")[0].starts_with("cannot write runs/train/whole/weights/last.safetensors: "));
    let hint = refused.labelled("hint")[0];
    assert!(hint.contains("go on with --resume runs/train/whole/weights/last.safetensors"), "{refused:?}");
    assert!(!refused.stdout.contains("Results saved"), "{refused:?}");
    assert!(std::fs::read(last(&place, "whole")).unwrap() == before);
    assert_eq!(place.run(&resume).code, Some(0));
    assert_eq!(rows(&place, "whole").len(), 3);
}

#[test]
fn a_flag_that_a_run_cannot_follow_is_wrong_usage() {
    let place = place(1);
    let ran = place.run(&train(&["--img", "64", "--epochs", "1", "--noval", "--noplots", "--name", "kept"]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (flag, value, said) in [
        ("--batch", "3", "--batch 3 was asked for, but the run has 16"),
        ("--img", "96", "--img 96 was asked for, but the run has 64"),
        ("--seed", "1", "--seed 1 was asked for, but the run has 0"),
        ("--optimizer", "adamw", "--optimizer \"AdamW\" was asked for, but the run has \"SGD\""),
        ("--close-mosaic", "1", "--close-mosaic 1 was asked for, but the run has 0"),
    ] {
        let ran = place.run(&["train", "--resume", "runs/train/kept", "--epochs", "2", flag, value]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.labelled("error")[0].ends_with(said), "{ran:?}");
        assert!(ran.labelled("hint")[0].contains("leave the flag out"), "{ran:?}");
    }
}
