//! The embedded font: which characters it can draw, how wide a text gets, and its coverage pixel by pixel.
//!
//! Text is laid out left to right without shaping. Other scripts than Latin, Greek and Cyrillic are transliterated, so that every file and
//! class name gives something readable.

use std::sync::LazyLock;

use ab_glyph::{Font, FontRef, PxScale, ScaleFont};
use any_ascii::any_ascii_char;
use unicode_normalization::UnicodeNormalization;

static FONT: LazyLock<FontRef<'static>> = LazyLock::new(|| {
    FontRef::try_from_slice(include_bytes!("../assets/DejaVuSans-subset.ttf"))
        .expect("the embedded font is part of the program and parses")
});

/// Hebrew to Tibetan: these scripts have signs that sound only together with others (alef, virama) and have no letter of their own in
/// ASCII. Elsewhere an empty transliteration means that there is none.
const VOWELLESS: std::ops::RangeInclusive<char> = '\u{590}'..='\u{fff}';

/// `text` in characters that the font has. Decomposed letters are composed (`a` + U+0308 becomes `ä`); what the font lacks is
/// transliterated to ASCII; what has no transliteration becomes `\u{..}`. White space and control characters become blanks or escapes.
pub fn drawable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.nfc() {
        match c {
            '\t' | '\n' | '\r' => out.push(' '),
            // Left alone: joiners, variation selectors, byte order mark, and accents that no composed letter exists for.
            '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{300}'..='\u{36f}' => {}
            c if FONT.glyph_id(c).0 != 0 => out.push(c),
            c => match any_ascii_char(c) {
                "" if VOWELLESS.contains(&c) => {}
                ascii if !ascii.is_empty() && ascii.bytes().all(|b| (b' '..0x7f).contains(&b)) => out.push_str(ascii),
                _ => out.extend(c.escape_unicode()),
            },
        }
    }
    if out.is_empty() {
        out.extend(text.chars().flat_map(char::escape_unicode));
    }
    out
}

/// Width of `text` in pixels at a line height of `size` pixels. Give it [`drawable`] text.
pub fn text_width(text: &str, size: f32) -> f32 {
    let font = FONT.as_scaled(PxScale::from(size));
    text.chars().map(|c| font.h_advance(font.glyph_id(c))).sum()
}

/// `text` as it is when it is at most `width` pixels wide, else its beginning and `…`; empty where not even that fits.
pub fn fit(text: &str, size: f32, width: f32) -> String {
    let font = FONT.as_scaled(PxScale::from(size));
    let ellipsis = text_width("…", size);
    let mut used = 0.0;
    // Bytes of the longest beginning that leaves room for the ellipsis.
    let mut short = None;
    for (index, c) in text.char_indices() {
        if used + ellipsis <= width {
            short = Some(index);
        }
        used += font.h_advance(font.glyph_id(c));
        if used > width {
            return short.map(|end| format!("{}…", &text[..end])).unwrap_or_default();
        }
    }
    text.to_owned()
}

/// Calls `pixel(x, y, coverage)` for each pixel that `text` touches, its line starting at `(left, top)` and being `size` pixels high;
/// coverage is 0..=1. Pixels may lie anywhere, also at negative coordinates.
pub fn rasterize(text: &str, size: f32, left: i64, top: i64, mut pixel: impl FnMut(i64, i64, f32)) {
    let font = FONT.as_scaled(PxScale::from(size));
    // A baseline on a pixel border keeps the feet of the letters sharp.
    let baseline = font.ascent().round();
    let mut x = 0.0;
    for c in text.chars() {
        let id = font.glyph_id(c);
        let glyph = id.with_scale_and_position(size, ab_glyph::point(x, baseline));
        x += font.h_advance(id);
        if let Some(outline) = font.outline_glyph(glyph) {
            let bounds = outline.px_bounds();
            let (x0, y0) = (left + bounds.min.x as i64, top + bounds.min.y as i64);
            outline.draw(|dx, dy, coverage| pixel(x0 + i64::from(dx), y0 + i64::from(dy), coverage.clamp(0.0, 1.0)));
        }
    }
}
