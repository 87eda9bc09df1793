//! The data YAML, list files and the scan's cache.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use common::{ROW, Set, jpeg};
use data::dataset::{Dataset, Split};
use data::listing::{label_path, list_images};
use data::{DataError, scan::shared_images};

fn load(set: &Set, yaml: impl AsRef<[u8]>) -> Result<Dataset, DataError> {
    Dataset::load(&set.write("data.yaml", yaml))
}

#[test]
fn names_may_be_a_list_a_map_or_one_word() {
    let set = Set::with_one();
    let names = |text: &str| load(&set, format!("train: images\nval: images\nnames: {text}\n")).unwrap().names;
    assert_eq!(names("[a, b]"), ["a", "b"]);
    assert_eq!(names("{0: a, 1: b}"), ["a", "b"]);
    assert_eq!(names("{\"0\": a, '1': b}"), ["a", "b"]);
    assert_eq!(names("cat"), ["cat"]);
    assert_eq!(names("[a, a]"), ["a", "a"]);
    // Words of YAML 1.1 and digits are names like others.
    assert_eq!(names("[no, on, 7]"), ["no", "on", "7"]);
    assert_eq!(names("[🐱, 缺陷]"), ["🐱", "缺陷"]);
}

#[test]
fn a_gap_in_the_ids_is_filled_and_said() {
    let set = Set::with_one();
    let data = load(&set, "train: images\nnames: {0: a, 2: b}\n").unwrap();
    assert_eq!(data.names, ["a", "class1", "b"]);
    assert_eq!(data.nc(), 3);
    assert!(data.notes[0].contains("1 ids have no name (1)"), "{:?}", data.notes);
}

#[test]
fn mistakes_in_the_yaml_are_named_with_their_line() {
    let set = Set::with_one();
    for (yaml, words) in [
        ("train: images\nnames: {a: x}\n", "data.yaml:2: names: key \"a\" is not a class id"),
        ("train: images\nval: images\n", "'names:' is missing"),
        ("names: [a]\n", "neither 'train:'"),
        ("train: images\nnames: [a\n", "data.yaml:"),
        ("train: {a: b}\nnames: [a]\n", "data.yaml:1"),
        ("train: images\nval: nowhere\nnames: [a]\n", "data.yaml:2: val: "),
        ("path: nowhere\ntrain: images\nnames: [a]\n", "data.yaml:1: path: "),
        ("train: images\nnames: {0: a, 0: b}\n", "data.yaml:2"),
        ("train: images\nnc: many\n", "data.yaml:2: nc: \"many\""),
        ("train: images\nnc: 1000000000000\n", "data.yaml:2: nc: 1000000000000 classes are too many (limit 100000)"),
        ("train: images\nnames: {99999999: b}\n", "data.yaml:2: names: id 99999999 is too large (limit 99999)"),
        ("train: images\nnames: {0: a, 0: b}\n", "the key '0' is given twice"),
        ("train: images\nnames: &n [*n]\n", "data.yaml:2: an alias (*name) leads back to itself"),
        (
            "train: images\nnames: [a, ~]\n",
            "data.yaml:2: expected a single value (a name, a number or a path), found nothing",
        ),
        ("train: images\nnames: true\n", "data.yaml:2: expected a list or a mapping of class names, found "),
        ("- a\n- b\n", "data.yaml:1: expected a mapping with keys"),
    ] {
        let error = load(&set, yaml).expect_err(yaml).to_string();
        assert!(error.contains(words), "{yaml:?} gave {error}");
    }
}

#[test]
fn hostile_yaml_is_refused_in_plain_words() {
    let set = Set::with_one();
    let deep = format!("train: images\nnames: {}{}\n", "[".repeat(5000), "]".repeat(5000));
    let wide = format!("train: images\nnames: [{}]\n", "[a], ".repeat(400_000));
    let laughs = (1..12).fold("a0: &a0 [x]\n".to_string(), |text, i| {
        let before = format!("*a{}, ", i - 1).repeat(9);
        format!("{text}a{i}: &a{i} [{before}]\n")
    });
    for text in [deep, wide, format!("{laughs}train: images\nnames: *a11\n")] {
        let error = load(&set, &text).unwrap_err().to_string();
        assert!(error.contains("data.yaml:"), "{error}");
        for leak in ["budget", "{", "weak", "Policy", "Options", "invalid type"] {
            assert!(!error.contains(leak), "{error}");
        }
    }
}

#[test]
fn a_folder_in_place_of_a_file_is_called_one() {
    let set = Set::with_one();
    let error = Dataset::load(&set.path("images")).unwrap_err().to_string();
    assert!(error.contains("images: is a folder; expected a file"), "{error}");
    let error = load(&set, "path: images/good.jpg\ntrain: .\nnames: [a]\n").unwrap_err().to_string();
    assert!(error.contains("good.jpg is not a folder; expected a folder"), "{error}");
}

