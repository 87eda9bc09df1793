//! Batches ahead of time: threads of the loader's own decode and render, batches come out in order.
//!
//! The content of a batch depends on its tasks and the files alone, never on the number of threads. In a
//! training sample a picture that cannot be loaded leaves grey 114 in its place and takes its boxes
//! along; a validation picture that cannot be loaded is left out of its batch. Each is named once (see
//! [`ImagePool::problems`]); when every picture of the set has failed the loader gives an error. Validation
//! batches without any picture left are passed over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::{DataError, Problem};
use crate::picture::Picture;
use crate::pool::ImagePool;
use crate::recipe::{FinishedBox, Recipe, RecipeMaker};
use crate::render::{Scratch, render};
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
    /// RGB, 8 bit, in that shape.
    pub pixels: Vec<u8>,
    /// Targets of image i are `targets[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<usize>,
    /// All boxes, image by image.
    pub targets: Vec<Target>,
    /// One for each picture.
    pub images: Vec<BatchImage>,
    /// Pictures that could not be loaded while this batch was made.
    pub failures: Vec<Problem>,
}

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
    pixels: Option<Vec<u8>>,
    boxes: Vec<FinishedBox>,
    image: BatchImage,
    failures: Vec<Problem>,
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
        let (jobs, queue) = channel::<Job>();
        let (sender, results) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for i in 0..options.threads.max(1) {
            let (pool, queue, sender) = (Arc::clone(&pool), Arc::clone(&queue), sender.clone());
            let thread = std::thread::Builder::new()
                .name(format!("data-{i}"))
                .spawn(move || work_off(&pool, &queue, &sender))
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

fn work_off(pool: &ImagePool, queue: &Mutex<Receiver<Job>>, sender: &Sender<(usize, Message)>) {
    let mut scratch = Scratch::default();
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { batch, slot, task }) = job else { return };
        let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| perform(pool, task, &mut scratch)));
        // Only a mistake of ours panics here; the batch must still come out, or its taker waits for ever.
        let done = attempt.ok();
        if done.is_none() {
            scratch = Scratch::default();
        }
        batch.slots.lock().unwrap_or_else(PoisonError::into_inner)[slot] = done;
        if batch.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let slots = std::mem::take(&mut *batch.slots.lock().unwrap_or_else(PoisonError::into_inner));
            let message = assemble(batch.number, slots, pool.all_failed());
            if sender.send((batch.number, message)).is_err() {
                return;
            }
        }
    }
}

fn perform(pool: &ImagePool, task: Task, scratch: &mut Scratch) -> Done {
    match task {
        Task::Draw { maker, position } => train(pool, maker.draw(position), scratch),
        Task::DrawRect { maker, position, frame_hw } => train(pool, maker.draw_rect(position, frame_hw), scratch),
        Task::Resized { task, frame_hw } => resized(perform(pool, *task, scratch), frame_hw),
        Task::Recipe(recipe) => train(pool, *recipe, scratch),
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
    let mut boxes = recipe.boxes;
    boxes.retain(|b| failed.iter().all(|(id, _)| *id != b.sample));
    let failures = failed.iter().map(|(id, e)| e.to_problem(&describe(pool, *id, None).path)).collect();
    Done { hw: [h, w], pixels: Some(pixels), boxes, image: describe(pool, recipe.sample, None), failures }
}

fn resized(done: Done, frame_hw: [u32; 2]) -> Done {
    let ([height, width], hw) = (done.hw.map(|v| v as u32), frame_hw.map(|v| v as usize));
    let pixels = done.pixels.map(|data| {
        let picture = Picture { width, height, data };
        if done.hw == hw {
            picture.data
        } else {
            resize(&picture, frame_hw[1], frame_hw[0], Interpolation::Bilinear).data
        }
    });
    Done { hw, pixels, ..done }
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
            Done { hw: [h, w], pixels: Some(pixels), boxes, image, failures: Vec::new() }
        }
        Err(e) => {
            let failures = vec![e.to_problem(&image.path)];
            Done { hw: [h, w], pixels: None, boxes: Vec::new(), image, failures }
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
        pixels: Vec::with_capacity(done.len() * h * w * 3),
        offsets: vec![0],
        targets: Vec::new(),
        images: Vec::with_capacity(done.len()),
        failures: Vec::new(),
    };
    for d in done {
        if d.hw != [h, w] {
            return Err(stopped("its samples have different sizes"));
        }
        batch.failures.extend(d.failures);
        let Some(pixels) = d.pixels else { continue };
        batch.pixels.extend_from_slice(&pixels);
        batch.targets.extend(d.boxes.iter().map(|b| Target { class: b.class, xywh: b.xywh }));
        batch.offsets.push(batch.targets.len());
        batch.images.push(d.image);
    }
    batch.shape[0] = batch.images.len();
    Ok(batch)
}
