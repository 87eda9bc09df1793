//! Timing, and the file that keeps what it found.

use super::ways::{Libraries, Way};
use super::{Pass, Places, Request, workspace};
use crate::Format;
use crate::device::{Buffer, Gpu};
use crate::error::Result;
use cudarc::driver::sys;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Format of the file; others are not read.
const VERSION: u64 = 1;

/// Choices by request, on disk where there is a place for them. A file that cannot be read counts as empty, and one that
/// cannot be written is left: it is only speed.
#[derive(Debug, Default)]
pub(super) struct Tuning {
    path: Option<PathBuf>,
    choices: BTreeMap<String, String>,
}

impl Tuning {
    pub fn open(path: Option<PathBuf>) -> Self {
        let choices = path.as_deref().map(read).unwrap_or_default();
        Self { path, choices }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.choices.get(key).map(String::as_str)
    }

    /// Keeps a choice, beside those that other processes have written since.
    pub fn insert(&mut self, key: String, choice: String) {
        self.choices.insert(key, choice);
        let Some(path) = &self.path else { return };
        for (key, choice) in read(path) {
            self.choices.entry(key).or_insert(choice);
        }
        let choices: Map<String, Value> = self.choices.iter().map(|(k, c)| (k.clone(), json!(c))).collect();
        let text = format!("{:#}\n", json!({ "version": VERSION, "choices": choices }));
        if let Some(folder) = path.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        let _ = files::write_bytes_atomic(path, text.as_bytes());
    }
}

fn read(path: &Path) -> BTreeMap<String, String> {
    let parsed = std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let Some(file) = parsed.filter(|f| f["version"] == VERSION) else { return BTreeMap::new() };
    let pairs = file["choices"].as_object().into_iter().flatten();
    pairs.filter_map(|(key, choice)| Some((key.clone(), choice.as_str()?.to_owned()))).collect()
}

/// Memory to try a request in: random operands, a result and scratch.
pub(super) struct Trial {
    places: Places,
    _memory: [Buffer; 4],
}

impl Trial {
    /// # Errors
    /// No memory for it, or what the driver says.
    pub fn new(libraries: &Libraries, request: &Request) -> Result<Self> {
        let s = &request.shape;
        let of = |pass| if request.pass == pass { request.result() } else { request.format };
        let elements = s.in_pixels() * s.input_pitch;
        // Any bytes are a picture.
        let x = if request.bytes { elements.div_ceil(request.format.bytes()) } else { elements };
        let tensors = [
            (x, of(Pass::Data)),
            (s.weights(), of(Pass::Weight)),
            (s.out_pixels() * s.output_pitch, of(Pass::Forward)),
        ];
        let space = usize::try_from(workspace(request)).unwrap_or(usize::MAX);
        let allocate = |(elements, format): (usize, Format)| libraries.gpu.allocate(elements * format.bytes());
        let memory =
            [allocate(tensors[0])?, allocate(tensors[1])?, allocate(tensors[2])?, libraries.gpu.allocate(space)?];
        let [x, w, y, workspace] = [&memory[0], &memory[1], &memory[2], &memory[3]].map(Buffer::address);
        for (seed, (at, (elements, format))) in (1..).zip([x, w, y].into_iter().zip(tensors)) {
            // SAFETY: memory of so many elements.
            unsafe { libraries.kernels.fill(at, format, elements, seed) }?;
        }
        Ok(Self { places: Places { x, w, y, workspace }, _memory: memory })
    }

    /// Runs a way once and waits for it.
    ///
    /// # Errors
    /// What the library or the driver says.
    pub fn run(&self, libraries: &Libraries, request: &Request, way: &Way) -> Result<()> {
        // SAFETY: memory of the request's extents and scratch.
        let outcome = unsafe { libraries.run(request, way, &self.places) };
        // Also what was launched before a failure must be over before the memory goes back.
        libraries.gpu.synchronize()?;
        outcome
    }

    /// Milliseconds of a way.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn time(&self, libraries: &Libraries, request: &Request, way: &Way) -> Result<f64> {
        const REPLAYS: usize = 5;
        // SAFETY: as above.
        let mut call = || unsafe { libraries.run(request, way, &self.places) };
        // A first look, so that slow ways cost few calls.
        let once = time(&libraries.gpu, 1, 1, &mut call)?;
        let calls = ((2.0 / once.max(1e-3)) as usize).clamp(1, 10);
        time(&libraries.gpu, calls, REPLAYS, &mut call)
    }
}

/// Median milliseconds of a call, over `replays` replays of a graph of `calls` calls: without what launching costs the
/// host. Libraries load their kernels in a call before that.
///
/// # Errors
/// What the call or the driver says.
pub fn time(gpu: &Gpu, calls: usize, replays: usize, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    let stream = gpu.stream();
    call()?;
    stream.synchronize()?;
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
    let outcome = (0..calls).try_for_each(|_| call());
    let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags);
    outcome?;
    let Some(graph) = graph? else { return Ok(0.0) };
    let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let (start, end) = (gpu.context().new_event(timed)?, gpu.context().new_event(timed)?);
    let mut times = Vec::with_capacity(replays);
    graph.launch()?;
    for _ in 0..replays {
        start.record(stream)?;
        graph.launch()?;
        end.record(stream)?;
        end.synchronize()?;
        times.push(f64::from(start.elapsed_ms(&end)?) / calls.max(1) as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_and_are_shared() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cache/tuning.json");
        let (mut one, mut two) = (Tuning::open(Some(path.clone())), Tuning::open(Some(path.clone())));
        one.insert("a".into(), "cudnn 1".into());
        two.insert("b".into(), "cublaslt 0".into());
        let read = Tuning::open(Some(path));
        assert_eq!((read.get("a"), read.get("b"), read.get("c")), (Some("cudnn 1"), Some("cublaslt 0"), None));
    }

    #[test]
    fn damaged_and_foreign_files_count_as_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tuning.json");
        for text in
            ["", "{\"version\": 1, \"choices\": {\"a\": \"b\"", "[1]", "{\"version\": 2, \"choices\": {\"a\": \"b\"}}"]
        {
            std::fs::write(&path, text).expect("a file");
            let mut tuning = Tuning::open(Some(path.clone()));
            assert_eq!(tuning.get("a"), None, "{text}");
            tuning.insert("c".into(), "d".into());
            assert_eq!(Tuning::open(Some(path.clone())).get("c"), Some("d"), "{text}");
        }
    }

    #[test]
    fn without_a_file_choices_last_as_long_as_the_process() {
        let mut tuning = Tuning::open(None);
        tuning.insert("a".into(), "b".into());
        assert_eq!(tuning.get("a"), Some("b"));
    }
}
