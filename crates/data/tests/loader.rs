//! Recipes and the loader: determinism, failures, and real data.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Set, jpeg};
use data::decode::ImageLimits;
use data::recipe::epoch_order;
use data::rect::rect_plan;
use data::{
    AugmentConfig, Batch, CacheMode, DataError, Dataset, ImagePool, Loader, LoaderOptions, Partners, Purpose,
    RecipeMaker, Sample, ScanOptions, Split, Task, scan,
};

fn pool(samples: &Arc<Vec<Sample>>, size: u32, purpose: Purpose, mode: CacheMode) -> Arc<ImagePool> {
    Arc::new(ImagePool::new(Arc::clone(samples), size, purpose, mode, ImageLimits::default()))
}

fn options(threads: usize) -> LoaderOptions {
    LoaderOptions { threads, prefetch: 2 }
}

fn epoch(samples: &Arc<Vec<Sample>>, config: AugmentConfig, size: u32, threads: usize, mode: CacheMode) -> Vec<Batch> {
    let order = Arc::new(epoch_order(7, 3, samples.len()));
    let maker = Arc::new(RecipeMaker::new(Arc::clone(samples), config, size, 7, 3, order).unwrap());
    let positions: Vec<usize> = (0..maker.len()).collect();
    let work: Vec<Vec<Task>> = positions
        .chunks(4)
        .map(|c| c.iter().map(|&position| Task::Draw { maker: Arc::clone(&maker), position }).collect())
        .collect();
    let loader = Loader::new(pool(samples, size, Purpose::Train, mode), work.into_iter(), options(threads)).unwrap();
    loader.map(Result::unwrap).collect()
}

fn small_set() -> (Set, Arc<Vec<Sample>>) {
    let set = Set::new();
    for i in 0..6u32 {
        set.write(&format!("images/{i}.jpg"), jpeg(60 + 17 * i, 90 - 8 * i));
        let text = "0 .5 .5 .4 .4\n1 .1 .1 .6 .1 .6 .7 .2 .8\n".repeat(1 + (i % 2) as usize);
        set.write(&format!("labels/{i}.txt"), text);
    }
    let samples = Arc::new(set.scan().unwrap().samples);
    (set, samples)
}

#[test]
fn batches_do_not_depend_on_threads_or_caches() {
    let (_set, samples) = small_set();
    let config = AugmentConfig { mixup: 0.5, mosaic: 0.8, degrees: 10.0, ..AugmentConfig::SCRATCH_HIGH };
    let one = epoch(&samples, config, 64, 1, CacheMode::None);
    assert_eq!(one.len(), 2);
    assert_eq!((one[0].shape, one[1].shape), ([4, 64, 64, 3], [2, 64, 64, 3]));
    assert_eq!(one, epoch(&samples, config, 64, 2, CacheMode::Ram { bytes: 1 << 20 }));
    assert_eq!(one, epoch(&samples, config, 64, 3, CacheMode::Recent { bytes: 20_000 }));
    for batch in &one {
        assert_eq!(batch.pixels.len(), batch.shape.iter().product::<usize>());
        assert_eq!(batch.offsets.len(), batch.shape[0] + 1);
        assert_eq!(batch.offsets.last(), Some(&batch.targets.len()));
        for t in &batch.targets {
            let [cx, cy, w, h] = t.xywh;
            assert!(w > 0.0 && h > 0.0 && cx - w / 2.0 >= -1e-6 && cx + w / 2.0 <= 1.0 + 1e-6, "{t:?}");
            assert!(cy - h / 2.0 >= -1e-6 && cy + h / 2.0 <= 1.0 + 1e-6, "{t:?}");
        }
    }
    assert!(one.iter().any(|b| !b.targets.is_empty()));
}

