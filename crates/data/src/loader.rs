//! Batches ahead of time: threads of the loader's own decode and render, batches come out in order.
//!
//! The content of a batch depends on its tasks and the files alone, never on the number of threads. In a
//! training sample a picture that cannot be loaded leaves grey 114 in its place and takes its boxes
//! along; a validation picture that cannot be loaded is left out of its batch. Each is named once (see
//! [`ImagePool::problems`]); when every picture of the set has failed the loader gives an error. Validation
//! batches without any picture left are passed over.
//!
//! Where something else renders (a card), the loader stops before that: batches hold recipes and decoded pictures.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::error::{DataError, Problem};
use crate::picture::Picture;
use crate::pool::ImagePool;
use crate::recipe::{FinishedBox, Recipe, RecipeMaker};
use crate::render::{LoadFailure, Scratch, entry, render};
use crate::resize::{Interpolation, resize};
use crate::validation::ValGeometry;

/// One sample of a batch to be made. All samples of a batch must have the same output size.
#[derive(Clone, Debug)]
pub enum Task {
    /// A training sample drawn by the loader's threads: `maker.draw(position)`.
    Draw { maker: Arc<RecipeMaker>, position: usize },
    /// The same for a frame of height x width.
    DrawRect { maker: Arc<RecipeMaker>, position: usize, frame_hw: [u32; 2] },
    /// A sample whose finished picture is resized bilinearly to height x width (see [`crate::multi_scale`]). Boxes are
    /// fractions and stay.
    Resized { task: Box<Task>, frame_hw: [u32; 2] },
    /// A recipe that is already drawn.
    Recipe(Box<Recipe>),
    /// A validation sample in a frame of height x width.
    Validate { sample: usize, frame_hw: [u32; 2] },
}

/// One box of a batch, as fractions of the network's picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Class id.
    pub class: u32,
    /// Centre x, centre y, width, height.
    pub xywh: [f32; 4],
}

/// Where a picture of a batch comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchImage {
    /// Sample id.
    pub sample: usize,
    /// The file.
    pub path: PathBuf,
    /// Height and width of the upright original in pixels.
    pub original_hw: [u32; 2],
    /// How the original was scaled and padded; only for validation.
    pub geometry: Option<ValGeometry>,
}

/// Pixels and targets of some samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Number in the order of the tasks, from 0.
    pub number: usize,
    /// (images, height, width, 3).
    pub shape: [usize; 4],
    /// RGB, 8 bit, in that shape. Empty where `unrendered` takes its place.
    pub pixels: Vec<u8>,
    /// What a batch of [`Loader::unrendered`] is rendered from.
    pub unrendered: Option<Unrendered>,
    /// Targets of image i are `targets[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
    /// All boxes, image by image.
    pub targets: Vec<Target>,
    /// One for each picture.
    pub images: Vec<BatchImage>,
    /// Pictures that could not be loaded while this batch was made.
    pub failures: Vec<Problem>,
}

/// A batch that is not rendered yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unrendered {
    /// One for each picture of the batch, all of one size. Where the batch has another shape the finished pictures are
    /// resized bilinearly.
    pub recipes: Vec<Recipe>,
    /// The pictures that recipes show, by sample, but for those that are kept elsewhere and those that could not be
    /// loaded. They have the size that the recipes were drawn for.
    pub pictures: BTreeMap<usize, Arc<Picture>>,
}

/// Says whether the picture of a sample is kept elsewhere until a batch, by its number, has been rendered.
pub type Kept = dyn Fn(usize, usize) -> bool + Send + Sync;

/// Threads and depth of a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// Threads that decode and render; at least one is used.
    pub threads: usize,
    /// Batches in the making or waiting at any time; at least one.
    pub prefetch: usize,
}

impl LoaderOptions {
    /// Depth that training and validation use.
    pub const PREFETCH: usize = 3;
}

struct Done {
    hw: [usize; 2],
    content: Option<Content>,
    boxes: Vec<FinishedBox>,
    image: BatchImage,
    failures: Vec<Problem>,
}

enum Content {
    Pixels(Vec<u8>),
    Recipe(Box<Recipe>, BTreeMap<usize, Arc<Picture>>),
}

struct Pending {
    number: usize,
    slots: Mutex<Vec<Option<Done>>>,
    left: AtomicUsize,
}

struct Job {
    batch: Arc<Pending>,
    slot: usize,
    task: Task,
}

type Message = Result<Batch, DataError>;

