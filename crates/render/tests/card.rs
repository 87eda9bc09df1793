//! The card's renderer against the processor's: the same pixels. Skipped where there is no card.

use cuda::kernels::{RenderImage, RenderLayer};
use cuda::{Gpu, ImagePool, NewPicture, RenderBatch, Resident};
use data::Picture;
use data::recipe::Recipe;
use data::render::{Scratch, render};
use data::resize::{Interpolation, resize};
use render::flat;
use render::made_up::Set;
use std::sync::Arc;

/// Made-up pictures on the first card.
struct Card {
    gpu: Gpu,
    pool: ImagePool,
    pictures: Vec<Resident>,
}

impl Card {
    /// `None` after saying why the test is skipped.
    fn with(set: &Set) -> Option<Self> {
        if Gpu::count() == 0 {
            eprintln!("skipped: no NVIDIA GPU");
            return None;
        }
        let gpu = Gpu::open(0).unwrap();
        let bytes: usize = set.pictures.iter().map(|p| p.data.len().next_multiple_of(256)).sum();
        let mut pool = ImagePool::new(&gpu, bytes as u64).unwrap();
        pool.begin(0).unwrap();
        let new = |(id, p): (usize, &Arc<Picture>)| NewPicture {
            sample: Some(id),
            wh: [p.width, p.height],
            pixels: &set.pictures[id].data,
        };
        let new: Vec<NewPicture<'_>> = set.pictures.iter().enumerate().map(new).collect();
        let pictures = pool.put(&new).unwrap();
        Some(Self { gpu, pool, pictures })
    }

    /// Renders images of one size and resizes them to another.
    fn render(&mut self, images: &[RenderImage], wh: [u32; 2], out_wh: [u32; 2]) -> Vec<u8> {
        let [hw, out_hw] = [wh, out_wh].map(|[w, h]| [h as usize, w as usize]);
        let batch = RenderBatch { images, hw, out_hw };
        let size = batch.bytes();
        let mut out = self.gpu.allocate(size + 64).unwrap();
        out.write(0, &vec![0xEE_u8; size + 64]).unwrap();
        self.pool.begin(1).unwrap();
        self.pool.render(&batch, &mut out).unwrap();
        let mut all: Vec<u8> = out.read(0, size + 64).unwrap();
        assert!(all[size..].iter().all(|&v| v == 0xEE), "bytes beyond the output");
        all.truncate(size);
        all
    }
}

fn on_processor(set: &Set, recipe: &Recipe, scratch: &mut Scratch) -> Vec<u8> {
    let [w, h] = recipe.out_wh.map(|side| side as usize);
    let mut out = vec![0; w * h * 3];
    let failures = render(recipe, &|id| Ok(Arc::clone(&set.pictures[id])), scratch, &mut out);
    assert!(failures.is_empty());
    out
}

#[test]
fn two_hundred_random_recipes_have_the_pixels_of_the_processor() {
    let (mut scratch, mut marks) = (Scratch::default(), Vec::new());
    // Squares, rectangles whose pictures are resized once more, and widths that are no multiples of four.
    for (seed, size, hw) in
        [(0, 640, [640, 640]), (1, 96, [96, 96]), (2, 101, [101, 101]), (3, 160, [300, 202]), (4, 416, [352, 416])]
    {
        let set = Set::new(seed, size);
        let Some(mut card) = Card::with(&set) else { return };
        let recipes = set.recipes(200, hw).unwrap();
        let wh = recipes[0].out_wh;
        for recipes in recipes.chunks(40) {
            let find = |id: usize| Some(card.pictures[id]);
            let images: Vec<RenderImage> = recipes.iter().map(|r| flat(r, &find, &mut marks)).collect();
            let got = card.render(&images, wh, wh);
            for (recipe, got) in recipes.iter().zip(got.chunks_exact((wh[0] * wh[1] * 3) as usize)) {
                let want = on_processor(&set, recipe, &mut scratch);
                let differ = got.iter().zip(&want).filter(|(g, w)| g != w).count();
                let most = got.iter().zip(&want).map(|(g, w)| g.abs_diff(*w)).max();
                assert_eq!(differ, 0, "values differ, by {most:?} at most: {recipe:?}");
            }
        }
    }
}

#[test]
fn rendered_recipes_are_resized_as_on_the_processor() {
    let (set, mut marks) = (Set::new(5, 96), Vec::new());
    let Some(mut card) = Card::with(&set) else { return };
    let recipes = set.recipes(10, [96, 96]).unwrap();
    let find = |id: usize| Some(card.pictures[id]);
    let images: Vec<RenderImage> = recipes.iter().map(|r| flat(r, &find, &mut marks)).collect();
    for out in [[64, 64], [128, 128], [160, 32]] {
        let got = card.render(&images, [96, 96], out);
        for (recipe, got) in recipes.iter().zip(got.chunks_exact((out[0] * out[1] * 3) as usize)) {
            let rendered = Picture { width: 96, height: 96, data: on_processor(&set, recipe, &mut Scratch::default()) };
            assert!(got == resize(&rendered, out[0], out[1], Interpolation::Bilinear).data, "{out:?}: {recipe:?}");
        }
    }
}

#[test]
fn a_finished_picture_is_copied_or_resized() {
    let set = Set::new(7, 160);
    let Some(mut card) = Card::with(&set) else { return };
    for (picture, Resident { at, wh }) in set.pictures.iter().zip(card.pictures.clone()) {
        assert!(card.render(&[RenderImage::finished(at, wh)], wh, wh) == picture.data, "{wh:?}");
        for out in [[96, 96], [200, 33], [wh[0] + 1, wh[1]]] {
            let want = resize(picture, out[0], out[1], Interpolation::Bilinear);
            let got = card.render(&[RenderImage::resized(at, wh, out)], out, out);
            assert!(got == want.data, "{wh:?} to {out:?}");
        }
    }
}

#[test]
fn pictures_that_are_not_there_leave_grey() {
    let (set, mut marks) = (Set::new(8, 64), Vec::new());
    let Some(mut card) = Card::with(&set) else { return };
    let recipe = &set.recipes(1, [64, 64]).unwrap()[0];
    let known = |id: usize| card.pictures[id];
    let gone = flat(recipe, &|_| None, &mut marks);
    let other_size = |id: usize| Some(Resident { wh: known(id).wh.map(|side| side + 1), ..known(id) });
    let changed = flat(recipe, &other_size, &mut marks);
    let whole = flat(recipe, &|id| Some(known(id)), &mut marks);
    let no_way = RenderImage { layer: RenderLayer { inverse: None, ..whole.layer.clone() }, mixup: None, ..whole };
    for image in [gone, changed, no_way] {
        let pixels = card.render(&[RenderImage { colours: None, ..image }], [64, 64], [64, 64]);
        assert!(pixels.iter().all(|&v| v == 114));
    }
}
