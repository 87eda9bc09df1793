//! The stages on the CPU, each measured alone.

use super::{DECODED, LoadingOptions, SAMPLE, StageTime};
use crate::BenchError;
use data::decode::{ImageLimits, decode, read_file};
use data::letterbox::long_side_to;
use data::recipe::epoch_order;
use data::render::{Scratch, render};
use data::resize::{Interpolation, resize};
use data::{
    AugmentConfig, CacheMode, DataError, ImagePool, Loader, LoaderOptions, Partners, Picture, Purpose, RecipeMaker,
    Sample, Task,
};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Largest window of mosaic partners: that of training, and bytes of its pictures.
const WINDOW: usize = 1024;
const WINDOW_BYTES: u64 = 1 << 30;

/// The set and how it is loaded.
pub(super) struct Bench<'a> {
    samples: Arc<Vec<Sample>>,
    options: &'a LoadingOptions,
    cores: usize,
    size: u32,
    /// Sample ids that are spread over the set.
    spread: Vec<usize>,
}

impl<'a> Bench<'a> {
    pub fn new(samples: Arc<Vec<Sample>>, options: &'a LoadingOptions, cores: usize) -> Result<Self, BenchError> {
        let size = u32::try_from(options.imgsz).unwrap_or(u32::MAX);
        let (n, count) = (samples.len(), samples.len().min(SAMPLE));
        let spread = (0..count).map(|i| i * n / count).collect();
        Ok(Self { samples, options, cores, size, spread })
    }

    /// Those of the spread that are decoded.
    fn decoded(&self) -> impl Iterator<Item = usize> {
        let step = self.spread.len().div_ceil(DECODED).max(1);
        self.spread.iter().copied().step_by(step)
    }

    fn path(&self, id: usize) -> &Path {
        &self.samples[id].path
    }

    /// Reads files that the system was asked to drop from its cache; the outer error says why it cannot be asked.
    pub fn read_cold(&self) -> Result<Result<StageTime, BenchError>, String> {
        for &id in &self.spread {
            forget(self.path(id))?;
        }
        Ok(self.read("read, cold"))
    }

    /// Reads files that were just read.
    pub fn read_warm(&self) -> Result<StageTime, BenchError> {
        self.read("read, warm")?;
        self.read("read, warm")
    }

    fn read(&self, stage: &'static str) -> Result<StageTime, BenchError> {
        let (bytes, seconds) = self.on_threads(self.cores, || {
            let read = |&id: &usize| read_file(self.path(id)).map(|b| b.len() as u64);
            self.spread.par_iter().map(read).sum::<Result<u64, DataError>>()
        })?;
        Ok(StageTime::new(stage, self.cores, self.spread.len(), bytes?, seconds))
    }

    /// Decodes from memory, on one thread and on all, and gives the pictures.
    pub fn decode(&self, stages: &mut Vec<StageTime>) -> Result<Vec<Picture>, BenchError> {
        let file = |id: usize| Ok((id, read_file(self.path(id))?));
        let files = self.decoded().map(file).collect::<Result<Vec<_>, DataError>>()?;
        let bytes = files.iter().map(|f| f.1.len() as u64).sum();
        let limits = ImageLimits::default();
        let mut pictures = Vec::new();
        for threads in self.one_and_all() {
            let all = || -> Result<Vec<Picture>, DataError> {
                files.par_iter().map(|(id, bytes)| decode(self.path(*id), bytes, &limits)).collect()
            };
            let (decoded, seconds) = self.on_threads(threads, all)?;
            pictures = decoded?;
            stages.push(StageTime::new("decode", threads, files.len(), bytes, seconds));
        }
        Ok(pictures)
    }

    /// Resizes as for training, on one thread; `None` where every picture has its size.
    pub fn resize(&self, pictures: &[Picture]) -> Option<StageTime> {
        let start = Instant::now();
        let (mut count, mut bytes) = (0, 0);
        for picture in pictures {
            let ([w, h], ratio) = long_side_to(picture.width, picture.height, self.size);
            if ratio != 1.0 {
                bytes += std::hint::black_box(resize(picture, w, h, Interpolation::Bilinear)).data.len() as u64;
                count += 1;
            }
        }
        (count > 0).then(|| StageTime::new("resize", 1, count, bytes, start.elapsed().as_secs_f64()))
    }