#[test]
fn unrendered_batches_have_the_pixels_of_rendered_ones() {
    let (set, samples) = small_set();
    // One picture fails to load.
    set.write("images/2.jpg", b"no picture");
    let config = AugmentConfig { mixup: 0.5, mosaic: 0.8, degrees: 10.0, ..AugmentConfig::SCRATCH_HIGH };
    let maker = Arc::new(
        RecipeMaker::new(Arc::clone(&samples), config, 64, 7, 3, Arc::new(epoch_order(7, 3, samples.len()))).unwrap(),
    );
    let draw = |position| Task::Draw { maker: Arc::clone(&maker), position };
    let rect = |position| Task::DrawRect { maker: Arc::clone(&maker), position, frame_hw: [32, 96] };
    let resized = |position| Task::Resized { task: Box::new(draw(position)), frame_hw: [96, 96] };
    let work = || -> Vec<Vec<Task>> {
        vec![(0..4).map(draw).collect(), (0..6).map(rect).collect(), (2..6).map(resized).collect()]
    };
    let pool = || pool(&samples, 64, Purpose::Train, CacheMode::Ram { bytes: 1 << 20 });
    let rendered: Vec<Batch> =
        Loader::new(pool(), work().into_iter(), options(2)).unwrap().map(Result::unwrap).collect();
    assert!(rendered.iter().all(|b| b.unrendered.is_none()));
    for kept in [&[][..], &[1, 4]] {
        let asked = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
        let note = Arc::clone(&asked);
        let keeps = move |sample, number| {
            note.lock().unwrap().insert(number);
            kept.contains(&sample)
        };
        let host = pool();
        let loader = Loader::unrendered(Arc::clone(&host), work().into_iter(), options(2), Arc::new(keeps)).unwrap();
        let batches: Vec<Batch> = loader.map(Result::unwrap).collect();
        assert_eq!(batches.len(), rendered.len());
        for (mut batch, want) in batches.into_iter().zip(&rendered) {
            let unrendered = batch.unrendered.take().unwrap();
            assert_eq!(unrendered.recipes.len(), batch.images.len());
            assert!(batch.pixels.is_empty() && unrendered.pictures.keys().all(|id| !kept.contains(id) && *id != 2));
            batch.pixels = unrendered.render(&host, [batch.shape[1], batch.shape[2]]);
            assert_eq!(batch, *want);
        }
        assert_eq!(asked.lock().unwrap().iter().copied().collect::<Vec<usize>>(), [0, 1, 2]);
    }
    assert!(rendered.iter().any(|b| !b.failures.is_empty()));
}

#[test]
fn recipes_are_keyed_by_seed_epoch_and_position() {
    let (_set, samples) = small_set();
    let order = Arc::new((0..samples.len()).collect::<Vec<_>>());
    let maker = |seed, epoch| {
        RecipeMaker::new(Arc::clone(&samples), AugmentConfig::SCRATCH_HIGH, 64, seed, epoch, Arc::clone(&order))
            .unwrap()
    };
    assert_eq!(maker(1, 2).draw(3), maker(1, 2).draw(3));
    assert_ne!(maker(1, 2).draw(3), maker(2, 2).draw(3));
    assert_ne!(maker(1, 2).draw(3), maker(1, 3).draw(3));
    assert_ne!(maker(1, 2).draw(3).layer, maker(1, 2).draw(4).layer);
    let mut sorted = epoch_order(1, 2, 100);
    assert_ne!(sorted, epoch_order(1, 3, 100));
    sorted.sort_unstable();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
}

#[test]
fn drawn_frequencies_follow_the_probabilities() {
    let (_set, samples) = small_set();
    let order: Vec<usize> = (0..4000).map(|i| i % samples.len()).collect();
    let config = AugmentConfig { mosaic: 0.7, mixup: 0.15, flipud: 0.1, ..AugmentConfig::SCRATCH_HIGH };
    let maker = RecipeMaker::new(samples, config, 64, 0, 0, Arc::new(order)).unwrap();
    let recipes: Vec<_> = (0..4000).map(|i| maker.draw(i)).collect();
    let share = |f: &dyn Fn(&data::Recipe) -> bool| recipes.iter().filter(|r| f(r)).count() as f64 / 4000.0;
    // Four standard deviations of a share are below 0.032.
    assert!((share(&|r| r.layer.placements.len() == 4) - 0.7).abs() < 0.032);
    assert!((share(&|r| r.mixup.is_some()) - 0.7 * 0.15).abs() < 0.032);
    assert!((share(&|r| r.flip_lr) - 0.5).abs() < 0.032);
    assert!((share(&|r| r.flip_ud) - 0.1).abs() < 0.032);
    assert!(share(&|r| !r.layer.pastes.is_empty()) > 0.05);
    let zoom = recipes.iter().map(|r| r.layer.matrix[0][0]);
    let (low, high) = zoom.fold((f64::MAX, 0.0f64), |(l, h), z| (l.min(z), h.max(z)));
    assert!(low > 0.099 && low < 0.15 && high < 1.901 && high > 1.85, "zoom from {low} to {high}");
    let [h, s, v] = recipes[0].hsv.unwrap();
    assert!((h - 1.0).abs() <= 0.015 && (s - 1.0).abs() <= 0.7 && (v - 1.0).abs() <= 0.4);
}

