//! A canvas of RGB8 pixels to draw boxes and labels on. Coordinates may lie outside, or not be numbers at all: what is outside is cut
//! away, and a box with a NaN is not drawn.

use crate::error::{Error, Result};
use crate::font;
use crate::label_layout::place;
use crate::palette::{Rgb, class_colour, text_colour};

/// Wider lines than this fill any picture.
const MAX_LINE: usize = 1 << 16;

/// A picture that can be drawn on: `height` rows of `width` RGB pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

/// How thick lines and how large letters are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxStyle {
    /// Width of a box's line in pixels.
    pub line_width: usize,
    /// Line height of the text in pixels.
    pub text_size: f32,
}

/// A box to draw, with its label.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelledBox {
    /// Left, top, right, bottom in pixels of the canvas.
    pub xyxy: [f32; 4],
    /// Class, which gives the colour.
    pub class: usize,
    /// Text of the label; none is drawn where it is empty.
    pub label: String,
}

impl BoxStyle {
    /// Lines of 0.3 % and letters of 3 % of the picture's mean side, within limits that keep both visible and small pictures free.
    pub fn for_picture(width: usize, height: usize) -> BoxStyle {
        let side = (width as f32 + height as f32) / 2.0;
        BoxStyle {
            line_width: ((side * 0.003).round() as usize).clamp(2, 32),
            text_size: (side * 0.03).clamp(14.0, 96.0).round(),
        }
    }

    /// The same letters with lines of `line_width` pixels.
    pub fn with_line_width(self, line_width: usize) -> BoxStyle {
        BoxStyle { line_width, ..self }
    }
}

/// The text of a label: the class's name (its number where the list of names is too short), and the confidence with `decimals` places.
pub fn label_text(class_names: &[String], class: usize, confidence: Option<f32>, decimals: usize) -> String {
    let name = class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
    match confidence {
        Some(confidence) => format!("{name} {confidence:.decimals$}"),
        None => name,
    }
}

/// A label's drawable text and its size in pixels.
struct Label {
    text: String,
    size: f32,
    pad: i64,
    width: i64,
    height: i64,
}

/// Whole pixels `left..right`, `top..bottom` that lie on the canvas.
struct Area {
    left: usize,
    top: usize,
    right: usize,
    bottom: usize,
}

impl Canvas {
    /// A canvas over `pixels`, row by row, three bytes a pixel.
    ///
    /// # Errors
    /// [`Error::PixelCount`] when there are not `height * width * 3` bytes.
    pub fn from_rgb(width: usize, height: usize, pixels: Vec<u8>) -> Result<Canvas> {
        check_size(width, height, pixels.len())?;
        Ok(Canvas { width, height, pixels })
    }

    /// A canvas of one colour.
    ///
    /// # Errors
    /// [`Error::PixelCount`] when the number of bytes does not fit a `usize`.
    pub fn filled(width: usize, height: usize, colour: Rgb) -> Result<Canvas> {
        let count = width.checked_mul(height).filter(|n| n.checked_mul(3).is_some());
        let count = count.ok_or(Error::PixelCount { width, height, expected: usize::MAX, got: 0 })?;
        Ok(Canvas { width, height, pixels: colour.repeat(count) })
    }

    /// Width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// The pixels, `height * width * 3` bytes.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Gives the pixels back.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Colour of a pixel, `None` outside.
    pub fn pixel(&self, x: usize, y: usize) -> Option<Rgb> {
        if x >= self.width || y >= self.height {
            return None;
        }
        let at = (y * self.width + x) * 3;
        Some([self.pixels[at], self.pixels[at + 1], self.pixels[at + 2]])
    }

    /// Fills the pixels from `(left, top)` to before `(right, bottom)`.
    pub fn fill(&mut self, left: i64, top: i64, right: i64, bottom: i64, colour: Rgb) {
        let area = self.clip(left, top, right, bottom);
        for y in area.top..area.bottom {
            let row = &mut self.pixels[(y * self.width + area.left) * 3..(y * self.width + area.right) * 3];
            row.as_chunks_mut::<3>().0.fill(colour);
        }
    }

    /// Draws the frame of a box `[x1, y1, x2, y2]`, rounded to whole pixels, its line half outside and half inside.
    pub fn rectangle(&mut self, xyxy: [f32; 4], line_width: usize, colour: Rgb) {
        let Some([x1, y1, x2, y2]) = self.whole_pixels(xyxy) else { return };
        if line_width == 0 {
            return;
        }
        let line = line_width.min(MAX_LINE) as i64;
        let outside = line / 2;
        let inside = line - outside;
        let (left, top, right, bottom) = (x1 - outside, y1 - outside, x2 + outside, y2 + outside);
        // At least one line of width: a box without area still shows.
        let (right, bottom) = (right.max(left + line), bottom.max(top + line));
        self.fill(left, top, right, y1 + inside, colour);
        self.fill(left, bottom - line, right, bottom, colour);
        self.fill(left, top, x1 + inside, bottom, colour);
        self.fill(right - line, top, right, bottom, colour);
    }

    /// Draws one line of text whose line starts at `(left, top)` and is `size` pixels high. Any text can be given, see
    /// [`font::drawable`].
    pub fn text(&mut self, text: &str, left: i64, top: i64, size: f32, colour: Rgb) {
        self.raw_text(&font::drawable(text), left, top, size, colour);
    }

