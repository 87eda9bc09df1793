//! A recipe as the card's renderer takes it.

use cuda::Resident;
use cuda::kernels::{PasteMask, RenderImage, RenderLayer, RenderTile};
use data::geometry::invert;
use data::recipe::{Layer, Placement, Recipe};
use data::render::{fill_polygon, hsv_tables};

/// The recipe with its pictures where `find` says. A picture that is not there, or has another size than the recipe was
/// drawn for, leaves grey in its place, as on the processor.
///
/// `marks` is memory that is used again from call to call.
pub fn flat(recipe: &Recipe, find: &dyn Fn(usize) -> Option<Resident>, marks: &mut Vec<u8>) -> RenderImage {
    RenderImage {
        layer: flat_layer(&recipe.layer, find, marks),
        mixup: recipe.mixup.as_ref().map(|m| (flat_layer(&m.layer, find, marks), m.ratio)),
        colours: recipe.hsv.map(|gains| Box::new(hsv_tables(gains))),
        flip_ud: recipe.flip_ud,
        flip_lr: recipe.flip_lr,
    }
}

fn flat_layer(layer: &Layer, find: &dyn Fn(usize) -> Option<Resident>, marks: &mut Vec<u8>) -> RenderLayer {
    let tile = |p: &Placement| {
        let found = find(p.sample).filter(|found| found.wh == p.entry_wh)?;
        let (offset, visible) = (p.place.offset, p.place.visible);
        Some(RenderTile { at: found.at, wh: found.wh, scaled_wh: p.wh, offset, visible })
    };
    RenderLayer {
        canvas_wh: layer.canvas_wh,
        tiles: layer.placements.iter().filter(|p| !p.place.is_empty()).filter_map(tile).collect(),
        mask: (!layer.pastes.is_empty()).then(|| mask(layer.canvas_wh, &layer.pastes, marks)),
        inverse: invert(&layer.matrix),
    }
}

/// Pixels inside of the outlines, without the rows above the first and below the last.
fn mask(canvas_wh: [u32; 2], outlines: &[Vec<[i32; 2]>], marks: &mut Vec<u8>) -> PasteMask {
    let [width, height] = canvas_wh.map(|side| side as usize);
    let corners = || outlines.iter().flatten().map(|corner| corner[1]);
    let row = |y: i32| (y.max(0) as usize).min(height);
    let first = row(corners().min().unwrap_or(0));
    let end = row(corners().max().map_or(0, |y| y.saturating_add(1))).max(first);
    // Outlines are filled on the whole canvas: shifted ones might be rounded differently.
    marks.clear();
    marks.resize(width * end, 0);
    for outline in outlines {
        fill_polygon(marks, width, end, outline);
    }
    let pitch = width.div_ceil(32);
    let mut words = Vec::with_capacity(pitch * (end - first));
    for row in marks.chunks_exact(width.max(1)).skip(first) {
        let word = |marks: &[u8]| marks.chunks(8).rev().fold(0, |word, marks| word << 8 | eight_bits(marks));
        words.extend(row.chunks(32).map(word));
    }
    PasteMask { first_row: first as u32, pitch: pitch as u32, words }
}

/// Up to eight marks, 0 or 1, as bits; the first is the lowest.
fn eight_bits(marks: &[u8]) -> u32 {
    let mut bytes = [0; 8];
    bytes[..marks.len()].copy_from_slice(marks);
    // The factor has the bits 7, 14, ..., 56: bit 8 i of the bytes comes to 56 + i once, and no two bits meet.
    (u64::from_le_bytes(bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_the_pixels_of_the_filled_outlines() {
        let outlines = vec![
            vec![[3, 4], [50, 6], [40, 20], [10, 18]],
            vec![[60, -5], [75, 2], [64, 9]],
            vec![[-8, 11], [6, 30], [-3, 33]],
        ];
        let (width, height) = (70, 31);
        let mut marks = vec![9; 5];
        let mask = mask([width, height], &outlines, &mut marks);
        let mut want = vec![0u8; (width * height) as usize];
        outlines.iter().for_each(|o| fill_polygon(&mut want, width as usize, height as usize, o));
        assert!(want.contains(&1));
        for (i, &want) in want.iter().enumerate() {
            let (x, y) = (i as u32 % width, i as u32 / width);
            let word =
                y.checked_sub(mask.first_row).and_then(|row| mask.words.get((row * mask.pitch + x / 32) as usize));
            assert_eq!(word.map_or(0, |word| word >> (x % 32) & 1), u32::from(want), "{x} {y}");
        }
    }

    #[test]
    fn outlines_above_or_below_the_canvas_mark_nothing() {
        for y in [-40, 500] {
            let mask = mask([20, 10], &[vec![[2, y], [9, y], [5, y + 6]]], &mut Vec::new());
            assert!(mask.words.iter().all(|&word| word == 0), "{mask:?}");
            assert!(mask.first_row as usize + mask.words.len() / mask.pitch as usize <= 10);
        }
    }
}