#[test]
fn partners_come_from_the_window() {
    let samples: Vec<Sample> = (0..50)
        .map(|i| Sample { path: format!("{i}.jpg").into(), width: 64, height: 64, labels: vec![], segments: vec![] })
        .collect();
    let config = AugmentConfig { partners: Partners::Window(5), mixup: 1.0, ..AugmentConfig::SCRATCH_HIGH };
    let order: Vec<usize> = (0..50).collect();
    let maker = RecipeMaker::new(Arc::new(samples), config, 64, 0, 0, Arc::new(order)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for position in 0..50 {
        let recipe = maker.draw(position);
        for p in recipe.layer.placements.iter().chain(&recipe.mixup.unwrap().layer.placements) {
            let back = (position + 50 - p.sample) % 50;
            assert!(back < 5, "position {position} uses sample {}", p.sample);
            seen.insert(back);
        }
    }
    assert_eq!(seen.len(), 5);
}

#[test]
fn without_augmentation_the_sample_is_the_letterboxed_picture() {
    let (_set, samples) = small_set();
    let train = epoch(&samples, AugmentConfig::NONE, 96, 1, CacheMode::None);
    let pool = pool(&samples, 96, Purpose::Train, CacheMode::None);
    let mut compared = 0;
    for batch in train {
        for (i, image) in batch.images.iter().enumerate() {
            let task = vec![Task::Validate { sample: image.sample, frame_hw: [96, 96] }];
            let mut loader = Loader::new(Arc::clone(&pool), std::iter::once(task), options(1)).unwrap();
            let val = loader.next().unwrap().unwrap();
            // Truncation can make the long side 95, which training enlarges once more and validation does not.
            if val.images[0].geometry.unwrap().entry_wh.into_iter().max() != Some(96) {
                continue;
            }
            compared += 1;
            let bytes = 96 * 96 * 3;
            assert!(batch.pixels[i * bytes..(i + 1) * bytes] == val.pixels, "{}", image.path.display());
            let boxes = &batch.targets[batch.offsets[i]..batch.offsets[i + 1]];
            for (a, b) in boxes.iter().zip(&val.targets) {
                testkit::assert_close("box", &a.xywh.map(f64::from), &b.xywh.map(f64::from), 1e-5, 0.0);
            }
        }
    }
    assert!(compared >= 4);
}

#[test]
fn hyper_parameters_out_of_range_are_refused_by_name() {
    for (config, name) in [
        (AugmentConfig { mosaic: 1.5, ..AugmentConfig::NONE }, "mosaic"),
        (AugmentConfig { scale: f64::NAN, ..AugmentConfig::NONE }, "scale"),
        (AugmentConfig { degrees: -1.0, ..AugmentConfig::NONE }, "degrees"),
        (AugmentConfig { partners: Partners::Window(0), ..AugmentConfig::NONE }, "window"),
    ] {
        assert!(config.check().unwrap_err().to_string().starts_with(name));
    }
}

#[test]
fn a_picture_that_vanishes_after_the_scan_is_replaced_and_named() {
    let (set, samples) = small_set();
    std::fs::remove_file(set.path("images/2.jpg")).unwrap();
    set.write("images/4.jpg", &jpeg(128, 58)[..400]);
    let train = pool(&samples, 64, Purpose::Train, CacheMode::None);
    let order = Arc::new((0..6).collect::<Vec<_>>());
    let maker = Arc::new(RecipeMaker::new(Arc::clone(&samples), AugmentConfig::NONE, 64, 0, 0, order).unwrap());
    let work = vec![(0..6).map(|position| Task::Draw { maker: Arc::clone(&maker), position }).collect()];
    let batch = Loader::new(Arc::clone(&train), work.into_iter(), options(2)).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.shape, [6, 64, 64, 3]);
    for bad in [2, 4] {
        assert_eq!(batch.offsets[bad], batch.offsets[bad + 1], "no boxes");
        assert!(batch.pixels[bad * 64 * 64 * 3..(bad + 1) * 64 * 64 * 3].iter().all(|&v| v == 114));
    }
    assert!(batch.offsets[1] > 0 && batch.failures.len() == 2);
    assert_eq!(train.problems().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 4]);

    let val = pool(&samples, 64, Purpose::Validate, CacheMode::None);
    let work: Vec<Vec<Task>> = [[0, 1], [2, 4], [3, 5]]
        .iter()
        .map(|ids| ids.iter().map(|&sample| Task::Validate { sample, frame_hw: [64, 64] }).collect())
        .collect();
    let batches: Vec<Batch> = Loader::new(val, work.into_iter(), options(2)).unwrap().map(Result::unwrap).collect();
    let ids: Vec<usize> = batches.iter().flat_map(|b| &b.images).map(|i| i.sample).collect();
    assert_eq!(ids, [0, 1, 3, 5]);
}