    /// Draws a filled label with `text` that starts at `left` and ends above `bottom` where there is room, else moved into the picture;
    /// a text wider than the picture is cut with `…`.
    pub fn label(&mut self, text: &str, left: i64, bottom: i64, size: f32, background: Rgb) {
        let Some(label) = self.prepare(text, size) else { return };
        let left = left.min(self.width as i64 - label.width).max(0);
        let top = (bottom - label.height).min(self.height as i64 - label.height).max(0);
        self.draw_label(&label, left, top, background);
    }

    /// Draws `boxes` in their class colours, then all labels, so that no frame crosses out a label. A label stands on top of its box
    /// where that place is in the picture and free, else at another edge of it. The first boxes get the best places and come to lie on
    /// top: give the most confident ones first.
    pub fn boxes(&mut self, boxes: &[LabelledBox], style: BoxStyle) {
        for item in boxes.iter().rev() {
            self.rectangle(item.xyxy, style.line_width, class_colour(item.class));
        }
        let outside = style.line_width.min(MAX_LINE) as i64 / 2;
        let mut labels = Vec::new();
        let mut slots = Vec::new();
        for item in boxes {
            let Some([x1, y1, x2, y2]) = self.whole_pixels(item.xyxy) else { continue };
            let Some(label) = self.prepare(&item.label, style.text_size) else { continue };
            let outer = [x1 - outside, y1 - outside, x2 + outside, y2 + outside];
            slots.push(place(outer, label.width, label.height, (self.width as i64, self.height as i64), &slots));
            labels.push((label, class_colour(item.class)));
        }
        for ((label, colour), slot) in labels.iter().zip(&slots).rev() {
            self.draw_label(label, slot.left, slot.top, *colour);
        }
    }

    /// Copies `other` to `(left, top)`; what does not fit is cut away.
    pub fn paste(&mut self, other: &Canvas, left: usize, top: usize) {
        let columns = other.width.min(self.width.saturating_sub(left));
        let rows = other.height.min(self.height.saturating_sub(top));
        for y in 0..rows {
            let to = ((top + y) * self.width + left) * 3;
            let from = y * other.width * 3;
            self.pixels[to..to + columns * 3].copy_from_slice(&other.pixels[from..from + columns * 3]);
        }
    }

    /// The text of a label, cut to the picture's width, and the label's size. `None` where nothing is to be drawn.
    fn prepare(&self, text: &str, size: f32) -> Option<Label> {
        let size = clean_size(size);
        let pad = (size * 0.2).ceil() as i64;
        let text = font::fit(&font::drawable(text), size, self.width as f32 - 2.0 * pad as f32);
        let width = font::text_width(&text, size).ceil() as i64 + 2 * pad;
        (!text.is_empty()).then(|| Label { text, size, pad, width, height: size.ceil() as i64 + 1 })
    }

    fn draw_label(&mut self, label: &Label, left: i64, top: i64, background: Rgb) {
        self.fill(left, top, left + label.width, top + label.height, background);
        self.raw_text(&label.text, left + label.pad, top, label.size, text_colour(background));
    }

    fn raw_text(&mut self, text: &str, left: i64, top: i64, size: f32, colour: Rgb) {
        let (width, height) = (self.width as i64, self.height as i64);
        let pixels = &mut self.pixels;
        font::rasterize(text, clean_size(size), left, top, |x, y, coverage| {
            if x < 0 || y < 0 || x >= width || y >= height {
                return;
            }
            let at = ((y * width + x) * 3) as usize;
            for channel in 0..3 {
                let old = f32::from(pixels[at + channel]);
                pixels[at + channel] = (old + (f32::from(colour[channel]) - old) * coverage).round() as u8;
            }
        });
    }

    fn clip(&self, left: i64, top: i64, right: i64, bottom: i64) -> Area {
        let x = |v: i64| v.clamp(0, self.width as i64) as usize;
        let y = |v: i64| v.clamp(0, self.height as i64) as usize;
        Area { left: x(left), top: y(top), right: x(right).max(x(left)), bottom: y(bottom).max(y(top)) }
    }

    /// The box in whole pixels, corners in order; far-away corners are brought to just outside of what can be seen. `None` with a NaN.
    fn whole_pixels(&self, xyxy: [f32; 4]) -> Option<[i64; 4]> {
        if xyxy.iter().any(|v| v.is_nan()) {
            return None;
        }
        const FAR: f32 = (1 << 20) as f32;
        let x = |v: f32| v.round().clamp(-FAR, self.width as f32 + FAR) as i64;
        let y = |v: f32| v.round().clamp(-FAR, self.height as f32 + FAR) as i64;
        let [x1, y1, x2, y2] = xyxy;
        Some([x(x1.min(x2)), y(y1.min(y2)), x(x1.max(x2)), y(y1.max(y2))])
    }
}

/// A text size that is a number and can be drawn.
fn clean_size(size: f32) -> f32 {
    if size.is_nan() { 14.0 } else { size.clamp(4.0, 1024.0) }
}

pub(crate) fn check_size(width: usize, height: usize, got: usize) -> Result<()> {
    let expected = width.checked_mul(height).and_then(|n| n.checked_mul(3)).unwrap_or(usize::MAX);
    if got == expected { Ok(()) } else { Err(Error::PixelCount { width, height, expected, got }) }
}
