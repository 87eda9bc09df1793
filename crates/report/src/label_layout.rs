//! Where the labels of a picture's boxes go, so that they hide each other as little as possible.

/// A rectangle in whole pixels, `left..left + width`, `top..top + height`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub left: i64,
    pub top: i64,
    pub width: i64,
    pub height: i64,
}

impl Slot {
    /// Area in pixels that both cover, counting touching slots as one pixel apart: labels of one colour need a gap to be told apart.
    fn overlap(self, other: Slot) -> i64 {
        let side = |a: i64, a_len: i64, b: i64, b_len: i64| ((a + a_len).min(b + b_len) - a.max(b) + 1).max(0);
        side(self.left, self.width, other.left, other.width) * side(self.top, self.height, other.top, other.height)
    }
}

/// The slot for a label of `width * height` pixels of the box with outer edges `[left, top, right, bottom]`: above the box if that is
/// free, else the first free one of the other places at its edges, else the one that hides least of the `taken` slots. The slot lies in
/// the picture wherever the label is not larger than it.
pub(crate) fn place(outer: [i64; 4], width: i64, height: i64, picture: (i64, i64), taken: &[Slot]) -> Slot {
    let [left, top, right, bottom] = outer;
    let candidates = [
        (left, top - height),
        (right - width, top - height),
        (left, top),
        (left, bottom),
        (right - width, top),
        (left, bottom - height),
        (right - width, bottom - height),
    ];
    let fitting = |(x, y): (i64, i64)| Slot { left: x.min(picture.0 - width).max(0), top: y, width, height };
    let mut best: Option<(i64, Slot)> = None;
    for slot in candidates.map(fitting) {
        if slot.top < 0 || slot.top + height > picture.1 {
            continue;
        }
        let hidden = taken.iter().map(|other| slot.overlap(*other)).sum();
        if hidden == 0 {
            return slot;
        }
        if best.is_none_or(|(least, _)| hidden < least) {
            best = Some((hidden, slot));
        }
    }
    // No place at the box's edges is in the picture: the nearest one that is.
    best.map(|(_, slot)| slot).unwrap_or_else(|| {
        let above = fitting(candidates[0]);
        Slot { top: above.top.min(picture.1 - height).max(0), ..above }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PICTURE: (i64, i64) = (100, 80);

    fn at(outer: [i64; 4], taken: &[Slot]) -> (i64, i64) {
        let slot = place(outer, 30, 10, PICTURE, taken);
        (slot.left, slot.top)
    }

    #[test]
    fn labels_stand_on_their_box_or_inside_at_the_upper_edge() {
        assert_eq!(at([20, 40, 60, 70], &[]), (20, 30));
        assert_eq!(at([20, 5, 60, 70], &[]), (20, 5));
        assert_eq!(at([90, 40, 100, 70], &[]), (70, 30));
    }

    #[test]
    fn labels_avoid_each_other() {
        // A box as wide as two labels and the gap between them: above twice, then below (inside would touch those above).
        let outer = [20, 30, 82, 60];
        let mut taken = Vec::new();
        for expected in [(20, 20), (52, 20), (20, 60)] {
            let slot = place(outer, 30, 10, PICTURE, &taken);
            assert_eq!((slot.left, slot.top), expected);
            taken.push(slot);
        }
    }

    #[test]
    fn labels_of_boxes_outside_are_in_the_picture() {
        for outer in [[-500, -500, -400, -400], [500, 500, 600, 600], [-10, 78, 200, 300], [0, -50, 100, 200]] {
            let (left, top) = at(outer, &[]);
            assert!((0..=70).contains(&left) && (0..=70).contains(&top), "{outer:?}: {left} {top}");
        }
    }
}