#[test]
fn when_every_picture_fails_the_loader_says_so() {
    let (set, samples) = small_set();
    std::fs::remove_dir_all(set.path("images")).unwrap();
    let work: Vec<Vec<Task>> = vec![(0..6).map(|sample| Task::Validate { sample, frame_hw: [64, 64] }).collect()];
    let mut loader =
        Loader::new(pool(&samples, 64, Purpose::Validate, CacheMode::None), work.into_iter(), options(2)).unwrap();
    assert!(matches!(loader.next(), Some(Err(DataError::AllLoadsFailed { .. }))));
    assert!(loader.next().is_none());
}

#[test]
fn one_image_makes_mosaics_and_dropping_a_loader_early_is_fine() {
    let set = Set::with_one();
    let samples = Arc::new(set.scan().unwrap().samples);
    let batches = epoch(&samples, AugmentConfig::SCRATCH_HIGH, 64, 2, CacheMode::None);
    assert_eq!(batches[0].shape, [1, 64, 64, 3]);
    let order = Arc::new(vec![0; 1000]);
    let maker = Arc::new(RecipeMaker::new(Arc::clone(&samples), AugmentConfig::SCRATCH_HIGH, 64, 0, 0, order).unwrap());
    let work = (0..1000).map(move |position| vec![Task::Draw { maker: Arc::clone(&maker), position }]);
    let mut loader = Loader::new(pool(&samples, 64, Purpose::Train, CacheMode::None), work, options(2)).unwrap();
    assert!(loader.next().unwrap().is_ok());
}

#[test]
fn waiting_for_a_batch_ends_with_the_batch_or_with_the_time() {
    let (_set, samples) = small_set();
    let pool = pool(&samples, 64, Purpose::Validate, CacheMode::None);
    let batch = || (0..6).map(|sample| Task::Validate { sample, frame_hw: [64, 64] }).collect::<Vec<_>>();
    let mut loader = Loader::new(Arc::clone(&pool), vec![batch(); 2].into_iter(), options(1)).unwrap();
    for number in 0..2 {
        let start = Instant::now();
        while !loader.wait(Duration::from_millis(1)) {
            assert!(start.elapsed() < Duration::from_secs(60), "no batch comes");
        }
        assert!(loader.ready() > 0);
        assert!(loader.wait(Duration::ZERO), "it is still there");
        assert_eq!(loader.next().unwrap().unwrap().number, number);
    }
    assert!(loader.wait(Duration::from_secs(3600)), "the end is there at once");
    assert!(loader.next().is_none());

    // One thread makes a batch of many pictures: that takes longer than no time.
    let many = (0..600).map(|i| Task::Validate { sample: i % 6, frame_hw: [64, 64] }).collect();
    let mut loader = Loader::new(pool, std::iter::once(many), options(1)).unwrap();
    assert!(!loader.wait(Duration::ZERO));
    assert_eq!(loader.next().unwrap().unwrap().shape[0], 600);
}

#[test]
fn the_time_of_the_threads_is_told_by_what_it_went_into() {
    let (_set, samples) = small_set();
    let pool = pool(&samples, 64, Purpose::Validate, CacheMode::Ram { bytes: 1 << 20 });
    assert!(pool.keeps_all());
    let tasks = || (0..6).map(|sample| Task::Validate { sample, frame_hw: [64, 64] }).collect::<Vec<_>>();
    let start = Instant::now();
    let load = || Loader::new(Arc::clone(&pool), std::iter::once(tasks()), options(1)).unwrap().count();
    assert_eq!(load(), 1);
    let first = pool.times();
    assert!(!first.disk.is_zero() && !first.decode.is_zero() && !first.render.is_zero(), "{first:?}");
    // The second time every picture is in memory.
    assert_eq!(load(), 1);
    let second = pool.times().since(&first);
    assert!(second.disk.is_zero() && second.decode.is_zero() && !second.render.is_zero(), "{second:?}");
    let all = pool.times();
    assert!(all.disk + all.decode + all.render <= start.elapsed(), "one thread has no more time than there was");
}

#[test]
fn a_picture_as_thin_as_a_thread_is_not_lost() {
    let set = Set::with_one();
    set.write("images/thin.png", common::encoded(&common::picture(3000, 10).into(), image::ImageFormat::Png));
    set.write("labels/thin.txt", common::ROW);
    let samples = Arc::new(set.scan().unwrap().samples);
    for batch in epoch(&samples, AugmentConfig { mosaic: 0.5, ..AugmentConfig::SCRATCH_HIGH }, 64, 1, CacheMode::None) {
        assert!(batch.failures.is_empty(), "{:?}", batch.failures);
    }
}