#[test]
fn one_picture_spelled_three_ways_in_a_list_is_one_picture() {
    let set = Set::with_one();
    set.write("images/other.jpg", jpeg(50, 50));
    let list =
        set.write("train.txt", "images/good.jpg\n./images/good.jpg\nimages/../images/good.jpg\nimages/other.jpg\n");
    let listing = list_images(&[list], set.dir.path()).unwrap();
    assert_eq!(listing.images.len(), 2);
    assert_eq!(listing.problems.len(), 1);
    assert!(listing.problems[0].reason.starts_with("2 paths name images"), "{:?}", listing.problems);
    let twice = list_images(&[set.path("images"), set.path("./images")], set.dir.path()).unwrap();
    assert_eq!(twice.images.len(), 2);
}

#[test]
fn encodings_of_the_yaml() {
    let set = Set::with_one();
    let text = "train: images\r\nnames: [a]\r\n";
    assert_eq!(load(&set, format!("\u{feff}{text}")).unwrap().names, ["a"]);
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert!(load(&set, utf16).unwrap_err().to_string().contains("UTF-16"));
    let error = load(&set, b"train: images\nnames: [caf\xE9]\n").unwrap_err().to_string();
    assert!(error.contains("data.yaml:2") && error.contains("not UTF-8"), "{error}");
}

