//! A run's memory as a picture: all of it by part, and the arena over the ops of a step.

use crate::memory::{Memory, Part};
use crate::report::{Report, gibi, timeline};
use report::draw::Canvas;
use report::palette::Rgb;

const WIDTH: usize = 1280;
const HEIGHT: usize = 720;
const WHITE: Rgb = [255, 255, 255];
const INK: Rgb = [40, 40, 40];
const GRID: Rgb = [225, 225, 225];
const TEXT: f32 = 18.0;
const TITLE: f32 = 24.0;

/// The bar of all parts.
const BAR: [i64; 2] = [90, 210];
/// Left and right edge of the timeline.
const TIME: [i64; 2] = [590, 1250];
/// Top and bottom of both.
const PLOT: [i64; 2] = [90, 640];
/// Lines that a scale may have.
const LINES: f64 = 6.0;

/// Colours of parts, in the order of [`Part::ALL`].
const COLOURS: [Rgb; Part::ALL.len()] = [
    [60, 90, 160],
    [220, 110, 60],
    [70, 150, 90],
    [150, 200, 110],
    [240, 190, 70],
    [170, 90, 160],
    [90, 180, 200],
    [200, 200, 200],
    [120, 120, 190],
    [200, 80, 110],
    [110, 110, 110],
];

/// Draws it.
///
/// # Errors
/// None for a picture of this size.
pub fn draw(report: &Report, memory: &Memory) -> report::Result<Canvas> {
    let mut canvas = Canvas::filled(WIDTH, HEIGHT, WHITE)?;
    let title = format!(
        "{}, {} pixels, batch {}, {}, {}: {:.2} GiB on each card",
        report.model,
        report.imgsz,
        report.batch,
        report.precision[0],
        report.level,
        gibi(report.total_bytes)
    );
    canvas.text(&title, 30, 20, TITLE, INK);
    let alive = timeline(memory);
    bar(&mut canvas, memory, &alive);
    over_time(&mut canvas, report, memory, &alive);
    Ok(canvas)
}

/// A scale of GiB from 0 to at least `most` bytes.
struct Scale {
    top: f64,
    step: f64,
}

impl Scale {
    fn of(most: u64) -> Self {
        let most = gibi(most).max(1e-3);
        let rough = most / LINES;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough).unwrap_or(rough);
        Self { top: step * (most / step).ceil(), step }
    }

    /// Row of a number of bytes.
    fn row(&self, bytes: u64) -> i64 {
        PLOT[1] - (gibi(bytes) / self.top * (PLOT[1] - PLOT[0]) as f64).round() as i64
    }

    fn draw(&self, canvas: &mut Canvas, [left, right]: [i64; 2]) {
        let decimals = if self.step >= 1.0 && self.step.fract() == 0.0 { 0 } else { 2 };
        for line in 0..=(self.top / self.step).round() as usize {
            let value = line as f64 * self.step;
            let y = PLOT[1] - (value / self.top * (PLOT[1] - PLOT[0]) as f64).round() as i64;
            canvas.fill(left, y, right, y + 1, GRID);
            let label = format!("{value:.decimals$}");
            let width = report::font::text_width(&label, TEXT).ceil() as i64;
            canvas.text(&label, left - width - 8, y - TEXT as i64 / 2, TEXT, INK);
        }
    }
}

/// The bar, and the names of all parts that either picture shows: what is computed twice, for one, may be nothing where
/// the arena is fullest.
fn bar(canvas: &mut Canvas, memory: &Memory, alive: &[[u64; Part::ALL.len()]]) {
    let scale = Scale::of(memory.total());
    canvas.text("GiB", BAR[0] - 50, PLOT[0] - 34, TEXT, INK);
    scale.draw(canvas, BAR);
    let (mut below, mut labels) = (0, Vec::new());
    for (i, ((part, bytes), colour)) in memory.parts().into_iter().zip(COLOURS).enumerate() {
        if bytes == 0 && alive.iter().all(|at| at[i] == 0) {
            continue;
        }
        let (bottom, top) = (scale.row(below), scale.row(below + bytes));
        canvas.fill(BAR[0], top, BAR[1], bottom, colour);
        labels.push((part, bytes, colour));
        below += bytes;
    }
    // The largest part may be on top of small ones: names stand in a list of their own, in the bar's order.
    for (i, (part, bytes, colour)) in labels.iter().rev().enumerate() {
        let top = PLOT[0] + 40 * i as i64;
        canvas.fill(BAR[1] + 24, top + 2, BAR[1] + 40, top + 18, *colour);
        canvas.text(&format!("{:.2}  {}", gibi(*bytes), part.name()), BAR[1] + 48, top, TEXT, INK);
    }
}

fn over_time(canvas: &mut Canvas, report: &Report, memory: &Memory, alive: &[[u64; Part::ALL.len()]]) {
    let scale = Scale::of(memory.arena());
    canvas.text("arena over the ops of a step, GiB", TIME[0], PLOT[0] - 34, TEXT, INK);
    scale.draw(canvas, TIME);
    let width = TIME[1] - TIME[0];
    for x in 0..width {
        // The fullest of the ops that share a column, so that no peak is lost.
        let op = |x: i64| (x as usize * alive.len()) / width as usize;
        let ops = op(x)..op(x + 1).max(op(x) + 1).min(alive.len());
        let Some(fullest) = alive.get(ops).unwrap_or_default().iter().max_by_key(|at| at.iter().sum::<u64>()) else {
            continue;
        };
        let mut below = 0;
        for (bytes, colour) in fullest.iter().zip(COLOURS) {
            canvas.fill(TIME[0] + x, scale.row(below + bytes), TIME[0] + x + 1, scale.row(below), colour);
            below += bytes;
        }
    }
    let column = |op: usize| TIME[0] + (op as i64 * width) / alive.len().max(1) as i64;
    let backward = column(memory.plan.forward_ops());
    canvas.fill(backward, PLOT[0], backward + 1, PLOT[1], INK);
    canvas.text("forward", TIME[0], PLOT[1] + 8, TEXT, INK);
    canvas.text("backward", backward + 6, PLOT[1] + 8, TEXT, INK);
    let ends = format!("{} ops; fullest at op {}, {}", report.ops, report.fullest_at, report.fullest_in);
    canvas.text(&ends, TIME[0], PLOT[1] + 36, TEXT, INK);
}