#[test]
fn two_thousand_boxes_in_one_picture_all_arrive() {
    let set = Set::new();
    set.write("images/many.jpg", jpeg(640, 640));
    let rows: String = (0..2000)
        .map(|i| format!("0 {} {} 0.009 0.009\n", (i % 50) as f64 / 51.0 + 0.02, (i / 50) as f64 / 41.0 + 0.02))
        .collect();
    set.write("labels/many.txt", rows);
    let samples = Arc::new(set.scan().unwrap().samples);
    assert_eq!(samples[0].labels.len(), 2000);
    assert_eq!(epoch(&samples, AugmentConfig::NONE, 640, 1, CacheMode::None)[0].targets.len(), 2000);
}

fn bccd(split: Split) -> Option<(Dataset, Arc<Vec<Sample>>)> {
    let folder = testkit::shared_data("data/bccd")?;
    let data = Dataset::load(&folder.join("data.yaml")).unwrap();
    let options = ScanOptions { use_cache: false, ..ScanOptions::new(&data.names, true) };
    let scanned = scan(data.split(split).unwrap(), &data.root, &options).unwrap();
    assert_eq!(scanned.report.dropped, 0, "{:?}", scanned.report.problems);
    Some((data, Arc::new(scanned.samples)))
}

#[test]
fn real_data_comes_in_rectangular_validation_batches() {
    let Some((data, samples)) = bccd(Split::Val) else { return };
    assert_eq!(data.names, ["RBC", "WBC", "Platelets"]);
    let wh: Vec<[u32; 2]> = samples.iter().map(|s| [s.width, s.height]).collect();
    let plan = rect_plan(&wh, 320, 16, 32, 0.5);
    let work: Vec<Vec<Task>> = plan
        .batches(16)
        .map(|(ids, frame_hw)| ids.iter().map(|&sample| Task::Validate { sample, frame_hw }).collect())
        .collect();
    let loader =
        Loader::new(pool(&samples, 320, Purpose::Validate, CacheMode::None), work.into_iter(), options(2)).unwrap();
    let batches: Vec<Batch> = loader.map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|b| b.shape[0]).sum::<usize>(), samples.len());
    // 640x480 pictures: 320x240 content in a frame of 256 + pad.
    assert_eq!(batches[0].shape[1..], [256, 352, 3]);
    let boxes: usize = samples.iter().map(|s| s.labels.len()).sum();
    assert_eq!(batches.iter().map(|b| b.targets.len()).sum::<usize>(), boxes);
}

#[test]
fn cells_of_real_mosaics_lie_where_their_boxes_say() {
    let Some((_, samples)) = bccd(Split::Train) else { return };
    let samples: Arc<Vec<Sample>> = Arc::new(samples.iter().take(24).cloned().collect());
    let config =
        AugmentConfig { hsv_h: 0.0, hsv_s: 0.0, hsv_v: 0.0, scale: 0.3, mixup: 0.0, ..AugmentConfig::SCRATCH_HIGH };
    let batches = epoch(&samples, config, 320, 2, CacheMode::Ram { bytes: 1 << 28 });
    // White blood cells (class 1) are stained violet: much less green inside their boxes than around them.
    let (mut inside, mut all) = ((0u64, 0u64), (0u64, 0u64));
    for batch in &batches {
        let [n, h, w, _] = batch.shape;
        for i in 0..n {
            let pixels = &batch.pixels[i * h * w * 3..(i + 1) * h * w * 3];
            for y in 0..h {
                for x in 0..w {
                    let p = &pixels[(y * w + x) * 3..][..3];
                    if p == [114; 3] {
                        continue;
                    }
                    all = (all.0 + u64::from(p[1]), all.1 + 1);
                    let hit = batch.targets[batch.offsets[i]..batch.offsets[i + 1]].iter().any(|t| {
                        let [cx, cy, bw, bh] = t.xywh;
                        let (fx, fy) = (x as f32 / w as f32, y as f32 / h as f32);
                        t.class == 1 && (fx - cx).abs() < bw / 3.0 && (fy - cy).abs() < bh / 3.0
                    });
                    if hit {
                        inside = (inside.0 + u64::from(p[1]), inside.1 + 1);
                    }
                }
            }
        }
    }
    let (inside_mean, mean) = (inside.0 as f64 / inside.1 as f64, all.0 as f64 / all.1 as f64);
    assert!(inside.1 > 5000 && inside_mean < mean - 25.0, "green inside {inside_mean:.1}, everywhere {mean:.1}");
}
