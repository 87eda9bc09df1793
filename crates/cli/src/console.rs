//! What appears on the terminal: results on stdout; warnings, errors and progress bars on stderr.
//!
//! Bars are drawn only where stderr is a terminal. Lines that cannot be written, such as into a closed pipe, are lost
//! without ending the work.

use anstyle::{AnsiColor, Style};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use report::tables::{TrainingRow, training_header, training_row};
use std::io::Write;
use std::time::{Duration, Instant};
use train::{Observer, Progress, TrainProgress};

/// Writes a line to stdout.
pub fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes `warning: …` to stderr.
pub fn warning(line: &str) {
    labelled("warning", AnsiColor::Yellow, line);
}

/// Writes `note: …` to stderr.
pub fn note(line: &str) {
    labelled("note", AnsiColor::Cyan, line);
}

/// Writes `label: …` to stderr, in cyan for hints and red otherwise.
pub fn error_line(label: &str, line: &str) {
    labelled(label, if label == "hint" { AnsiColor::Cyan } else { AnsiColor::Red }, line);
}

/// Colours are left out where `NO_COLOR` is set or stderr is no terminal.
fn labelled(label: &str, color: AnsiColor, line: &str) {
    let style = Style::new().bold().fg_color(Some(color.into()));
    let _ = writeln!(anstream::stderr(), "{style}{label}:{style:#} {line}");
}

/// Shows what a run says.
#[derive(Debug, Default)]
pub struct Console {
    bar: Option<(Stage, ProgressBar)>,
    /// When the epoch under way was first heard of.
    epoch_start: Option<(usize, Instant)>,
    /// The last line was a row of the training table or its header.
    in_training_table: bool,
}

/// What a bar is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Scan(&'static str),
    Epoch(usize),
    Validate,
    Detect,
}

impl Console {
    fn print(&mut self, line: &str) {
        match &self.bar {
            Some((_, bar)) => bar.suspend(|| out(line)),
            None => out(line),
        }
    }

    fn draw(&mut self, stage: Stage, done: usize, total: usize, message: String) {
        if self.bar.as_ref().is_none_or(|(shown, _)| *shown != stage) {
            self.clear();
            self.bar = Some((stage, new_bar(total)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_message(message);
            bar.set_position(done as u64);
        }
        if done >= total {
            self.clear();
        }
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn train(&mut self, p: &TrainProgress) {
        let start = match self.epoch_start {
            Some((epoch, start)) if epoch == p.epoch => start,
            // The first batch is done when it is heard of: its time is guessed from the rate.
            _ => Instant::now().checked_sub(first_batch_time(p)).unwrap_or_else(Instant::now),
        };
        self.epoch_start = Some((p.epoch, start));
        let [box_loss, class_loss, dfl_loss] = p.losses;
        let epoch_time = start.elapsed() + p.eta;
        let whole = p.eta + epoch_time * u32::try_from(p.epochs.saturating_sub(p.epoch + 1)).unwrap_or(u32::MAX);
        let message = format!(
            "epoch {}/{}  box {box_loss:.3}  cls {class_loss:.3}  dfl {dfl_loss:.3}  {:.1} img/s  epoch {} run {}",
            p.epoch,
            p.epochs.saturating_sub(1),
            p.images_per_second,
            clock(p.eta),
            clock(whole)
        );
        self.draw(Stage::Epoch(p.epoch), p.done, p.total, message);
        if p.done >= p.total {
            self.row(p, start.elapsed());
        }
    }

    /// The line that stays of an epoch.
    fn row(&mut self, p: &TrainProgress, time: Duration) {
        if !self.in_training_table {
            out(&training_header());
            self.in_training_table = true;
        }
        let memory = format!("{:.2}G", p.memory as f64 / 1e9);
        let row = training_row(&TrainingRow {
            epoch: p.epoch,
            epochs: p.epochs,
            memory: &memory,
            losses: p.losses,
            instances: p.instances,
            image_size: p.image_size,
        });
        out(&format!("{row}  {:.1} img/s  {}", p.images_per_second, clock(time)));
    }
}

impl Observer for Console {
    fn info(&mut self, line: &str) {
        self.in_training_table = line == training_header();
        self.print(line);
    }

    fn warn(&mut self, line: &str) {
        self.in_training_table = false;
        match &self.bar {
            Some((_, bar)) => bar.suspend(|| warning(line)),
            None => warning(line),
        }
    }

    fn progress(&mut self, progress: &Progress) {
        match progress {
            Progress::Scan { split, done, total } => {
                self.draw(Stage::Scan(split), *done, *total, format!("scanning {split}"));
            }
            Progress::Train(progress) => self.train(progress),
            Progress::Validate { done, total, images_per_second, eta } => {
                let message = format!("validating  {images_per_second:.1} img/s  {}", clock(*eta));
                self.draw(Stage::Validate, *done, *total, message);
            }
            Progress::Detect { done, total } => self.draw(Stage::Detect, *done, *total, "detecting".to_owned()),
        }
    }

    fn should_stop(&self) -> bool {
        crate::interrupt::asked()
    }
}

fn new_bar(total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
        bar.set_style(style.progress_chars("━╸ "));
    }
    bar
}

fn first_batch_time(p: &TrainProgress) -> Duration {
    p.eta.checked_div(u32::try_from(p.total.saturating_sub(p.done)).unwrap_or(u32::MAX)).unwrap_or_default()
}

/// `0:07`, `12:34`, `1:02:03`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, m, s) => format!("{m}:{s:02}"),
        (h, m, s) => format!("{h}:{m:02}:{s:02}"),
    }
}

/// `3 minutes`.
pub fn words(time: Duration) -> String {
    HumanDuration(Duration::from_secs(time.as_secs_f64().round() as u64)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_seconds() {
        assert_eq!(clock(Duration::from_millis(7400)), "0:07");
        assert_eq!(clock(Duration::from_secs(754)), "12:34");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }
}