/// An iterator of batches in the order of their tasks.
pub struct Loader<I: Iterator<Item = Vec<Task>>> {
    work: I,
    jobs: Option<Sender<Job>>,
    results: Receiver<(usize, Message)>,
    early: BTreeMap<usize, Message>,
    next_out: usize,
    next_in: usize,
    prefetch: usize,
    exhausted: bool,
    threads: Vec<JoinHandle<()>>,
}

impl<I: Iterator<Item = Vec<Task>>> Loader<I> {
    /// Starts the threads. Each item of `work` becomes one batch; empty items are passed over.
    pub fn new(pool: Arc<ImagePool>, work: I, options: LoaderOptions) -> Result<Self, DataError> {
        Self::start(pool, work, options, None)
    }

    /// The same, but training samples are not rendered: their batches hold recipes and what `kept` does not have of
    /// their pictures.
    pub fn unrendered(
        pool: Arc<ImagePool>,
        work: I,
        options: LoaderOptions,
        kept: Arc<Kept>,
    ) -> Result<Self, DataError> {
        Self::start(pool, work, options, Some(kept))
    }

    fn start(
        pool: Arc<ImagePool>,
        work: I,
        options: LoaderOptions,
        kept: Option<Arc<Kept>>,
    ) -> Result<Self, DataError> {
        let (jobs, queue) = channel::<Job>();
        let (sender, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for i in 0..options.threads.max(1) {
            let (pool, queue, sender, kept) = (Arc::clone(&pool), Arc::clone(&queue), sender.clone(), kept.clone());
            let thread = std::thread::Builder::new()
                .name(format!("data-{i}"))
                .spawn(move || work_off(&pool, kept.as_deref(), &queue, &sender))
                .map_err(|e| DataError::LoaderStopped { reason: format!("no thread could be started: {e}") })?;
            threads.push(thread);
        }
        let mut loader = Self {
            work,
            jobs: Some(jobs),
            results,
            early: BTreeMap::new(),
            next_out: 0,
            next_in: 0,
            prefetch: options.prefetch.max(1),
            exhausted: false,
            threads,
        };
        loader.top_up();
        Ok(loader)
    }

    /// Batches that are finished and wait to be taken.
    pub fn ready(&mut self) -> usize {
        while let Ok((number, message)) = self.results.try_recv() {
            self.early.insert(number, message);
        }
        self.early.len()
    }

    /// Waits for the next batch, at most so long. `false` where it is not there yet; otherwise `next` gives at once what
    /// there is: a batch, an error, or the end.
    pub fn wait(&mut self, at_most: Duration) -> bool {
        self.top_up();
        let start = Instant::now();
        while self.next_out != self.next_in && !self.early.contains_key(&self.next_out) {
            match self.results.recv_timeout(at_most.saturating_sub(start.elapsed())) {
                Ok((number, message)) => {
                    self.early.insert(number, message);
                }
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        true
    }

    fn top_up(&mut self) {
        while !self.exhausted && self.next_in - self.next_out < self.prefetch {
            let Some(tasks) = self.work.next() else {
                self.exhausted = true;
                return;
            };
            if tasks.is_empty() {
                continue;
            }
            let slots = Mutex::new((0..tasks.len()).map(|_| None).collect());
            let batch = Arc::new(Pending { number: self.next_in, slots, left: AtomicUsize::new(tasks.len()) });
            self.next_in += 1;
            for (slot, task) in tasks.into_iter().enumerate() {
                let job = Job { batch: Arc::clone(&batch), slot, task };
                if self.jobs.as_ref().is_none_or(|jobs| jobs.send(job).is_err()) {
                    self.exhausted = true;
                    return;
                }
            }
        }
    }
}

impl<I: Iterator<Item = Vec<Task>>> Iterator for Loader<I> {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.top_up();
        if self.next_out == self.next_in {
            return None;
        }
        loop {
            if let Some(message) = self.early.remove(&self.next_out) {
                self.next_out += 1;
                self.top_up();
                match message {
                    // Every picture of a validation batch failed: there is nothing to hand out.
                    Ok(batch) if batch.images.is_empty() && self.next_out < self.next_in => continue,
                    Ok(batch) if batch.images.is_empty() => return None,
                    message => return Some(message),
                }
            }
            match self.results.recv() {
                Ok((number, message)) => {
                    self.early.insert(number, message);
                }
                Err(_) => {
                    (self.exhausted, self.next_out) = (true, self.next_in);
                    return Some(Err(DataError::LoaderStopped { reason: "its threads ended".into() }));
                }
            }
        }
    }
}

impl<I: Iterator<Item = Vec<Task>>> Drop for Loader<I> {
    fn drop(&mut self) {
        // Closing the queue ends the threads once they have drained it, so it is emptied by them quickly:
        // results nobody takes are cheap to drop, and at most `prefetch` batches are outstanding.
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work_off(pool: &ImagePool, kept: Option<&Kept>, queue: &Mutex<Receiver<Job>>, sender: &Sender<(usize, Message)>) {
    let mut scratch = Scratch::default();
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let number = job.batch.number;
        if let Some(message) = pool.clocks().work(|| work(pool, job, kept, &mut scratch))
            && sender.send((number, message)).is_err()
        {
            return;
        }
    }
}

/// Makes a sample, and of the last one its batch.
fn work(pool: &ImagePool, job: Job, kept: Option<&Kept>, scratch: &mut Scratch) -> Option<Message> {
    let Job { batch, slot, task } = job;
    let kept = kept.map(|kept| |sample: usize| kept(sample, batch.number));
    let kept = kept.as_ref().map(|kept| kept as &dyn Fn(usize) -> bool);
    let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| perform(pool, task, kept, scratch)));
    // Only a mistake of ours panics here; the batch must still come out, or its taker waits for ever.
    let done = attempt.ok();
    if done.is_none() {
        *scratch = Scratch::default();
    }
    batch.slots.lock().unwrap_or_else(PoisonError::into_inner)[slot] = done;
    if batch.left.fetch_sub(1, Ordering::AcqRel) != 1 {
        return None;
    }
    let slots = std::mem::take(&mut *batch.slots.lock().unwrap_or_else(PoisonError::into_inner));
    Some(assemble(batch.number, slots, pool.all_failed()))
}

fn perform(pool: &ImagePool, task: Task, kept: Option<&dyn Fn(usize) -> bool>, scratch: &mut Scratch) -> Done {
    let mut train = |recipe| match kept {
        None => train(pool, recipe, scratch),
        Some(kept) => collect(pool, recipe, kept),
    };
    match task {
        Task::Draw { maker, position } => train(maker.draw(position)),
        Task::DrawRect { maker, position, frame_hw } => train(maker.draw_rect(position, frame_hw)),
        Task::Resized { task, frame_hw } => resized(perform(pool, *task, kept, scratch), frame_hw),
        Task::Recipe(recipe) => train(*recipe),
        Task::Validate { sample, frame_hw } => validate(pool, sample, frame_hw),
    }
}

fn describe(pool: &ImagePool, sample: usize, geometry: Option<ValGeometry>) -> BatchImage {
    let (path, original_hw) =
        pool.samples().get(sample).map(|s| (s.path.clone(), [s.height, s.width])).unwrap_or_default();
    BatchImage { sample, path, original_hw, geometry }
}

fn train(pool: &ImagePool, recipe: Recipe, scratch: &mut Scratch) -> Done {
    let [w, h] = recipe.out_wh.map(|v| v as usize);
    let mut pixels = vec![0; w * h * 3];
    let failed = render(&recipe, &|id| pool.get(id), scratch, &mut pixels);
    let (boxes, failures) = without(pool, &recipe, &failed);
    let image = describe(pool, recipe.sample, None);
    Done { hw: [h, w], content: Some(Content::Pixels(pixels)), boxes, image, failures }
}

/// A training sample with its pictures, up to where it would be rendered.
fn collect(pool: &ImagePool, recipe: Recipe, kept: &dyn Fn(usize) -> bool) -> Done {
    let (mut pictures, mut failed) = (BTreeMap::new(), Vec::new());
    for placement in recipe.shown().filter(|p| !kept(p.sample)) {
        match entry(placement, &|id| pool.get(id)) {
            Ok(picture) => drop(pictures.insert(placement.sample, picture)),
            Err(e) => failed.push((placement.sample, e)),
        }
    }
    let [w, h] = recipe.out_wh.map(|v| v as usize);
    let (boxes, failures) = without(pool, &recipe, &failed);
    let image = describe(pool, recipe.sample, None);
    Done { hw: [h, w], content: Some(Content::Recipe(Box::new(recipe), pictures)), boxes, image, failures }
}

/// A recipe's boxes without those of pictures that could not be loaded, and why they could not.
fn without(pool: &ImagePool, recipe: &Recipe, failed: &[LoadFailure]) -> (Vec<FinishedBox>, Vec<Problem>) {
    let boxes = recipe.boxes.iter().filter(|b| failed.iter().all(|(id, _)| *id != b.sample)).copied().collect();
    let failures = failed.iter().map(|(id, e)| e.to_problem(&describe(pool, *id, None).path)).collect();
    (boxes, failures)
}

fn resized(done: Done, frame_hw: [u32; 2]) -> Done {
    let ([height, width], hw) = (done.hw.map(|v| v as u32), frame_hw.map(|v| v as usize));
    let content = match done.content {
        Some(Content::Pixels(data)) if done.hw != hw => {
            let picture = Picture { width, height, data };
            Some(Content::Pixels(resize(&picture, frame_hw[1], frame_hw[0], Interpolation::Bilinear).data))
        }
        other => other,
    };
    Done { hw, content, ..done }
}

fn validate(pool: &ImagePool, id: usize, frame_hw: [u32; 2]) -> Done {
    let image = describe(pool, id, None);
    let geometry = ValGeometry::new(image.original_hw[1], image.original_hw[0], pool.size(), frame_hw);
    let [w, h] = geometry.fit.out_wh.map(|v| v as usize);
    let image = BatchImage { geometry: Some(geometry), ..image };
    match pool.get(id) {
        Ok(entry) => {
            let mut pixels = vec![0; w * h * 3];
            geometry.draw(&entry, &mut pixels);
            let boxes = pool.samples().get(id).map(|s| geometry.boxes(s, id)).unwrap_or_default();
            Done { hw: [h, w], content: Some(Content::Pixels(pixels)), boxes, image, failures: Vec::new() }
        }
        Err(e) => {
            let failures = vec![e.to_problem(&image.path)];
            Done { hw: [h, w], content: None, boxes: Vec::new(), image, failures }
        }
    }
}

fn assemble(number: usize, slots: Vec<Option<Done>>, all_failed: bool) -> Message {
    let stopped = |reason: &str| DataError::LoaderStopped { reason: format!("batch {number}: {reason}") };
    let mut done = Vec::with_capacity(slots.len());
    for slot in slots {
        done.push(slot.ok_or_else(|| stopped("a sample could not be rendered"))?);
    }
    if all_failed && let Some(last) = done.iter().rev().find_map(|d| d.failures.last()) {
        return Err(DataError::AllLoadsFailed { last: last.clone() });
    }
    let [h, w] = done.first().map_or([0, 0], |d| d.hw);
    let mut batch = Batch {
        number,
        shape: [0, h, w, 3],
        pixels: Vec::new(),
        unrendered: None,
        offsets: vec![0],
        targets: Vec::new(),
        images: Vec::with_capacity(done.len()),
        failures: Vec::new(),
    };
    let count = done.len();
    for d in done {
        if d.hw != [h, w] {
            return Err(stopped("its samples have different sizes"));
        }
        batch.failures.extend(d.failures);
        match d.content {
            None => continue,
            Some(Content::Pixels(pixels)) => {
                if batch.pixels.is_empty() {
                    batch.pixels.reserve_exact(count * h * w * 3);
                }
                batch.pixels.extend_from_slice(&pixels);
            }
            Some(Content::Recipe(recipe, pictures)) => {
                let all = batch.unrendered.get_or_insert_default();
                all.recipes.push(*recipe);
                all.pictures.extend(pictures);
            }
        }
        batch.targets.extend(d.boxes.iter().map(|b| Target { class: b.class, xywh: b.xywh }));
        batch.offsets.push(batch.targets.len());
        batch.images.push(d.image);
    }
    batch.shape[0] = batch.images.len();
    let recipes = batch.unrendered.as_ref().map(|all| &all.recipes[..]).unwrap_or_default();
    if !recipes.is_empty()
        && (recipes.len() < batch.images.len() || recipes.iter().any(|r| r.out_wh != recipes[0].out_wh))
    {
        return Err(stopped("its samples are rendered in different ways"));
    }
    Ok(batch)
}

impl Unrendered {
    /// Renders the batch here after all: what [`Loader::new`] would have given as pixels of `hw`, height and width.
    /// Pictures that were kept elsewhere come from the pool.
    pub fn render(&self, pool: &ImagePool, hw: [usize; 2]) -> Vec<u8> {
        let bytes = hw[0] * hw[1] * 3;
        let mut pixels = vec![0; bytes * self.recipes.len()];
        let each = pixels.par_chunks_mut(bytes.max(1)).zip(&self.recipes);
        each.for_each_init(Scratch::default, |scratch, (out, recipe)| {
            let fetch = |id: usize| self.pictures.get(&id).map_or_else(|| pool.get(id), |p| Ok(Arc::clone(p)));
            let [width, height] = recipe.out_wh;
            if [height, width].map(|v| v as usize) == hw {
                render(recipe, &fetch, scratch, out);
                return;
            }
            let mut picture = Picture::filled(width, height, 0);
            render(recipe, &fetch, scratch, &mut picture.data);
            let [height, width] = hw.map(|v| v as u32);
            out.copy_from_slice(&resize(&picture, width, height, Interpolation::Bilinear).data);
        });
        pixels
    }
}
