//! Colours of classes, and the text colour that can be read on them.

/// An sRGB colour: red, green, blue.
pub type Rgb = [u8; 3];

/// Twenty colours, chosen one after the other so that each is as far as possible in Oklab from those before it: few classes get the most
/// distinct colours.
const PALETTE: [u32; 20] = [
    0xFE5828, 0x2D0BF2, 0x0FF439, 0xEB23FE, 0x04C4F0, 0x3B6209, 0xFEDA77, 0x970767, 0xFEABEA, 0x025990, 0x8A87FD,
    0x883C04, 0x7604B6, 0x18B46D, 0xFF3EA2, 0x48FFD6, 0xC78B09, 0xCDF118, 0xC30839, 0x0F79FD,
];

/// Number of colours before they repeat.
pub const COLOURS: usize = PALETTE.len();

/// The colour of a class; classes [`COLOURS`] apart share one.
pub fn class_colour(class: usize) -> Rgb {
    let [_, r, g, b] = PALETTE[class % COLOURS].to_be_bytes();
    [r, g, b]
}

/// Black or white, whichever has the higher contrast on `background` (WCAG 2 contrast ratio; never below 4.5).
pub fn text_colour(background: Rgb) -> Rgb {
    let black = contrast([0, 0, 0], background);
    let white = contrast([255, 255, 255], background);
    if white > black { [255, 255, 255] } else { [0, 0, 0] }
}

/// WCAG 2 contrast ratio of two colours, 1..=21.
pub fn contrast(a: Rgb, b: Rgb) -> f32 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// Relative luminance 0..=1 (ITU-R BT.709 weights on linear light).
fn luminance(colour: Rgb) -> f32 {
    let [r, g, b] = colour.map(|c| {
        let c = f32::from(c) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * r + 0.7152 * g + 0.0722 * b
}
