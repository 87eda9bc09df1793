//! Sample recipes rendered on a card, from pictures in its pool, against the renderer of the data path.

use super::Row;
use super::compare::Worst;
use crate::{BenchError, Numbers};
use cuda::kernels::RenderImage;
use cuda::{Gpu, ImagePool, NewPicture, RenderBatch};
use data::recipe::Recipe;
use data::render::Scratch;
use render::flat;
use render::made_up::Set;
use std::sync::Arc;

pub(super) const NAME: &str = "rendered recipes";

/// The network's side in pixels, and recipes of that size.
const SIZE: u32 = 320;
const RECIPES: usize = 200;
/// Recipes of a batch. Most of their pictures come from earlier batches.
const BATCH: usize = 8;
/// Pixels that are more than one grey level off. The card rounds where the processor does, so that none is expected.
const BOUND: f64 = 1e-3;

/// All recipes on a card. Pictures are bytes, whatever the number format.
pub(super) fn run(gpu: &Gpu, numbers: Numbers, seed: u64) -> Result<Row, BenchError> {
    let set = Set::new(seed, SIZE);
    let recipes = set.recipes(RECIPES, [SIZE, SIZE])?;
    let whole: usize = set.pictures.iter().map(|p| p.data.len().next_multiple_of(256)).sum();
    let mut pool = ImagePool::new(gpu, whole as u64)?;
    let side = SIZE as usize;
    let bytes = side * side * 3;
    let mut out = gpu.allocate(BATCH * bytes)?;
    let (mut scratch, mut marks) = (Scratch::default(), Vec::new());
    let (mut values, mut pixels, mut most) = (0, 0, 0);
    for (number, batch) in recipes.chunks(BATCH).enumerate() {
        pool.begin(number as u64)?;
        batch.iter().try_for_each(|recipe| put(&mut pool, &set, recipe))?;
        let images: Vec<RenderImage> = batch.iter().map(|r| flat(r, &|id| pool.find(id), &mut marks)).collect();
        pool.render(&RenderBatch { images: &images, hw: [side, side], out_hw: [side, side] }, &mut out)?;
        let rendered: Vec<u8> = out.read(0, batch.len() * bytes)?;
        let mut want = vec![0; bytes];
        for (recipe, got) in batch.iter().zip(rendered.chunks_exact(bytes)) {
            let fetch = |id: usize| Ok(Arc::clone(&set.pictures[id]));
            data::render::render(recipe, &fetch, &mut scratch, &mut want);
            for (got, want) in got.chunks_exact(3).zip(want.chunks_exact(3)) {
                let off = got.iter().zip(want).map(|(g, w)| g.abs_diff(*w));
                values += off.clone().filter(|&o| o > 0).count();
                let largest = off.max().unwrap_or(0);
                pixels += usize::from(largest > 1);
                most = most.max(largest);
            }
        }
    }
    let error = pixels as f64 / (RECIPES * side * side) as f64;
    let tensor = if values == 0 { String::new() } else { format!("{values} bytes differ, by {most} at most") };
    Ok(Row::new(NAME, numbers, Worst { error, tensor }, BOUND))
}

/// Brings to the card what a recipe shows and the pool lacks.
fn put(pool: &mut ImagePool, set: &Set, recipe: &Recipe) -> Result<(), BenchError> {
    for placement in recipe.shown() {
        if pool.find(placement.sample).is_none() {
            let picture = &set.pictures[placement.sample];
            let (sample, wh) = (Some(placement.sample), [picture.width, picture.height]);
            pool.put(&[NewPicture { sample, wh, pixels: &picture.data }])?;
        }
    }
    Ok(())
}