#[test]
fn paths_are_relative_to_the_yaml() {
    let set = Set::with_one();
    let at = |name: &str, text: &str| Dataset::load(&set.write(name, text));
    for (name, text) in [
        ("data.yaml", "path: .\ntrain: images\nnames: [a]\n"),
        ("sub/data.yaml", "path: ..\ntrain: images\nnames: [a]\n"),
        ("data.yaml", "train: ../images\nnames: [a]\n"),
        ("data.yaml", "train: [images, ./images]\nnames: [a]\n"),
    ] {
        let data = at(name, text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(!list_images(data.split(Split::Train).unwrap(), &data.root).unwrap().images.is_empty());
    }
}

#[test]
fn a_missing_split_has_a_hint() {
    let set = Set::with_one();
    let data = load(&set, "train: images\nval:\nnames: [a]\n").unwrap();
    let error = data.split(Split::Val).unwrap_err();
    assert!(matches!(error, DataError::MissingSplit { split: "val", .. }));
    assert!(error.hint().unwrap().contains("--noval"));
    assert!(!data.has(Split::Test));
}

#[test]
fn list_files_are_read_with_all_their_oddities() {
    let set = Set::new();
    for name in ["a", "b", "c", "d"] {
        set.write(&format!("images/{name}.jpg"), jpeg(20, 20));
    }
    let list = set.write(
        "lists/train.txt",
        b"\xEF\xBB\xBF./../images/a.jpg\r\nimages/b.jpg\r\n  images/c.jpg  \r\n\r\n# note\r\nimages\\d.jpg\ncaf\xE9.jpg\nimages/none.jpg\n",
    );
    let listing = list_images(&[list], set.dir.path()).unwrap();
    let stems: Vec<String> =
        listing.images.iter().map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(stems.len(), 4, "{stems:?} {:?}", listing.problems);
    let lines: Vec<_> = listing.problems.iter().map(|p| p.line).collect();
    assert_eq!(lines, [Some(7), Some(8)]);
}

#[test]
fn names_that_are_not_ascii_work() {
    let set = Set::new();
    for name in ["ä", "缺陷0001", "지단", "[x]"] {
        set.write(&format!("images/ün/{name}.jpg"), jpeg(20, 20));
        set.write(&format!("labels/ün/{name}.txt"), ROW);
    }
    assert_eq!(set.scan().unwrap().report.labelled, 4);
}

#[test]
fn the_last_folder_images_becomes_labels() {
    for (image, label) in [
        ("/d/images/a.jpg", "/d/labels/a.txt"),
        ("/d/images/images/a.b.PNG", "/d/images/labels/a.b.txt"),
        ("/d/images/train/images.jpg", "/d/labels/train/images.txt"),
        ("/d/image/a.jpg", "/d/image/a.txt"),
        ("images/a.jpg", "labels/a.txt"),
    ] {
        assert_eq!(label_path(image.as_ref()), PathBuf::from(label));
    }
}

/// Makes a file look as if it had not been touched for an hour.
fn age(path: &std::path::Path) {
    let file = fs::File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

fn aged() -> Set {
    let set = Set::with_one();
    set.write("images/two.jpg", jpeg(60, 60));
    set.write("labels/two.txt", "0 .5 .5 .2 .4\nbad row here now x\n");
    for name in ["images/good.jpg", "images/two.jpg", "labels/good.txt", "labels/two.txt"] {
        age(&set.path(name));
    }
    set
}

#[test]
fn the_cache_gives_the_same_result() {
    let set = aged();
    let first = set.scan_with(|o| o.use_cache = true).unwrap();
    let second = set.scan_with(|o| o.use_cache = true).unwrap();
    assert_eq!((first.report.from_cache, second.report.from_cache), (0, 2));
    assert_eq!(first.samples, second.samples);
    assert_eq!(first.report.problems, second.report.problems);
    let cache = first.report.cache.unwrap();
    assert!(cache.is_file() && cache.parent() == Some(set.dir.path()), "{}", cache.display());
}

#[test]
fn a_same_size_edit_of_a_label_is_noticed() {
    let set = aged();
    set.scan_with(|o| o.use_cache = true).unwrap();
    set.write("labels/good.txt", ROW.replacen('0', "1", 1));
    let again = set.scan_with(|o| o.use_cache = true).unwrap();
    assert_eq!(again.report.from_cache, 1);
    assert_eq!(again.samples[0].labels[0].class, 1);
    // Edited again within the clock's tick: the fresh entry is not believed.
    let stamp = fs::metadata(set.path("labels/good.txt")).unwrap().modified().unwrap();
    set.write("labels/good.txt", ROW);
    fs::File::options().append(true).open(set.path("labels/good.txt")).unwrap().set_modified(stamp).unwrap();
    assert_eq!(set.scan_with(|o| o.use_cache = true).unwrap().samples[0].labels[0].class, 0);
}

#[test]
fn classes_are_checked_on_cached_labels_too() {
    let set = Set::with_one();
    set.write("labels/good.txt", "1 .5 .5 .2 .2\n");
    age(&set.path("labels/good.txt"));
    age(&set.path("images/good.jpg"));
    let names: Vec<String> = vec!["a".into(), "b".into()];
    let places = [set.path("images")];
    let options =
        |n| data::ScanOptions { cache_folder: Some(set.path("c")), ..data::ScanOptions::new(&names[..n], true) };
    data::scan(&places, set.dir.path(), &options(2)).unwrap();
    let error = data::scan(&places, set.dir.path(), &options(1)).unwrap_err().to_string();
    assert!(error.contains("good.txt:1: class 1"), "{error}");
}

#[test]
fn a_damaged_cache_only_costs_time() {
    let set = aged();
    let cache = set.scan_with(|o| o.use_cache = true).unwrap().report.cache.unwrap();
    let good = fs::read(&cache).unwrap();
    let mut flipped = good.clone();
    let n = flipped.len() - 20;
    flipped[n] ^= 1;
    for bytes in [&good[..good.len() / 2], b"", b"\n\n", &flipped] {
        fs::write(&cache, bytes).unwrap();
        let again = set.scan_with(|o| o.use_cache = true).unwrap();
        assert_eq!((again.report.from_cache, again.samples.len()), (0, 2));
        assert_eq!(fs::read(&cache).unwrap(), good);
    }
}

#[test]
fn two_lists_of_one_folder_have_caches_of_their_own() {
    let set = aged();
    let a = set.write("train.txt", "images/good.jpg\n");
    let b = set.write("val.txt", "images/two.jpg\n");
    let names = ["a".to_string()];
    let scan = |list: &PathBuf| {
        let options = data::ScanOptions { cache_folder: Some(set.path("c")), ..data::ScanOptions::new(&names, true) };
        data::scan(std::slice::from_ref(list), set.dir.path(), &options).unwrap()
    };
    let (train, val) = (scan(&a), scan(&b));
    assert_ne!(train.report.cache, val.report.cache);
    assert_eq!((scan(&a).report.from_cache, scan(&b).report.from_cache), (1, 1));
    assert!(shared_images(&train.samples, &val.samples).is_empty());
    assert_eq!(shared_images(&train.samples, &train.samples).len(), 1);
}

#[test]
fn progress_reaches_the_number_of_images() {
    let set = aged();
    let seen = std::sync::Mutex::new(Vec::new());
    let names = ["a".to_string()];
    let progress = |done: usize, total: usize| seen.lock().unwrap().push((done, total));
    let options =
        data::ScanOptions { use_cache: false, progress: Some(&progress), ..data::ScanOptions::new(&names, true) };
    data::scan(&[set.path("images")], set.dir.path(), &options).unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.sort();
    assert_eq!(seen, [(1, 2), (2, 2)]);
}

#[test]
fn an_interrupted_scan_ends_soon_and_keeps_what_it_found() {
    let set = aged();
    for i in 0..60 {
        age(&set.write(&format!("images/n{i}.jpg"), jpeg(20, 20)));
    }
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) >= 5;
    let names = ["a".to_string()];
    let options =
        |stop| data::ScanOptions { cache_folder: Some(set.path("c")), stop, ..data::ScanOptions::new(&names, true) };
    let places = [set.path("images")];
    let error = data::scan(&places, set.dir.path(), &options(Some(&stop))).unwrap_err();
    assert!(matches!(error, DataError::Interrupted { done: 5, images: 62 }), "{error}");
    // Stopping at once must not cost what is known already.
    let at_once = || true;
    let error = data::scan(&places, set.dir.path(), &options(Some(&at_once))).unwrap_err();
    assert!(matches!(error, DataError::Interrupted { done: 0, images: 62 }), "{error}");
    let whole = data::scan(&places, set.dir.path(), &options(None)).unwrap();
    assert_eq!((whole.report.from_cache, whole.report.images), (5, 62));
}
