//! What appears on the terminal: results on stdout; warnings, errors and progress bars on stderr.
//!
//! Bars are drawn only where stderr is a terminal, and lose columns where it is narrow. Lines that cannot be written are
//! lost without ending the work: a training run outlives its terminal. What was lost is told at the end, unless the
//! reader went away on purpose, as `head` does.

use crate::failure::Failure;
use anstyle::{AnsiColor, Style};
use indicatif::{HumanDuration, ProgressBar, ProgressStyle};
use report::tables::{TrainingRow, training_header, training_row};
use std::io::{ErrorKind, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use train::{Observer, Progress, Quantity, Reading, TrainProgress};

/// The first line that could not be written to stdout, and why.
static LOST: Mutex<Option<String>> = Mutex::new(None);

/// Writes a line to stdout.
pub fn out(line: &str) {
    note_output(writeln!(std::io::stdout(), "{line}"));
}

/// Remembers that something could not be written to stdout. A closed pipe is no mistake.
pub fn note_output(result: std::io::Result<()>) {
    if let Err(error) = result
        && error.kind() != ErrorKind::BrokenPipe
        && let Ok(mut lost) = LOST.lock()
    {
        lost.get_or_insert_with(|| error.to_string());
    }
}

/// To be called at the end.
///
/// # Errors
/// Lines for stdout were lost.
pub fn check_output() -> Result<(), Failure> {
    note_output(std::io::stdout().flush());
    match LOST.lock().ok().and_then(|mut lost| lost.take()) {
        Some(why) => Err(Failure::new(format!("cannot write to stdout: {why}"), None)),
        None => Ok(()),
    }
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

    /// `columns` in reading order, each with its rank: narrow terminals lose the highest ranks first.
    fn draw(&mut self, stage: Stage, done: usize, total: usize, columns: &[(u8, String)]) {
        if self.bar.as_ref().is_none_or(|(shown, _)| *shown != stage) {
            self.clear();
            self.bar = Some((stage, new_bar(total)));
        }
        if let Some((_, bar)) = &self.bar {
            // The bar's place may shrink to nothing; the count of batches stays.
            let count = format!("  {total}/{total}").len();
            bar.set_message(fitting(columns, terminal_width().saturating_sub(count)));
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
        let epoch_time = start.elapsed() + p.eta;
        let whole = p.eta + epoch_time * u32::try_from(p.epochs.saturating_sub(p.epoch + 1)).unwrap_or(u32::MAX);
        let columns = training_columns(p, whole);
        self.draw(Stage::Epoch(p.epoch), p.done, p.total, &columns);
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
                self.draw(Stage::Scan(split), *done, *total, &[(0, format!("scanning {split}"))]);
            }
            Progress::Train(progress) => self.train(progress),
            Progress::Validate { done, total, images_per_second, eta } => {
                let columns =
                    [(0, "validating".to_owned()), (2, format!("{images_per_second:.1} img/s")), (1, clock(*eta))];
                self.draw(Stage::Validate, *done, *total, &columns);
            }
            Progress::Detect { done, total } => {
                self.draw(Stage::Detect, *done, *total, &[(0, "detecting".to_owned())]);
            }
        }
    }

    fn should_stop(&self) -> bool {
        crate::interrupt::asked()
    }
}

/// A bar of its own, for work that no run reports on.
#[derive(Debug, Default)]
pub struct Bar {
    bar: Option<ProgressBar>,
}

impl Bar {
    /// Draws `done` of `total`; `text` says what is under way.
    pub fn show(&mut self, done: usize, total: usize, text: &str) {
        let bar = self.bar.get_or_insert_with(|| new_bar(total));
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        bar.set_message(fitting(&[(0, text.to_owned())], terminal_width() / 2));
    }

    /// Writes a line to stdout above the bar.
    pub fn print(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| out(line)),
            None => out(line),
        }
    }

    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// What the bar of an epoch says, with the rank of each column; `whole` is the time to the end of the run.
///
/// Where a card is watched, what it does is worth more than single losses: 80 characters show how busy it is and whether
/// it waits, 120 what it takes, 170 all of it.
fn training_columns(p: &TrainProgress, whole: Duration) -> Vec<(u8, String)> {
    let [box_loss, class_loss, dfl_loss] = p.losses;
    let card = card_columns(p);
    let later = if card.is_empty() { 0 } else { 6 };
    let mut columns = vec![
        (0, format!("epoch {}/{}", p.epoch, p.epochs.saturating_sub(1))),
        (2, format!("box {box_loss:.3}")),
        (3 + later, format!("cls {class_loss:.3}")),
        (4 + later, format!("dfl {dfl_loss:.3}")),
        (if later > 0 { 4 } else { 5 }, format!("{:.1} img/s", p.images_per_second)),
        (if later > 0 { 5 } else { 6 }, format!("wait {:.0}%", 100.0 * p.data_wait)),
    ];
    columns.extend(card);
    columns.push((7 + later, format!("epoch {}", clock(p.eta))));
    columns.push((1, format!("run {}", clock(whole))));
    columns
}

