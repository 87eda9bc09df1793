//! What a batch draws besides its recipes: a size for itself, and images by the weights of their classes.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::{Set, jpeg};
use data::decode::ImageLimits;
use data::image_weights::{class_weights, image_weights, weighted_order};
use data::multi_scale::{frame, range, side};
use data::resize::{Interpolation, resize};
use data::{
    AugmentConfig, Batch, CacheMode, ImagePool, Label, Loader, LoaderOptions, Picture, Purpose, RecipeMaker, Sample,
    Task,
};

#[test]
fn sides_are_multiples_of_the_stride_between_half_and_one_and_a_half() {
    for (size, low, high) in [(640, 320, 960), (64, 32, 96), (96, 32, 160), (32, 32, 64)] {
        assert_eq!(range(size, 32), (low, high), "{size}");
        let drawn: BTreeSet<u32> = (0..3000).map(|batch| side(0, 0, batch, size, 32)).collect();
        let all: BTreeSet<u32> = (low / 32..=high / 32).map(|n| 32 * n).collect();
        assert_eq!(drawn, all, "{size}");
    }
    assert_eq!(range(16_384, 64), (8192, 24_576));
    assert_ne!(
        (0..50).map(|batch| side(0, 0, batch, 640, 32)).collect::<Vec<_>>(),
        (0..50).map(|batch| side(0, 1, batch, 640, 32)).collect::<Vec<_>>()
    );
}

#[test]
fn sides_are_equally_likely_but_for_the_ends() {
    // 320..992 has 32 numbers for each multiple of 32: all 21 sides are equally likely.
    let mut counts = [0usize; 21];
    (0..21_000).for_each(|batch| counts[(side(3, 5, batch, 640, 32) as usize - 320) / 32] += 1);
    // Five standard deviations of a count around 1000.
    assert!(counts.iter().all(|&n| n.abs_diff(1000) < 160), "{counts:?}");
}

#[test]
fn rectangles_keep_their_shape_up_to_a_stride() {
    assert_eq!(frame([640, 640], 320, 32), [320, 320]);
    assert_eq!(frame([448, 640], 960, 32), [672, 960]);
    // 448 * 352 / 640 = 246.4.
    assert_eq!(frame([640, 448], 352, 32), [352, 256]);
    assert_eq!(frame([32, 640], 320, 32), [32, 320]);
}

#[test]
fn a_resized_sample_is_the_finished_picture_resized_and_keeps_its_boxes() {
    let set = Set::new();
    for i in 0..3u32 {
        set.write(&format!("images/{i}.jpg"), jpeg(80 + 9 * i, 60));
        set.write(&format!("labels/{i}.txt"), "0 .5 .5 .4 .4\n");
    }
    let samples = Arc::new(set.scan().unwrap().samples);
    let config = AugmentConfig { degrees: 10.0, ..AugmentConfig::SCRATCH_HIGH };
    let maker = Arc::new(RecipeMaker::new(Arc::clone(&samples), config, 64, 0, 0, Arc::new(vec![0, 1, 2])).unwrap());
    let pool = Arc::new(ImagePool::new(samples, 64, Purpose::Train, CacheMode::None, ImageLimits::default()));
    let batch = |tasks: Vec<Task>| -> Batch {
        let options = LoaderOptions { threads: 1, prefetch: 1 };
        Loader::new(Arc::clone(&pool), std::iter::once(tasks), options).unwrap().next().unwrap().unwrap()
    };
    let plain: Vec<Task> = (0..3).map(|position| Task::Draw { maker: Arc::clone(&maker), position }).collect();
    let resized =
        |hw: [u32; 2]| batch(plain.iter().map(|t| Task::Resized { task: Box::new(t.clone()), frame_hw: hw }).collect());
    let whole = batch(plain.clone());
    assert_eq!(resized([64, 64]), whole);
    for [h, w] in [[96u32, 96], [32, 64]] {
        let other = resized([h, w]);
        assert_eq!((other.shape, &other.targets), ([3, h as usize, w as usize, 3], &whole.targets));
        for i in 0..3 {
            let data = whole.pixels[i * 64 * 64 * 3..(i + 1) * 64 * 64 * 3].to_vec();
            let want = resize(&Picture::from_data(64, 64, data).unwrap(), w, h, Interpolation::Bilinear);
            let bytes = (h * w * 3) as usize;
            assert!(other.pixels[i * bytes..(i + 1) * bytes] == want.data, "picture {i} at {h}x{w}");
        }
    }
}

fn labelled(classes: &[u32]) -> Sample {
    let labels = classes.iter().map(|&class| Label { class, cx: 0.5, cy: 0.5, w: 0.1, h: 0.1 }).collect();
    Sample { path: "a.jpg".into(), width: 10, height: 10, labels, segments: vec![None; classes.len()] }
}

#[test]
fn weights_of_classes_and_images_agree_with_the_recorded_ones() {
    let recorded = &testkit::json("pieces/schedules.json")["class_weights"];
    let samples: Vec<Sample> = recorded["labels_per_image"]
        .as_array()
        .unwrap()
        .iter()
        .map(|labels| {
            labelled(&labels.as_array().unwrap().iter().map(|c| c.as_u64().unwrap() as u32).collect::<Vec<_>>())
        })
        .collect();
    let numbers =
        |key: &str| -> Vec<f64> { recorded[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect() };
    let classes = class_weights(&samples, recorded["nc"].as_u64().unwrap() as usize);
    // Recorded in float32.
    testkit::assert_close("class weights", &classes, &numbers("class_weights"), 1e-7, 0.0);
    testkit::assert_close(
        "image weights",
        &image_weights(&samples, &classes),
        &numbers("image_weights_of_cw"),
        1e-7,
        0.0,
    );
}

#[test]
fn images_are_drawn_in_proportion_to_their_weights() {
    let weights: Vec<f64> = [0.0, 3.0, 0.0, 1.0, 0.0].repeat(2000);
    let order = weighted_order(1, 2, &weights);
    assert_eq!(order.len(), weights.len());
    assert!(order.iter().all(|&i| weights[i] > 0.0));
    let heavy = order.iter().filter(|&&i| weights[i] == 3.0).count();
    // Five standard deviations of a share of 10 000 draws are 0.022.
    assert!((heavy as f64 / 10_000.0 - 0.75).abs() < 0.022, "{heavy}");
    assert_eq!(order, weighted_order(1, 2, &weights));
    assert_ne!(order, weighted_order(1, 3, &weights));
    assert_ne!(order, weighted_order(2, 2, &weights));
}

#[test]
fn weights_that_are_all_zero_are_equal_ones() {
    let order = weighted_order(0, 0, &[0.0; 1000]);
    let seen: BTreeSet<usize> = order.iter().copied().collect();
    // 1000 draws with replacement meet 632 different ones on average.
    assert!(order.iter().all(|&i| i < 1000) && seen.len() > 550 && seen.len() < 710, "{}", seen.len());
    assert!(weighted_order(0, 0, &[]).is_empty());
}
