//! Pictures that lie on the card to the pictures of a batch: mosaics, warps, mixup, copy-paste, colours and flips.
//!
//! What is to be rendered is described by plain structs, which a [`RenderTable`] packs into what the kernel reads. They
//! know nothing of data sets: whoever draws recipes translates them.

use super::compiler::Source;
use super::tiling::expect;
use super::{Function, Module};
use crate::device::Gpu;
use crate::error::Result;
use bytemuck::Zeroable;
use std::ops::Range;

pub(super) const SOURCE: Source = Source { name: "render.cu", text: include_str!("render.cu") };

/// Rows that a block renders: `ROWS` of the source.
const ROWS: u32 = 8;
/// Pictures of a layer at most.
pub const MOST_TILES: usize = 4;
/// Images of one launch.
const MOST_IMAGES: usize = 65_535;
/// Sides of outputs and canvases, in pixels, are at most this.
const MOST_SIDE: u32 = 1 << 16;
/// The kernel steps through a row in 1/2^32 pixel, within this many pixels.
const FAR: f64 = 1e8;

/// A picture on a canvas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderTile {
    /// Address of its pixels on the card: RGB, 8 bit, row-major.
    pub at: u64,
    /// Width and height in pixels.
    pub wh: [u32; 2],
    /// Width and height on the canvas: where they differ it is resized bilinearly.
    pub scaled_wh: [u32; 2],
    /// Position of its first pixel on the canvas; may be negative.
    pub offset: [i32; 2],
    /// Part of the canvas that shows it: x0, y0, x1, y1, end exclusive.
    pub visible: [i32; 4],
}

/// Marked pixels of a canvas. A pixel whose mirror image (left to right) is marked takes that one's colour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PasteMask {
    /// Canvas row of the first row here.
    pub first_row: u32,
    /// Words of a row.
    pub pitch: u32,
    /// Row by row; the lowest bit of a row's first word is the leftmost pixel.
    pub words: Vec<u32>,
}

/// Pictures on a canvas that is grey (114) elsewhere, and the canvas warped to the output.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderLayer {
    /// Width and height of the canvas in pixels. Tiles lie inside of it.
    pub canvas_wh: [u32; 2],
    /// Drawn in this order, at most [`MOST_TILES`].
    pub tiles: Vec<RenderTile>,
    /// What is pasted a second time, mirrored.
    pub mask: Option<PasteMask>,
    /// From output pixels to canvas pixels, in row order; `None` gives a grey picture.
    pub inverse: Option<[[f64; 3]; 3]>,
}

/// Tables of 256 entries for hue (0 to 179), saturation and value.
pub type ColourTables = [[u8; 256]; 3];

/// One picture of a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderImage {
    pub layer: RenderLayer,
    /// A second layer, and the weight of the first one in the blend of both.
    pub mixup: Option<(RenderLayer, f64)>,
    pub colours: Option<Box<ColourTables>>,
    /// Turned upside down, after colours.
    pub flip_ud: bool,
    /// Mirrored, after colours.
    pub flip_lr: bool,
}

impl RenderImage {
    /// A picture that is finished already, copied as it is.
    pub fn finished(at: u64, wh: [u32; 2]) -> Self {
        Self::resized(at, wh, wh)
    }

    /// A finished picture of `wh`, resized bilinearly to the output's `out_wh`.
    pub fn resized(at: u64, wh: [u32; 2], out_wh: [u32; 2]) -> Self {
        let visible = [0, 0, out_wh[0].min(MOST_SIDE) as i32, out_wh[1].min(MOST_SIDE) as i32];
        let tile = RenderTile { at, wh, scaled_wh: out_wh, offset: [0, 0], visible };
        let inverse = Some([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
        let layer = RenderLayer { canvas_wh: out_wh, tiles: vec![tile], mask: None, inverse };
        Self { layer, mixup: None, colours: None, flip_ud: false, flip_lr: false }
    }
}

/// `RenderTile` of the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawTile {
    at: u64,
    wh: [u32; 2],
    visible: [i32; 4],
    offset: [i32; 2],
    scaled_wh: [u32; 2],
}

/// `Warp` of the source.
const NOWHERE: u32 = 0;
const AFFINE: u32 = 1;
const PERSPECTIVE: u32 = 2;

/// `RenderLayer` of the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawLayer {
    inverse: [[f64; 3]; 3],
    step: [i64; 2],
    mask: u64,
    mask_row: u32,
    mask_rows: u32,
    mask_pitch: u32,
    canvas_width: u32,
    warp: u32,
    tiles: u32,
    tile: [RawTile; MOST_TILES],
}

