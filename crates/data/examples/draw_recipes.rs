//! Draws training samples with their boxes into one JPEG: `draw_recipes DATA.yaml OUT.jpg [SIZE]`.

use std::path::Path;
use std::sync::Arc;

use data::decode::ImageLimits;
use data::recipe::epoch_order;
use data::{
    AugmentConfig, CacheMode, Dataset, ImagePool, Loader, LoaderOptions, Purpose, RecipeMaker, ScanOptions, Split,
    Task, scan,
};

const COLOURS: [[u8; 3]; 6] =
    [[230, 30, 30], [20, 140, 20], [30, 60, 230], [230, 150, 0], [150, 0, 200], [0, 160, 180]];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [yaml, out, ..] = &arguments[..] else { return Err("usage: draw_recipes DATA.yaml OUT.jpg [SIZE]".into()) };
    let size: u32 = arguments.get(2).map_or(Ok(320), |s| s.parse())?;
    let data = Dataset::load(Path::new(yaml))?;
    let started = std::time::Instant::now();
    let scanned = scan(data.split(Split::Train)?, &data.root, &ScanOptions::new(&data.names, true))?;
    println!("scan: {:.2?}, {} from the cache", started.elapsed(), scanned.report.from_cache);
    for problem in &scanned.report.problems {
        println!("{problem}");
    }
    let samples = Arc::new(scanned.samples);
    let cache = CacheMode::Ram { bytes: 1 << 30 };
    let pool = ImagePool::new(Arc::clone(&samples), size, Purpose::Train, cache, ImageLimits::default());
    let pool = Arc::new(pool);
    let (columns, rows, s) = (4usize, 3usize, size as usize);
    let mut sheet = image::RgbImage::new((columns * s) as u32, (rows * s) as u32);
    for epoch in 0..3 {
        let order = Arc::new(epoch_order(0, epoch, samples.len()));
        let maker = RecipeMaker::new(Arc::clone(&samples), AugmentConfig::SCRATCH_HIGH, size, 0, epoch, order)?;
        let maker = Arc::new(maker);
        let count = maker.len();
        let work = (0..count.div_ceil(columns * rows)).map(|b| {
            let end = (b + 1) * columns * rows;
            (b * columns * rows..end.min(count))
                .map(|position| Task::Draw { maker: Arc::clone(&maker), position })
                .collect()
        });
        let started = std::time::Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        for batch in Loader::new(Arc::clone(&pool), work, LoaderOptions { threads, prefetch: 2 })? {
            let batch = batch?;
            if batch.number > 0 || epoch > 0 {
                continue;
            }
            for i in 0..batch.shape[0] {
                let (left, top) = ((i % columns * s) as u32, (i / columns * s) as u32);
                for (k, p) in batch.pixels[i * s * s * 3..(i + 1) * s * s * 3].chunks_exact(3).enumerate() {
                    sheet.put_pixel(left + (k % s) as u32, top + (k / s) as u32, image::Rgb([p[0], p[1], p[2]]));
                }
                for t in &batch.targets[batch.offsets[i]..batch.offsets[i + 1]] {
                    let [cx, cy, w, h] = t.xywh.map(|v| v * s as f32);
                    let edge = |v: f32| (v.max(0.0) as u32).min(size - 1);
                    let (x0, y0, x1, y1) =
                        (edge(cx - w / 2.0), edge(cy - h / 2.0), edge(cx + w / 2.0), edge(cy + h / 2.0));
                    let colour = image::Rgb(COLOURS[t.class as usize % COLOURS.len()]);
                    for x in x0..=x1 {
                        sheet.put_pixel(left + x, top + y0, colour);
                        sheet.put_pixel(left + x, top + y1, colour);
                    }
                    for y in y0..=y1 {
                        sheet.put_pixel(left + x0, top + y, colour);
                        sheet.put_pixel(left + x1, top + y, colour);
                    }
                }
            }
        }
        let rate = count as f64 / started.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {count} samples, {rate:.0} a second on {threads} threads, {} decoded so far",
            pool.decoded()
        );
    }
    sheet.save(out)?;
    Ok(())
}
