//! Batches of 64 pictures of 640 x 640 rendered on a card, beside what the same recipes cost one thread of the processor.
//! Needs a GPU; without one it says so and ends.
//!
//! `cargo bench -p yolov9-render`. Recipes are those of `hyp.scratch-high.yaml` from 192 pictures (about 150 MB), so that
//! they do not stay in the card's cache. Times are medians; that of the card holds the copy of the table and the wait.

use cuda::kernels::RenderImage;
use cuda::{Gpu, ImagePool, NewPicture, RenderBatch};
use data::recipe::{Recipe, epoch_order};
use data::render::{Scratch, render};
use data::{AugmentConfig, RecipeMaker};
use render::flat;
use render::made_up::Set;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZE: u32 = 640;
const BATCH: usize = 64;
const SETS: usize = 16;
const RUNS: usize = 21;

/// Recipes of one batch, each with the set that it is of.
fn recipes(sets: &[Set], config: AugmentConfig) -> Result<Vec<(usize, Recipe)>, Box<dyn Error>> {
    (0..BATCH)
        .map(|i| {
            let samples = &sets[i % SETS].samples;
            let order = Arc::new(epoch_order(0, 0, samples.len()));
            let maker = RecipeMaker::new(Arc::clone(samples), config, SIZE, 0, i as u64, order)?;
            Ok((i % SETS, maker.draw(i % samples.len())))
        })
        .collect()
}

/// The median time of some runs.
fn median(mut run: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[RUNS / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    if Gpu::count() == 0 {
        println!("no NVIDIA GPU: nothing is measured");
        return Ok(());
    }
    let gpu = Gpu::open(0)?;
    let sets: Vec<Set> = (0..SETS).map(|seed| Set::new(seed as u64, SIZE)).collect();
    let pictures: Vec<_> = sets.iter().flat_map(|set| set.pictures.iter()).collect();
    let bytes: usize = pictures.iter().map(|p| p.data.len().next_multiple_of(256)).sum();
    let mut pool = ImagePool::new(&gpu, bytes as u64)?;
    pool.begin(0)?;
    let new: Vec<NewPicture<'_>> = pictures
        .iter()
        .enumerate()
        .map(|(id, p)| NewPicture { sample: Some(id), wh: [p.width, p.height], pixels: &p.data })
        .collect();
    let places = pool.put(&new)?;
    let hw = [SIZE as usize; 2];
    let mut out = gpu.allocate(BATCH * hw[0] * hw[1] * 3)?;
    let mut pixels = vec![0; hw[0] * hw[1] * 3];
    println!("{}; {:.0} MB of pictures", gpu.properties().name, bytes as f64 / 1e6);
    println!("{:<42} {:>10} {:>14} {:>14}", "ms a batch", "card", "host's share", "one thread");
    let mut number = 0;
    let plain = AugmentConfig::SCRATCH_HIGH;
    for (name, config) in [
        ("scratch-high", plain),
        ("scratch-high without copy-paste", AugmentConfig { copy_paste: 0.0, ..plain }),
        ("scratch-high, all with mixup", AugmentConfig { mixup: 1.0, ..plain }),
        ("scratch-high with perspective", AugmentConfig { perspective: 0.0005, ..plain }),
        ("letterbox alone", AugmentConfig::NONE),
    ] {
        let recipes = recipes(&sets, config)?;
        let each = pictures.len() / SETS;
        let mut marks = Vec::new();
        let mut images: Vec<RenderImage> = Vec::new();
        let share = median(|| {
            images.clear();
            images.extend(
                recipes
                    .iter()
                    .map(|(set, recipe)| flat(recipe, &|id| places.get(set * each + id).copied(), &mut marks)),
            );
            Ok(())
        })?;
        let card = median(|| {
            number += 1;
            pool.begin(number)?;
            pool.render(&RenderBatch { images: &images, hw, out_hw: hw }, &mut out)?;
            Ok(gpu.synchronize()?)
        })?;
        let mut scratch = Scratch::default();
        let start = Instant::now();
        for (set, recipe) in &recipes {
            render(recipe, &|id| Ok(Arc::clone(&sets[*set].pictures[id])), &mut scratch, &mut pixels);
        }
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!("{name:<42} {:>10.3} {:>14.1} {:>14.1}", ms(card), ms(share), ms(start.elapsed()));
    }
    Ok(())
}
