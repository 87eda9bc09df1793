//! What objects of a class look like: an outline, a texture and a hue.
//!
//! The outline is one of 8, the texture one of 5, the hue goes around the circle: 80 classes differ in two of the
//! three at least, or clearly in hue.

/// Outlines, each of which touches all four sides of its box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outline {
    Ellipse,
    Rectangle,
    Diamond,
    Triangle,
    Cross,
    Ring,
    Frame,
    Hourglass,
}

const OUTLINES: [(Outline, &str); 8] = [
    (Outline::Ellipse, "ellipse"),
    (Outline::Rectangle, "rectangle"),
    (Outline::Diamond, "diamond"),
    (Outline::Triangle, "triangle"),
    (Outline::Cross, "cross"),
    (Outline::Ring, "ring"),
    (Outline::Frame, "frame"),
    (Outline::Hourglass, "hourglass"),
];

/// How two colours are spread over an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Texture {
    Plain,
    Columns,
    Rows,
    Checks,
    Halves,
}

const TEXTURES: [(Texture, &str); 5] = [
    (Texture::Plain, "plain"),
    (Texture::Columns, "columns"),
    (Texture::Rows, "rows"),
    (Texture::Checks, "checks"),
    (Texture::Halves, "halves"),
];

/// The look of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    pub outline: Outline,
    pub texture: Texture,
    /// Red, green and blue of both colours, 0 to 1.
    pub colours: [[f32; 3]; 2],
}

impl Look {
    /// Of class `class`.
    pub fn of(class: u32) -> Self {
        let class = class as usize;
        // Steps by the golden ratio never meet on the circle.
        let hue = (class as f32 * 0.618_034).fract();
        let second = (hue + 0.45).fract();
        Self {
            outline: OUTLINES[class % OUTLINES.len()].0,
            texture: TEXTURES[class / OUTLINES.len() % TEXTURES.len()].0,
            colours: [colour(hue, 0.85, 0.9), colour(second, 0.5, 0.35)],
        }
    }
}

/// Name of class `class`, such as `checks-ring-29`.
pub fn name(class: usize) -> String {
    let (outline, texture) = (OUTLINES[class % OUTLINES.len()].1, TEXTURES[class / OUTLINES.len() % TEXTURES.len()].1);
    format!("{texture}-{outline}-{class}")
}

fn colour(hue: f32, saturation: f32, value: f32) -> [f32; 3] {
    let channel = |shift: f32| {
        let at = ((hue + shift).fract() * 6.0 - 3.0).abs() - 1.0;
        value * (1.0 - saturation + saturation * at.clamp(0.0, 1.0))
    };
    [channel(0.0), channel(2.0 / 3.0), channel(1.0 / 3.0)]
}

impl Outline {
    /// How far (u, v) lies inside, in halves of the box's sides: 0 on the outline, below 0 outside. The box goes from -1
    /// to 1 in both.
    pub fn depth(self, u: f32, v: f32) -> f32 {
        let (a, b) = (u.abs(), v.abs());
        let box_depth = 1.0 - a.max(b);
        match self {
            Self::Ellipse => 1.0 - (u * u + v * v).sqrt(),
            Self::Rectangle => box_depth,
            Self::Diamond => (1.0 - a - b) * std::f32::consts::FRAC_1_SQRT_2,
            // The apex is at the top.
            Self::Triangle => (1.0 - v).min((0.5 * (1.0 + v) - a) * 0.9),
            Self::Cross => box_depth.min(0.38 - a.min(b)),
            Self::Ring => {
                let radius = (u * u + v * v).sqrt();
                (1.0 - radius).min(radius - 0.5)
            }
            Self::Frame => box_depth.min(a.max(b) - 0.55),
            Self::Hourglass => box_depth.min((b + 0.15 - a) * std::f32::consts::FRAC_1_SQRT_2),
        }
    }
}

impl Texture {
    /// True where the second colour is, u and v from -1 to 1.
    pub fn is_second(self, u: f32, v: f32) -> bool {
        // Four stripes a side, for objects of few pixels shall show them too.
        let odd = |at: f32| ((at + 1.0) * 2.0) as i32 % 2 == 1;
        match self {
            Self::Plain => false,
            Self::Columns => odd(u),
            Self::Rows => odd(v),
            Self::Checks => odd(u) != odd(v),
            Self::Halves => v > 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outlines_touch_all_sides_of_their_box_and_stay_inside() {
        for (outline, name) in OUTLINES {
            let inside = |u: f32, v: f32| outline.depth(u, v) > -1e-6;
            let steps = || (-100..=100).map(|i| i as f32 / 100.0);
            assert!(steps().any(|t| inside(-1.0, t)) && steps().any(|t| inside(1.0, t)), "{name}");
            assert!(steps().any(|t| inside(t, -1.0)) && steps().any(|t| inside(t, 1.0)), "{name}");
            for t in steps() {
                assert!(![(-1.02, t), (1.02, t), (t, -1.02), (t, 1.02)].iter().any(|&(u, v)| inside(u, v)), "{name}");
            }
        }
    }

    #[test]
    fn eighty_classes_have_names_and_looks_of_their_own() {
        let names: std::collections::HashSet<String> = (0..80).map(name).collect();
        assert_eq!(names.len(), 80);
        for a in 0..80 {
            for b in 0..a {
                assert_ne!(Look::of(a), Look::of(b));
            }
        }
    }

    #[test]
    fn colours_are_those_of_the_hue_circle() {
        let close = |a: [f32; 3], b: [f32; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
        assert!(close(colour(0.0, 1.0, 1.0), [1.0, 0.0, 0.0]));
        assert!(close(colour(1.0 / 3.0, 1.0, 1.0), [0.0, 1.0, 0.0]));
        assert!(close(colour(2.0 / 3.0, 1.0, 0.5), [0.0, 0.0, 0.5]));
        assert!(close(colour(0.2, 0.0, 0.7), [0.7; 3]));
    }
}
