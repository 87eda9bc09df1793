//! Decoded pictures on disk: read back as they were, never wrong, and never in the way.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::{Set, contents, jpeg};
use data::decode::ImageLimits;
use data::disk_cache::{Contents, check_space, free_space, set_name};
use data::{CacheMode, DataError, DiskCache, ImagePool, Picture, Purpose, Sample};

/// Images that were last changed an hour ago: what has just changed is not kept.
fn set(images: u32) -> (Set, Arc<Vec<Sample>>) {
    let set = Set::new();
    for i in 0..images {
        let path = set.write(&format!("images/{i}.jpg"), jpeg(120 + i, 90));
        set.write(&format!("labels/{i}.txt"), "0 .5 .5 .4 .4\n");
        age(&path, 3600);
    }
    let samples = Arc::new(set.scan().unwrap().samples);
    (set, samples)
}

fn age(path: &std::path::Path, seconds: u64) {
    let time = SystemTime::now() - Duration::from_secs(seconds);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

fn open(set: &Set, samples: &[Sample], size: u32, purpose: Purpose) -> (DiskCache, Contents) {
    DiskCache::open(&set.path("cache"), "set", samples, size, purpose)
}

/// All pictures of a set, and how many were decoded for that.
fn pictures(set: &Set, samples: &Arc<Vec<Sample>>, size: u32, purpose: Purpose) -> (Vec<Arc<Picture>>, usize) {
    let pool = ImagePool::new(Arc::clone(samples), size, purpose, CacheMode::None, ImageLimits::default())
        .with_disk(open(set, samples, size, purpose).0);
    let pictures = (0..samples.len()).map(|i| pool.get(i).unwrap()).collect();
    assert_eq!(pool.take_disk_problem(), None);
    (pictures, pool.decoded())
}

fn plain(samples: &Arc<Vec<Sample>>, size: u32, purpose: Purpose) -> Vec<Arc<Picture>> {
    let pool = ImagePool::new(Arc::clone(samples), size, purpose, CacheMode::None, ImageLimits::default());
    (0..samples.len()).map(|i| pool.get(i).unwrap()).collect()
}

fn entries(set: &Set) -> Vec<PathBuf> {
    contents(&set.path("cache")).into_iter().map(|(path, _)| path).collect()
}

#[test]
fn pictures_come_back_as_they_were_and_are_decoded_once() {
    let (set, samples) = set(4);
    let before = contents(&set.path("images"));
    for (size, purpose) in [(64, Purpose::Train), (64, Purpose::Validate), (96, Purpose::Train)] {
        let want = plain(&samples, size, purpose);
        assert_eq!(pictures(&set, &samples, size, purpose), (want.clone(), 4));
        assert_eq!(pictures(&set, &samples, size, purpose), (want, 0));
    }
    // Sizes and purposes lie apart, and nothing lies near the images.
    assert_eq!(entries(&set).len(), 12);
    assert_eq!(contents(&set.path("images")), before);
    let (_, found) = open(&set, &samples, 64, Purpose::Train);
    assert_eq!((found.pictures, found.missing, found.dropped), (4, 0, 0));
    // 64 x 48 x 3 bytes and a header are three blocks.
    assert_eq!(found.bytes, 4 * 3 * 4096);
}

#[test]
fn damaged_entries_are_decoded_anew_and_replaced() {
    let (set, samples) = set(1);
    let want = plain(&samples, 64, Purpose::Train);
    pictures(&set, &samples, 64, Purpose::Train);
    let entry = entries(&set).remove(0);
    let whole = std::fs::read(&entry).unwrap();
    let with = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= value;
        bytes
    };
    let longer = [whole.clone(), vec![0]].concat();
    let damaged = [
        ("empty", Vec::new()),
        ("cut in the header", whole[..20].to_vec()),
        ("cut in the path", whole[..50].to_vec()),
        ("cut in the pixels", whole[..whole.len() - 1].to_vec()),
        ("longer", longer),
        ("another kind of file", with(0, 1)),
        ("another version", with(8, 1)),
        ("another width", with(12, 1)),
        ("a huge width", with(15, 0x7F)),
        ("another check sum", with(20, 1)),
        ("another image length", with(24, 1)),
        ("another time", with(32, 1)),
        ("a huge path", with(43, 0x7F)),
        ("another path", with(45, 1)),
        ("a flipped bit of a pixel", with(whole.len() - 100, 4)),
    ];
    for (what, bytes) in damaged {
        std::fs::write(&entry, bytes).unwrap();
        assert_eq!(pictures(&set, &samples, 64, Purpose::Train), (want.clone(), 1), "{what}");
        assert!(std::fs::read(&entry).unwrap() == whole, "{what} is replaced");
        assert_eq!(pictures(&set, &samples, 64, Purpose::Train), (want.clone(), 0), "{what}");
    }
}