    /// Renders recipes of decoded pictures, on one thread and on all.
    pub fn render(&self, pictures: Vec<Picture>, stages: &mut Vec<StageTime>) -> Result<(), BenchError> {
        let fitted = |p: Picture| {
            let [w, h] = long_side_to(p.width, p.height, self.size).0;
            Arc::new(if [p.width, p.height] == [w, h] { p } else { resize(&p, w, h, Interpolation::Bilinear) })
        };
        let pictures: Vec<Arc<Picture>> = pictures.into_iter().map(fitted).collect();
        // A set of its own, with the labels of the pictures' places in the spread.
        let samples: Vec<Sample> = self.decoded().map(|id| self.samples[id].clone()).collect();
        let count = samples.len();
        let maker = self.maker(Arc::new(samples), Partners::WholeSet, Arc::new((0..count).collect()), 0)?;
        let pixels = self.options.imgsz * self.options.imgsz * 3;
        let one = |(scratch, out): &mut (Scratch, Vec<u8>), position: usize| {
            out.resize(pixels, 0);
            render(&maker.draw(position), &|id| Ok(Arc::clone(&pictures[id])), scratch, out);
        };
        for threads in self.one_and_all() {
            let all = || (0..count).into_par_iter().for_each_init(|| (Scratch::default(), Vec::new()), one);
            let ((), seconds) = self.on_threads(threads, all)?;
            stages.push(StageTime::new("render", threads, count, (count * pixels) as u64, seconds));
        }
        Ok(())
    }

    /// Runs the loader with each number of threads, as training does on a set that is larger than its window of mosaic
    /// partners: each picture is read, decoded and resized about once an epoch.
    pub fn loader(&self, stages: &mut Vec<StageTime>, note: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        let (n, batch) = (self.samples.len(), self.options.batch);
        let mean = self.samples.iter().map(|s| ImagePool::picture_bytes(s, self.size)).sum::<u64>() / n as u64;
        let window = (n / 2).min(WINDOW).min((WINDOW_BYTES / mean.max(1)) as usize).max(1);
        let kept =
            CacheMode::Recent { bytes: (window + LoaderOptions::PREFETCH * batch).min(n.div_ceil(2)) as u64 * mean };
        let limits = ImageLimits::default();
        let pool = Arc::new(ImagePool::new(Arc::clone(&self.samples), self.size, Purpose::Train, kept, limits));
        let order = Arc::new(epoch_order(self.options.seed, 0, n));
        // The partners of the first picture are the last of the order.
        let last = &order[n - window..];
        self.on_threads(self.cores, || last.par_iter().for_each(|&id| drop(pool.get(id))))?;
        let mut next = 0;
        for &threads in &self.options.workers {
            note(&format!("loading on {threads}"));
            // Each run goes on where the one before has ended, so that its pictures are not there yet.
            let makers = (next / n..).map(|epoch| {
                let (samples, order) = (Arc::clone(&self.samples), Arc::clone(&order));
                self.maker(samples, Partners::Window(window), order, epoch as u64).map(Arc::new)
            });
            // The options are those of the first epoch, so that there is an error at once or never.
            let positions = makers.map_while(Result::ok).flat_map(|maker| (0..n).map(move |at| (maker.clone(), at)));
            let mut tasks = positions.skip(next % n).map(|(maker, position)| Task::Draw { maker, position });
            let work = std::iter::from_fn(|| Some(tasks.by_ref().take(batch).collect()));
            let mut loader =
                Loader::new(Arc::clone(&pool), work, LoaderOptions { threads, prefetch: LoaderOptions::PREFETCH })?;
            // The first batches are made from a standing start.
            loader.next().transpose()?;
            let (start, mut images, mut bytes, mut batches) = (Instant::now(), 0, 0, 0);
            while batches < 2 || start.elapsed().as_secs_f64() < self.options.seconds {
                let Some(made) = loader.next().transpose()? else { break };
                batches += 1;
                images += made.shape[0];
                bytes += made.pixels.len() as u64;
            }
            let seconds = start.elapsed().as_secs_f64();
            stages.push(StageTime::new("loader", threads, images, bytes, seconds));
            drop(loader);
            next += (batches + 1 + LoaderOptions::PREFETCH) * batch;
        }
        Ok(())
    }

    fn maker(
        &self,
        samples: Arc<Vec<Sample>>,
        partners: Partners,
        order: Arc<Vec<usize>>,
        epoch: u64,
    ) -> Result<RecipeMaker, BenchError> {
        let config = AugmentConfig { partners, ..AugmentConfig::SCRATCH_HIGH };
        Ok(RecipeMaker::new(samples, config, self.size, self.options.seed, epoch, order)?)
    }

    fn one_and_all(&self) -> Vec<usize> {
        if self.cores == 1 { vec![1] } else { vec![1, self.cores] }
    }

    /// The result of work on a pool of so many threads, and its seconds.
    fn on_threads<T: Send>(&self, threads: usize, work: impl FnOnce() -> T + Send) -> Result<(T, f64), BenchError> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| BenchError::Threads { threads, reason: e.to_string() })?;
        Ok(pool.install(|| {
            let start = Instant::now();
            let result = work();
            (result, start.elapsed().as_secs_f64())
        }))
    }
}

/// Asks the system to drop a file from its cache. Pages that are not on the disk yet stay.
#[cfg(target_os = "linux")]
fn forget(path: &Path) -> Result<(), String> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|e| e.to_string())
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &Path) -> Result<(), String> {
    Err("only Linux can be asked to drop files from its cache".to_owned())
}
