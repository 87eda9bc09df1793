//! Boxes sit on their objects, whatever is drawn: rotation, shear, perspective, flips, mosaics and copy-paste, judged by
//! the pixels of the rendered pictures.

mod common;

use std::sync::Arc;

use common::{Set, encoded};
use data::decode::ImageLimits;
use data::{AugmentConfig, Batch, CacheMode, ImagePool, Loader, LoaderOptions, Purpose, RecipeMaker, Sample, Task};
use image::{DynamicImage, ImageFormat, Rgb, RgbImage};

const COLOURS: [[u8; 3]; 2] = [[255, 0, 0], [0, 0, 255]];
const SIZE: usize = 256;

/// Pictures with one rectangle each, of the class's colour; as boxes, or as outlines of four corners.
fn set(outlines: bool) -> (Set, Arc<Vec<Sample>>) {
    let set = Set::new();
    for i in 0..8u32 {
        let (width, height) = if i % 2 == 0 { (320, 240) } else { (240, 300) };
        let (x0, y0) = (40 + 11 * i, 30 + 9 * i);
        let (x1, y1) = (x0 + 90 - 3 * i, y0 + 60 + 4 * i);
        let class = (i % 2) as usize;
        let picture = RgbImage::from_fn(width, height, |x, y| {
            let inside = (x0..x1).contains(&x) && (y0..y1).contains(&y);
            Rgb(if inside { COLOURS[class] } else { [114, 114, 114] })
        });
        set.write(&format!("images/{i}.png"), encoded(&DynamicImage::from(picture), ImageFormat::Png));
        let [l, r] = [x0, x1].map(|x| f64::from(x) / f64::from(width));
        let [t, b] = [y0, y1].map(|y| f64::from(y) / f64::from(height));
        let row = match outlines {
            true => format!("{class} {l} {t} {r} {t} {r} {b} {l} {b}\n"),
            false => format!("{class} {} {} {} {}\n", (l + r) / 2.0, (t + b) / 2.0, r - l, b - t),
        };
        set.write(&format!("labels/{i}.txt"), row);
    }
    let samples = Arc::new(set.scan().unwrap().samples);
    (set, samples)
}

fn batch(samples: &Arc<Vec<Sample>>, config: AugmentConfig, seed: u64) -> Batch {
    let order = Arc::new((0..samples.len()).collect());
    let maker = Arc::new(RecipeMaker::new(Arc::clone(samples), config, SIZE as u32, seed, 0, order).unwrap());
    let tasks = (0..samples.len()).map(|position| Task::Draw { maker: Arc::clone(&maker), position }).collect();
    let pool =
        ImagePool::new(Arc::clone(samples), SIZE as u32, Purpose::Train, CacheMode::None, ImageLimits::default());
    let options = LoaderOptions { threads: 2, prefetch: 1 };
    Loader::new(Arc::new(pool), std::iter::once(tasks), options).unwrap().next().unwrap().unwrap()
}

/// Pixels of picture `i` that clearly have a class's colour.
fn coloured(batch: &Batch, i: usize, class: usize) -> Vec<[f32; 2]> {
    let other = 1 - class;
    let pixels = &batch.pixels[i * SIZE * SIZE * 3..(i + 1) * SIZE * SIZE * 3];
    let strong = |p: &[u8]| p[2 * class] > 200 && p[2 * other] < 60 && p[1] < 60;
    let at = |k: usize| [(k % SIZE) as f32 + 0.5, (k / SIZE) as f32 + 0.5];
    pixels.chunks_exact(3).enumerate().filter(|(_, p)| strong(p)).map(|(k, _)| at(k)).collect()
}

fn corners(xywh: [f32; 4]) -> [f32; 4] {
    let [cx, cy, w, h] = xywh.map(|v| v * SIZE as f32);
    [cx - w / 2.0, cy - h / 2.0, cx + w / 2.0, cy + h / 2.0]
}

