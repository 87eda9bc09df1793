//! Sets as they lie on the disk, and as the scan of training sees them.

use data::{Dataset, ScanOptions, Split, scan};
use std::fs;
use std::path::Path;
use synth::{Scene, SetOptions, SynthError, encode, paint, picture_rng, write};

fn options(folder: &Path, train: usize, val: usize) -> SetOptions {
    SetOptions { folder: folder.to_path_buf(), train, val, classes: 80, seed: 3 }
}

fn silent(_: usize, _: usize) {}

#[test]
fn the_scan_takes_every_picture_and_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let report = write(&options(dir.path(), 12, 3), &silent).unwrap();
    let dataset = Dataset::load(&report.yaml).unwrap();
    assert_eq!((dataset.names.len(), dataset.names[29].as_str()), (80, "checks-ring-29"));
    let mut boxes = 0;
    for (split, count) in [(Split::Train, 12), (Split::Val, 3)] {
        let options = ScanOptions { use_cache: false, ..ScanOptions::new(&dataset.names, true) };
        let found = scan(dataset.split(split).unwrap(), &dataset.root, &options).unwrap();
        assert_eq!(found.samples.len(), count);
        assert!(found.report.problems.is_empty(), "{:?}", found.report.problems);
        boxes += found.report.boxes as u64;
    }
    assert_eq!((report.pictures, report.boxes), (15, boxes));
}

#[test]
fn a_set_does_not_depend_on_threads_and_a_picture_not_on_the_others() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool(1).install(|| write(&options(one.path(), 4, 2), &silent)).unwrap();
    pool(2).install(|| write(&options(two.path(), 3, 1), &silent)).unwrap();
    for file in ["train/000000000002", "val/000000000000"] {
        for (kind, suffix) in [("images", "jpg"), ("labels", "txt")] {
            let read = |dir: &Path| fs::read(dir.join(kind).join(file).with_extension(suffix)).unwrap();
            assert_eq!(read(one.path()), read(two.path()), "{kind}/{file}");
        }
    }
    let read = |file: &str| fs::read(one.path().join("images").join(file)).unwrap();
    assert_ne!(read("train/000000000000.jpg"), read("val/000000000000.jpg"));
}

#[test]
fn files_have_about_120_kb_and_colours_at_half_the_resolution() {
    let sizes: Vec<usize> = (0..96)
        .map(|number| {
            let mut rng = picture_rng(0, 0, number);
            let scene = Scene::draw(80, &mut rng);
            let jpeg = encode(&paint(&scene, &mut rng)).unwrap();
            let frame = jpeg.windows(4).position(|w| w == [0xFF, 0xC0, 0, 17]).unwrap();
            // Sampling factors of the three components.
            assert_eq!([11, 14, 17].map(|at| jpeg[frame + at]), [0x22, 0x11, 0x11]);
            jpeg.len()
        })
        .collect();
    let mean = sizes.iter().sum::<usize>() / sizes.len();
    assert!((105_000..135_000).contains(&mean), "{mean}");
}

#[test]
fn objects_have_the_colours_of_their_class_where_their_labels_say() {
    let mut seen = 0;
    for number in 0..60 {
        let mut rng = picture_rng(1, 0, number);
        let scene = Scene::draw(8, &mut rng);
        let picture = paint(&scene, &mut rng);
        // Of the first 8 classes all are plain; an ellipse in front of everything shows its colour in its middle.
        let Some(front) = scene.objects.last().filter(|o| o.class < 3 && o.light > 0.8 && o.grain < 10.0) else {
            continue;
        };
        let [x, y, w, h] = front.xywh;
        let at = ((y + 0.5 * h) as usize * picture.width + (x + 0.5 * w) as usize) * 3;
        let (brightest, _) = (0..3).map(|c| (c, picture.pixels[at + c])).max_by_key(|(_, v)| *v).unwrap();
        let colour = front.look.colours[0];
        assert!((0..3).all(|c| colour[c] <= colour[brightest] + 0.1), "{front:?} {:?}", &picture.pixels[at..at + 3]);
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

#[test]
fn a_folder_with_anything_in_it_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine.txt"), "mine").unwrap();
    let error = write(&options(dir.path(), 1, 0), &silent).unwrap_err();
    assert!(matches!(error, SynthError::NotEmpty { .. }) && error.hint().is_some());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn without_validation_the_data_yaml_names_no_such_part() {
    let dir = tempfile::tempdir().unwrap();
    let report = write(&options(&dir.path().join("new"), 1, 0), &silent).unwrap();
    let dataset = Dataset::load(&report.yaml).unwrap();
    assert!(dataset.has(Split::Train) && !dataset.has(Split::Val));
}

#[test]
fn options_out_of_range_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let good = options(dir.path(), 1, 1);
    for bad in [
        SetOptions { train: 0, ..good.clone() },
        SetOptions { classes: 0, ..good.clone() },
        SetOptions { classes: 1001, ..good.clone() },
        SetOptions { val: usize::MAX, ..good },
    ] {
        assert!(matches!(write(&bad, &silent), Err(SynthError::Option { .. })), "{bad:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