/// `RenderImage` of the source.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct RawImage {
    layer: [RawLayer; 2],
    ratio: f64,
    colours: u64,
    layers: u32,
    coloured: u32,
    flip_ud: u32,
    flip_lr: u32,
}

macro_rules! plain {
    ($($kind:ty: $bytes:literal),*) => {$(
        const _: () = assert!(size_of::<$kind>() == $bytes, "as in render.cu");
        // SAFETY: numbers, which zero bytes are.
        unsafe impl Zeroable for $kind {}
        // SAFETY: numbers in an order that needs no padding: their bytes add up to the size that is asserted.
        unsafe impl bytemuck::Pod for $kind {}
    )*};
}
plain!(RawTile: 48, RawLayer: 312, RawImage: 656);

#[repr(C)]
#[derive(Clone, Copy)]
struct Args {
    images: u64,
    extras: u64,
    out: u64,
    height: u32,
    width: u32,
}

/// Images to be rendered, as the kernel reads them: filled on the host, copied to the card, rendered.
#[derive(Clone, Debug)]
pub struct RenderTable {
    /// Addresses that tiles may lie at.
    memory: Range<u64>,
    images: Vec<RawImage>,
    /// Colour tables and words of masks; offsets in images are into these.
    extras: Vec<u8>,
}

impl RenderTable {
    /// A table without images, whose tiles are to lie in `memory` on the card.
    pub fn new(memory: Range<u64>) -> Self {
        Self { memory, images: Vec::new(), extras: Vec::new() }
    }

    /// Takes all images out, and keeps the host's memory for the next ones.
    pub fn clear(&mut self) {
        self.images.clear();
        self.extras.clear();
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.images.len()
    }

    pub fn is_empty(&self) -> bool {
        self.images.is_empty()
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.images.len() * size_of::<RawImage>() + self.extras.len()
    }

    /// Writes [`Self::bytes`] bytes, to be copied to the card.
    ///
    /// # Errors
    /// A target of another size.
    pub fn write(&self, target: &mut [u8]) -> Result<()> {
        let images: &[u8] = bytemuck::cast_slice(&self.images);
        expect("render", target.len() == self.bytes(), || format!("a table of {} bytes", target.len()))?;
        target[..images.len()].copy_from_slice(images);
        target[images.len()..].copy_from_slice(&self.extras);
        Ok(())
    }

    /// Adds an image.
    ///
    /// # Errors
    /// More than [`MOST_TILES`] tiles, a tile that shows what lies outside of its picture, of the canvas or of the table's
    /// memory, or a mask that does not fit the canvas. The table is as before then.
    pub fn push(&mut self, image: &RenderImage) -> Result<()> {
        let extras = self.extras.len();
        match self.packed(image) {
            Ok(packed) => self.images.push(packed),
            Err(error) => {
                self.extras.truncate(extras);
                return Err(error);
            }
        }
        Ok(())
    }

    fn packed(&mut self, image: &RenderImage) -> Result<RawImage> {
        let second = match &image.mixup {
            Some((layer, _)) => self.packed_layer(layer)?,
            None => RawLayer::zeroed(),
        };
        let mut packed = RawImage {
            layer: [self.packed_layer(&image.layer)?, second],
            ratio: image.mixup.as_ref().map_or(1.0, |m| m.1),
            colours: 0,
            layers: if image.mixup.is_some() { 2 } else { 1 },
            coloured: image.colours.is_some().into(),
            flip_ud: image.flip_ud.into(),
            flip_lr: image.flip_lr.into(),
        };
        let blends = (0.0..=1.0).contains(&packed.ratio);
        expect("render", blends, || format!("a blend with the weight {}", packed.ratio))?;
        if let Some(tables) = &image.colours {
            expect("render", tables[0].iter().all(|&hue| hue < 180), || "a table with hues beyond 179".into())?;
            packed.colours = self.extra(tables.as_flattened());
        }
        Ok(packed)
    }