const GEOMETRY: AugmentConfig = AugmentConfig {
    degrees: 20.0,
    shear: 5.0,
    perspective: 0.0005,
    flipud: 0.5,
    fliplr: 0.5,
    translate: 0.1,
    scale: 0.3,
    ..AugmentConfig::NONE
};

#[test]
fn single_pictures_are_warped_with_their_boxes() {
    let (_set, samples) = set(false);
    let (mut compared, mut tilted) = (0, 0);
    for seed in 0..6 {
        let batch = batch(&samples, GEOMETRY, seed);
        for i in 0..samples.len() {
            let targets = &batch.targets[batch.offsets[i]..batch.offsets[i + 1]];
            let [target] = targets else { continue };
            let found = coloured(&batch, i, target.class as usize);
            let box_ = corners(target.xywh);
            let inside = box_[0] > 1.0 && box_[1] > 1.0 && box_[2] < SIZE as f32 - 1.0 && box_[3] < SIZE as f32 - 1.0;
            if !inside || found.is_empty() {
                continue;
            }
            let edge = |axis: usize, pick: fn(f32, f32) -> f32| found.iter().map(|p| p[axis]).reduce(pick).unwrap();
            let got = [edge(0, f32::min), edge(1, f32::min), edge(0, f32::max), edge(1, f32::max)];
            // Half a pixel of a pixel's centre, and the mixed pixels of the border.
            for k in 0..4 {
                assert!((got[k] - box_[k]).abs() < 3.0, "seed {seed}, picture {i}: pixels {got:?}, box {box_:?}");
            }
            compared += 1;
            tilted += usize::from((found.len() as f32) < 0.85 * (box_[2] - box_[0]) * (box_[3] - box_[1]));
        }
    }
    assert!(compared > 20 && tilted > 5, "{compared} compared, {tilted} tilted");
}

#[test]
fn mosaics_with_pasted_outlines_have_a_box_on_every_object() {
    let (_set, samples) = set(true);
    let config = AugmentConfig { mosaic: 1.0, copy_paste: 0.5, ..GEOMETRY };
    let (mut boxes, mut pasted) = (0, 0);
    for seed in 0..4 {
        let order = Arc::new((0..samples.len()).collect());
        let maker = RecipeMaker::new(Arc::clone(&samples), config, SIZE as u32, seed, 0, order).unwrap();
        pasted += (0..samples.len()).map(|p| maker.draw(p).layer.pastes.len()).sum::<usize>();
        let batch = batch(&samples, config, seed);
        for i in 0..samples.len() {
            let targets = &batch.targets[batch.offsets[i]..batch.offsets[i + 1]];
            for class in 0..2 {
                let found = coloured(&batch, i, class);
                let frames: Vec<[f32; 4]> =
                    targets.iter().filter(|t| t.class as usize == class).map(|t| corners(t.xywh)).collect();
                let within = |p: &[f32; 2], f: &[f32; 4], by: f32| {
                    p[0] > f[0] - by && p[0] < f[2] + by && p[1] > f[1] - by && p[1] < f[3] + by
                };
                let lost = found.iter().filter(|p| !frames.iter().any(|f| within(p, f, 2.0))).count();
                // Slivers at the border lose their box.
                assert!(lost <= 60, "seed {seed}, picture {i}, class {class}: {lost} pixels without a box");
                for frame in &frames {
                    let area = (frame[2] - frame[0]) * (frame[3] - frame[1]);
                    let full = found.iter().filter(|p| within(p, frame, 0.0)).count() as f32;
                    // A paste may cover a part, and a tilted rectangle leaves corners.
                    assert!(full > 0.2 * area, "seed {seed}, picture {i}: {full} of {area} pixels in {frame:?}");
                }
                boxes += frames.len();
            }
        }
    }
    assert!(boxes > 60 && pasted > 20, "{boxes} boxes, {pasted} pasted");
}
