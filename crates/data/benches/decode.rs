//! Images a second of one core, from bytes in memory: `FOLDER=DIR cargo bench -p yolov9-data --bench decode`.
//!
//! FOLDER has JPEG files (`yolov9 synth` draws some), of which the first COUNT (256) are used; the fastest of REPEATS (5)
//! passes counts. `benches/jpeg/decode.py` measures libjpeg-turbo on the same files.

use data::Picture;
use data::decode::{ImageLimits, decode, decode_verified, probe};
use data::resize::{Interpolation, resize};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() {
    let folder: String = setting("FOLDER", String::new());
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("FOLDER={folder} is no folder; `yolov9 synth --out DIR --images 256` draws one, DIR/images/train");
        return;
    };
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|p| p.extension().is_some_and(|s| s == "jpg"));
    paths.sort();
    paths.truncate(setting("COUNT", 256));
    let files: Vec<(PathBuf, Vec<u8>)> =
        paths.into_iter().map(|p| (p.clone(), std::fs::read(p).expect("a file"))).collect();
    let bytes: usize = files.iter().map(|f| f.1.len()).sum();
    println!("{} files, {:.1} kB each", files.len(), bytes as f64 / files.len().max(1) as f64 / 1e3);
    let limits = ImageLimits::default();
    let pictures: Vec<Picture> = files.iter().map(|(p, b)| decode(p, b, &limits).expect("a picture")).collect();
    let time = |what: &str, pass: &dyn Fn(usize)| {
        let fastest = (0..setting("REPEATS", 5))
            .map(|_| {
                let start = Instant::now();
                (0..files.len()).for_each(pass);
                start.elapsed().as_secs_f64()
            })
            .fold(f64::INFINITY, f64::min);
        let each = fastest / files.len() as f64;
        let (rate, volume) = (1.0 / each, bytes as f64 / fastest / 1e6);
        println!("{what:<16} {:>8.3} ms  {rate:>9.1} images/s  {volume:>8.1} MB/s of JPEG", each * 1e3);
    };
    time("headers", &|i| {
        black_box(probe(&files[i].0, &files[i].1, &limits)).ok();
    });
    time("decode", &|i| {
        black_box(decode(&files[i].0, &files[i].1, &limits)).ok();
    });
    time("decode, verified", &|i| {
        black_box(decode_verified(&files[i].0, &files[i].1, &limits)).ok();
    });
    for side in [320, 416, 800] {
        time(&format!("resize to {side}"), &|i| {
            let picture = &pictures[i];
            let long = picture.width.max(picture.height);
            let to = |v: u32| (v * side / long).max(1);
            black_box(resize(picture, to(picture.width), to(picture.height), Interpolation::Bilinear));
        });
    }
}