    fn packed_layer(&mut self, layer: &RenderLayer) -> Result<RawLayer> {
        let [width, height] = layer.canvas_wh;
        expect("render", layer.tiles.len() <= MOST_TILES, || format!("{} pictures in a layer", layer.tiles.len()))?;
        expect("render", width <= MOST_SIDE && height <= MOST_SIDE, || format!("a canvas of {width}x{height}"))?;
        let mut packed = RawLayer { canvas_width: width, tiles: layer.tiles.len() as u32, ..RawLayer::zeroed() };
        for (packed, tile) in packed.tile.iter_mut().zip(&layer.tiles) {
            let readable = tile.is_hidden() || tile.shows_itself(layer.canvas_wh) && tile.lies_in(&self.memory);
            expect("render", readable, || format!("{tile:?} on {width}x{height}"))?;
            let RenderTile { at, wh, scaled_wh, offset, visible } = *tile;
            *packed = RawTile { at, wh, visible, offset, scaled_wh };
        }
        if let Some(mask) = layer.mask.as_ref().filter(|m| !m.words.is_empty()) {
            let rows = mask.words.len() / (mask.pitch as usize).max(1);
            let fits = mask.words.len() == rows * mask.pitch as usize
                && rows + mask.first_row as usize <= height as usize
                && u64::from(mask.pitch) * 32 >= u64::from(width);
            let size = mask.words.len();
            expect("render", fits, || format!("a mask of {size} words in rows of {} on {width}x{height}", mask.pitch))?;
            (packed.mask_row, packed.mask_rows, packed.mask_pitch) = (mask.first_row, rows as u32, mask.pitch);
            packed.mask = self.extra(bytemuck::cast_slice(&mask.words));
        }
        let usable = |m: &[[f64; 3]; 3]| m.as_flattened().iter().all(|v| v.is_finite());
        if let Some(inverse) = layer.inverse.filter(usable) {
            let w = inverse[2][2];
            packed.inverse = inverse;
            packed.warp = if inverse[2][0] == 0.0 && inverse[2][1] == 0.0 { AFFINE } else { PERSPECTIVE };
            if packed.warp == AFFINE {
                packed.step = [fixed(inverse[0][0] / w), fixed(inverse[1][0] / w)];
            }
        } else {
            packed.warp = NOWHERE;
        }
        Ok(packed)
    }

    /// Appends bytes at a multiple of 8 and tells where.
    fn extra(&mut self, bytes: &[u8]) -> u64 {
        self.extras.resize(self.extras.len().next_multiple_of(8), 0);
        let at = self.extras.len() as u64;
        self.extras.extend_from_slice(bytes);
        at
    }
}

impl RenderTile {
    fn is_hidden(&self) -> bool {
        let [x0, y0, x1, y1] = self.visible;
        x1 <= x0 || y1 <= y0
    }

    /// True where all pixels that it shows are its picture's and the canvas's.
    fn shows_itself(&self, canvas_wh: [u32; 2]) -> bool {
        (0..2).all(|i| {
            let (low, high) = (i64::from(self.visible[i]), i64::from(self.visible[i + 2]));
            let offset = i64::from(self.offset[i]);
            low >= offset.max(0)
                && high <= i64::from(canvas_wh[i])
                && high <= offset + i64::from(self.scaled_wh[i])
                && self.wh[i] > 0
        })
    }

    fn lies_in(&self, memory: &Range<u64>) -> bool {
        let bytes = u64::from(self.wh[0]).checked_mul(u64::from(self.wh[1])).and_then(|n| n.checked_mul(3));
        let end = bytes.and_then(|bytes| self.at.checked_add(bytes));
        self.at >= memory.start && end.is_some_and(|end| end <= memory.end)
    }
}

/// Pixels with 32 bits behind the point.
fn fixed(pixels: f64) -> i64 {
    (pixels.clamp(-FAR, FAR) * (1u64 << 32) as f64) as i64
}

/// The renderer.
#[derive(Debug)]
pub struct Render(Function);