#[test]
fn a_changed_image_is_decoded_again_and_its_old_entry_goes() {
    let (set, samples) = set(2);
    pictures(&set, &samples, 64, Purpose::Train);
    let path = set.path("images/0.jpg");
    // Only the time tells.
    age(&path, 1800);
    let (_, found) = open(&set, &samples, 64, Purpose::Train);
    assert_eq!((found.pictures, found.dropped), (1, 1));
    let (got, decoded) = pictures(&set, &samples, 64, Purpose::Train);
    assert_eq!((got, decoded), (plain(&samples, 64, Purpose::Train), 1));
    let other = image::imageops::flip_horizontal(&common::picture(120, 90));
    std::fs::write(&path, common::jpeg_with_exif(&other, None)).unwrap();
    age(&path, 1800);
    let (got, decoded) = pictures(&set, &samples, 64, Purpose::Train);
    assert_eq!((got, decoded), (plain(&samples, 64, Purpose::Train), 1));
}

#[test]
fn entries_of_images_that_are_gone_are_dropped_and_those_left_out_stay() {
    let (set, samples) = set(3);
    pictures(&set, &samples, 64, Purpose::Train);
    let fewer = Arc::new(samples[..1].to_vec());
    let (_, found) = open(&set, &fewer, 64, Purpose::Train);
    assert_eq!((found.pictures, found.dropped, entries(&set).len()), (1, 0, 3));
    std::fs::remove_file(set.path("images/2.jpg")).unwrap();
    let folder = entries(&set)[0].parent().unwrap().to_path_buf();
    std::fs::write(folder.join("junk.picture"), "junk").unwrap();
    let (old, young) = (folder.join(".unfinished-old"), folder.join(".unfinished-young"));
    [&old, &young].into_iter().for_each(|path| std::fs::write(path, "x").unwrap());
    age(&old, 90_000);
    let (_, found) = open(&set, &fewer, 64, Purpose::Train);
    assert_eq!((found.pictures, found.dropped), (1, 2));
    assert!(!old.exists() && young.exists());
    assert_eq!(entries(&set).len(), 3);
}

#[test]
fn an_image_that_has_just_changed_is_not_kept() {
    let (set, samples) = set(1);
    std::fs::File::options().write(true).open(&samples[0].path).unwrap().set_modified(SystemTime::now()).unwrap();
    assert_eq!(pictures(&set, &samples, 64, Purpose::Train).1, 1);
    assert!(!set.path("cache").exists());
}

#[test]
fn a_folder_that_cannot_be_written_costs_speed_only_and_is_named_once() {
    let (set, samples) = set(2);
    set.write("cache", "a file where the folder should be");
    let (cache, _) = open(&set, &samples, 64, Purpose::Train);
    let folder = cache.folder().to_path_buf();
    let pool = ImagePool::new(Arc::clone(&samples), 64, Purpose::Train, CacheMode::None, ImageLimits::default())
        .with_disk(cache);
    let got: Vec<Arc<Picture>> = (0..2).map(|i| pool.get(i).unwrap()).collect();
    assert_eq!(got, plain(&samples, 64, Purpose::Train));
    assert_eq!(pool.take_disk_problem().unwrap().file, folder);
    assert_eq!(pool.take_disk_problem(), None);
}

#[test]
fn pictures_that_do_not_fit_on_the_disk_are_refused_in_numbers() {
    let folder = PathBuf::from("/caches/pictures");
    check_space(&folder, 900, Some(1000)).unwrap();
    check_space(&folder, 1 << 60, None).unwrap();
    let error = check_space(&folder, 3 << 30, Some(2 << 30)).unwrap_err();
    assert!(matches!(error, DataError::CacheSpace { .. }));
    let text = error.to_string();
    assert!(text.contains("need 3.00 GiB below /caches/pictures, 2.00 GiB are free"), "{text}");
    assert!(error.hint().unwrap().contains("XDG_CACHE_HOME"));
}

#[cfg(unix)]
#[test]
fn the_free_space_of_a_folder_that_is_not_there_yet_is_that_of_its_disk() {
    let dir = tempfile::tempdir().unwrap();
    assert!(free_space(&dir.path().join("a/b/c")).unwrap() > 0);
}

#[test]
fn sets_in_different_folders_have_different_names() {
    let name = |root: &str, place: &str| set_name(&PathBuf::from(root), &[PathBuf::from(place)]);
    assert!(name("/a/bccd demo", "/a/train").starts_with("bccd_demo-"));
    assert_ne!(name("/a/x", "/a/x/train"), name("/b/x", "/b/x/train"));
    assert_ne!(name("/a/x", "/a/x/train"), name("/a/x", "/a/x/val"));
}
