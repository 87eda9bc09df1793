//! Where a picture lies in a padded frame of the network's shape.

/// What to fit a picture into and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LetterboxOptions {
    /// Height and width of the frame in pixels.
    pub frame_hw: [u32; 2],
    /// Pads only to the next multiple of `stride` instead of the whole frame (the smallest rectangle).
    pub minimum_rectangle: bool,
    /// Allows enlarging small pictures.
    pub scale_up: bool,
    /// Stretches to the frame, ignoring the aspect ratio (`minimum_rectangle` goes first).
    pub stretch: bool,
    /// Multiple for `minimum_rectangle`.
    pub stride: u32,
}

impl LetterboxOptions {
    /// A whole frame of height x width, padded on all sides.
    pub fn frame(height: u32, width: u32, scale_up: bool) -> Self {
        Self { frame_hw: [height, width], minimum_rectangle: false, scale_up, stretch: false, stride: 32 }
    }
}

/// The result: sizes, scale and padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letterbox {
    /// Width and height of the padded frame.
    pub out_wh: [u32; 2],
    /// Width and height of the picture inside it.
    pub content_wh: [u32; 2],
    /// Left and top edge of the picture inside the frame.
    pub content_xy: [u32; 2],
    /// Scale of x and y.
    pub ratio: [f64; 2],
    /// Half of the padding in x and y; may end in .5.
    pub pad: [f64; 2],
}

/// Fits a picture of `width` x `height` (both above 0). Sizes are rounded half to even; an odd padding
/// puts the smaller part left and on top (round(pad - 0.1), round(pad + 0.1)).
pub fn letterbox(width: u32, height: u32, options: &LetterboxOptions) -> Letterbox {
    let (w, h) = (width.max(1) as f64, height.max(1) as f64);
    let [frame_h, frame_w] = options.frame_hw.map(f64::from);
    let mut r = (frame_h / h).min(frame_w / w);
    if !options.scale_up {
        r = r.min(1.0);
    }
    let mut ratio = [r, r];
    let mut content = [(w * r).round_ties_even().max(1.0), (h * r).round_ties_even().max(1.0)];
    let mut pad = [(frame_w - content[0]).max(0.0), (frame_h - content[1]).max(0.0)];
    if options.minimum_rectangle {
        pad = pad.map(|p| p % options.stride.max(1) as f64);
    } else if options.stretch {
        pad = [0.0, 0.0];
        content = [frame_w, frame_h];
        ratio = [frame_w / w, frame_h / h];
    }
    let pad = pad.map(|p| p / 2.0);
    let before = pad.map(|p| (p - 0.1).round_ties_even().max(0.0));
    let after = pad.map(|p| (p + 0.1).round_ties_even().max(0.0));
    Letterbox {
        out_wh: [0, 1].map(|i| (content[i] + before[i] + after[i]) as u32),
        content_wh: content.map(|c| c as u32),
        content_xy: before.map(|b| b as u32),
        ratio,
        pad,
    }
}

/// Size of a picture after its long side was brought to `size`: truncated, at least 1 px.
/// The second value is the scale.
pub fn long_side_to(width: u32, height: u32, size: u32) -> ([u32; 2], f64) {
    let longest = width.max(height).max(1);
    let r = f64::from(size) / f64::from(longest);
    if longest == size {
        return ([width.max(1), height.max(1)], 1.0);
    }
    ([width, height].map(|v| ((f64::from(v) * r) as u32).max(1)), r)
}