impl Render {
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        Ok(Self(Module::load(gpu, SOURCE)?.function("render")?))
    }

    /// Renders all images of a table, in order with the stream, into `out`: u8 of shape (images, height, width, 3).
    /// `at` is where the bytes of the table lie on the card, at a multiple of 8.
    ///
    /// # Errors
    /// Operands that do not fit, or what the driver says.
    ///
    /// # Safety
    /// `at` holds what [`RenderTable::write`] wrote, `out` is device memory of that extent, and the table's memory is
    /// device memory, up to the next multiple of 4.
    pub unsafe fn run(&self, table: &RenderTable, at: u64, out: u64, [height, width]: [usize; 2]) -> Result<()> {
        let sides = [height, width].map(|side| u32::try_from(side).ok().filter(|&side| side <= MOST_SIDE));
        let [Some(height), Some(width)] = sides else {
            return expect("render", false, || format!("an output of {width}x{height}"));
        };
        let images = table.len();
        expect("render", images <= MOST_IMAGES && at.is_multiple_of(8), || format!("{images} images at {at:#x}"))?;
        if width == 0 {
            return Ok(());
        }
        let extras = at + (images * size_of::<RawImage>()) as u64;
        let args = Args { images: at, extras, out, height, width };
        // SAFETY: the caller's promise; the struct is the kernel's, and tables hold what was checked when it was added.
        unsafe { self.0.launch([height.div_ceil(ROWS), images as u32, 1], [256, 1, 1], 0, &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer() -> RenderLayer {
        RenderImage::finished(256, [32, 16]).layer
    }

    fn refused(layer: RenderLayer) -> bool {
        let mut table = RenderTable::new(256..256 + 32 * 16 * 3);
        let image = RenderImage { layer, ..RenderImage::finished(256, [32, 16]) };
        let refused = table.push(&image).is_err();
        assert_eq!(refused, table.bytes() == 0, "what is refused leaves nothing behind");
        refused
    }

    #[test]
    fn a_tile_that_shows_more_than_its_picture_is_refused() {
        assert!(!refused(layer()));
        for (visible, offset) in [
            ([0, 0, 33, 16], [0, 0]),
            ([0, 0, 32, 17], [0, 0]),
            ([-1, 0, 32, 16], [-1, 0]),
            ([0, 0, 32, 16], [1, 0]),
            ([0, 0, 32, 16], [0, -1]),
        ] {
            let mut layer = layer();
            (layer.tiles[0].visible, layer.tiles[0].offset) = (visible, offset);
            assert!(refused(layer), "{visible:?} {offset:?}");
        }
        let mut hidden = layer();
        (hidden.tiles[0].visible, hidden.tiles[0].offset) = ([40, 0, 32, 16], [40, 0]);
        assert!(!refused(hidden), "what shows nothing reads nothing");
    }

    #[test]
    fn a_tile_outside_of_the_memory_is_refused() {
        for at in [0, 255, 257, u64::MAX - 5] {
            let mut layer = layer();
            layer.tiles[0].at = at;
            assert!(refused(layer), "{at}");
        }
    }

    #[test]
    fn too_many_tiles_and_masks_beyond_the_canvas_are_refused() {
        let mut many = layer();
        many.tiles = vec![many.tiles[0]; MOST_TILES + 1];
        assert!(refused(many));
        for (first_row, pitch, words, fits) in
            [(0, 1, 16, true), (1, 1, 16, false), (0, 2, 16, true), (0, 3, 16, false), (0, 0, 16, false)]
        {
            let mask = PasteMask { first_row, pitch, words: vec![1; words] };
            assert_eq!(refused(RenderLayer { mask: Some(mask), ..layer() }), !fits, "{first_row} {pitch}");
        }
    }

    #[test]
    fn the_written_table_has_images_first_and_what_they_refer_to_behind() {
        let mut table = RenderTable::new(256..4096);
        let mask = PasteMask { first_row: 3, pitch: 1, words: vec![7, 9] };
        let image = RenderImage {
            layer: RenderLayer { mask: Some(mask), ..layer() },
            colours: Some(Box::new([[5; 256]; 3])),
            ..RenderImage::finished(256, [32, 16])
        };
        table.push(&RenderImage::finished(512, [32, 16])).unwrap();
        table.push(&image).unwrap();
        let mut bytes = vec![0; table.bytes()];
        table.write(&mut bytes).unwrap();
        assert!(table.write(&mut bytes[1..]).is_err());
        let extras = &bytes[2 * size_of::<RawImage>()..];
        let raw = table.images[1];
        assert_eq!((raw.layer[0].mask_row, raw.layer[0].mask_rows), (3, 2));
        assert_eq!(extras[raw.layer[0].mask as usize..][..8], [7, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(extras[raw.colours as usize..][..768], [5; 768]);
        table.clear();
        assert!(table.is_empty() && table.bytes() == 0);
    }
}