/// What a card tells and what is known of it, none of it without one.
fn card_columns(p: &TrainProgress) -> Vec<(u8, String)> {
    let told = |quantity| p.card.as_deref().and_then(|reading: &Reading| reading.get(quantity));
    let columns = [
        (3, told(Quantity::Utilisation).map(|percent| format!("GPU {percent:.0}%"))),
        (11, p.mfu.map(|share| format!("MFU {:.0}%", 100.0 * share))),
        (6, told(Quantity::MemoryUsed).map(|bytes| format!("{:.1}G", bytes / 1e9))),
        (7, told(Quantity::Power).map(|watts| format!("{watts:.0}W"))),
        (8, told(Quantity::Temperature).map(|celsius| format!("{celsius:.0}C"))),
        (12, told(Quantity::SmClock).map(|clock| format!("{clock:.0}MHz"))),
        (14, told(Quantity::Upload).map(|rate| format!("up {:.1}GB/s", rate / 1e3))),
    ];
    columns.into_iter().filter_map(|(rank, text)| Some((rank, text?))).collect()
}

/// Columns of the terminal that bars are drawn on.
fn terminal_width() -> usize {
    terminal_size::terminal_size_of(std::io::stderr()).map_or(usize::MAX, |(width, _)| usize::from(width.0))
}

/// As many columns as `room` characters hold; of the last one its start.
fn fitting(columns: &[(u8, String)], room: usize) -> String {
    let up_to = |rank: u8| {
        let kept: Vec<&str> = columns.iter().filter(|c| c.0 <= rank).map(|c| c.1.as_str()).collect();
        kept.join("  ")
    };
    let highest = columns.iter().map(|c| c.0).max().unwrap_or(0);
    let fits = (0..=highest).rev().map(up_to).find(|text| text.chars().count() <= room);
    fits.unwrap_or_else(|| up_to(0).chars().take(room).collect())
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
    fn narrow_terminals_lose_columns_instead_of_wrapping() {
        let columns = [(0, "epoch 3/9".to_owned()), (2, "box 1.234".to_owned()), (1, "run 0:07".to_owned())];
        assert_eq!(fitting(&columns, usize::MAX), "epoch 3/9  box 1.234  run 0:07");
        assert_eq!(fitting(&columns, 30), "epoch 3/9  box 1.234  run 0:07");
        assert_eq!(fitting(&columns, 29), "epoch 3/9  run 0:07");
        assert_eq!(fitting(&columns, 18), "epoch 3/9");
        assert_eq!(fitting(&columns, 4), "epoc");
        assert_eq!(fitting(&columns, 0), "");
        assert_eq!(fitting(&[], 10), "");
    }

    fn progress(card: Option<Reading>) -> TrainProgress {
        TrainProgress {
            epoch: 3,
            epochs: 500,
            done: 100,
            total: 7393,
            losses: [1.2345, 0.5678, 1.1111],
            instances: 123,
            image_size: 640,
            memory: 1 << 30,
            images_per_second: 1234.56,
            data_wait: 0.034,
            mfu: None,
            card: card.map(Box::new),
            eta: Duration::from_secs(95),
        }
    }

    /// The bar's text where the terminal has so many columns.
    fn bar(width: usize, card: Option<Reading>) -> String {
        let progress =
            TrainProgress { mfu: card.and_then(|c| c.get(Quantity::SmClock)).map(|_| 0.314), ..progress(card) };
        let columns = training_columns(&progress, Duration::from_secs(47_000));
        fitting(&columns, width - "  7393/7393".len())
    }

    #[test]
    fn the_bar_of_an_epoch_tells_the_most_important_of_few_columns_and_all_of_many() {
        assert_eq!(bar(80, None), "epoch 3/499  box 1.234  cls 0.568  dfl 1.111  run 13:03:20");
        assert_eq!(
            bar(120, None),
            "epoch 3/499  box 1.234  cls 0.568  dfl 1.111  1234.6 img/s  wait 3%  epoch 1:35  run 13:03:20"
        );
        let card = Reading::default()
            .with(Quantity::Utilisation, 98.0)
            .with(Quantity::MemoryUsed, 91.26e9)
            .with(Quantity::Power, 612.4)
            .with(Quantity::Temperature, 64.0)
            .with(Quantity::SmClock, 1980.0)
            .with(Quantity::Upload, 3140.0);
        assert_eq!(bar(80, Some(card)), "epoch 3/499  box 1.234  1234.6 img/s  wait 3%  GPU 98%  run 13:03:20");
        assert_eq!(
            bar(120, Some(card)),
            "epoch 3/499  box 1.234  cls 0.568  dfl 1.111  1234.6 img/s  wait 3%  GPU 98%  91.3G  612W  64C  run 13:03:20"
        );
        assert_eq!(
            bar(170, Some(card)),
            "epoch 3/499  box 1.234  cls 0.568  dfl 1.111  1234.6 img/s  wait 3%  GPU 98%  MFU 31%  91.3G  612W  64C  \
             1980MHz  up 3.1GB/s  epoch 1:35  run 13:03:20"
        );
    }

    #[test]
    fn what_a_card_does_not_tell_takes_no_place() {
        let card = Reading::default().with(Quantity::Power, 70.0);
        assert_eq!(
            bar(200, Some(card)),
            "epoch 3/499  box 1.234  cls 0.568  dfl 1.111  1234.6 img/s  wait 3%  70W  epoch 1:35  run 13:03:20"
        );
        assert_eq!(bar(200, Some(Reading::default())), bar(200, None));
    }

    #[test]
    fn times_are_rounded_to_seconds() {
        assert_eq!(clock(Duration::from_millis(7400)), "0:07");
        assert_eq!(clock(Duration::from_secs(754)), "12:34");
        assert_eq!(clock(Duration::from_secs(3723)), "1:02:03");
    }
}
