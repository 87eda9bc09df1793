//! Convolutions on the card: who computes a pass, and how.
//!
//! A [`Request`] is one pass over one shape, as a plan asks for it. [`serve`] says who serves it, by extents alone;
//! [`workspace`] how much scratch that takes. On a card, [`Convolutions`] prepares requests and runs them: of the ways
//! that our own kernels and the library offer, the one that was the fastest when it was tuned, and else the first.

mod direct;
mod own;
mod scratch;
mod shape;
mod table;
mod tuning;
mod ways;

pub use own::{OwnConv, OwnPass};
pub use scratch::workspace;
pub use shape::{Pass, Request, Shape};
pub use table::{Server, padded, reads_bytes, serve};
pub use tuning::time;

use crate::cublaslt::CublasLt;
use crate::cudnn::Cudnn;
use crate::device::Gpu;
use crate::error::{CudaError, Result};
use crate::kernels::compiler::{Source, cache_folder};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use tuning::{Trial, Tuning};
use ways::{Libraries, STAGES, Way, casts};

/// Kernels of this module.
pub(crate) const SOURCES: [Source; 2] = [scratch::SOURCE, direct::SOURCE];

/// Device addresses of a pass's tensors, each aligned to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The input, or its gradient where the data pass writes it.
    pub x: u64,
    /// Weights in the request's format; for the weight pass, their float32 gradient.
    pub w: u64,
    /// The output, or its gradient.
    pub y: u64,
    /// [`workspace`] bytes, aligned to 256.
    pub workspace: u64,
}

/// A prepared request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvId(usize);

/// The convolutions of one card.
pub struct Convolutions {
    libraries: Libraries,
    /// Card and versions: choices hold for these only.
    home: String,
    prepared: Vec<(Request, Way)>,
    known: HashMap<Request, ConvId>,
    /// Choices that came with a run, before those of the file.
    given: BTreeMap<String, String>,
    tuning: Tuning,
}

/// Where choices are kept by default: `tuning.json` in the user's cache folder.
pub fn tuning_file() -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join("tuning.json"))
}

impl Convolutions {
    /// Loads the libraries. Choices are read from and kept in the file `tuning`, if any: see [`tuning_file`].
    ///
    /// # Errors
    /// A missing library, or what one says.
    pub fn new(gpu: &Gpu, tuning: Option<PathBuf>) -> Result<Self> {
        let libraries = Libraries::new(gpu)?;
        let (card, cudnn, lt) = (&gpu.properties().name, Cudnn::version()?, CublasLt::version()?);
        Ok(Self {
            libraries,
            home: format!("{card}, cuDNN {cudnn}, cuBLASLt {lt}"),
            prepared: Vec::new(),
            known: HashMap::new(),
            given: BTreeMap::new(),
            tuning: Tuning::open(tuning),
        })
    }

    /// Takes the choices that [`Self::choices`] gave, so that a continued run computes the same bits. They come before
    /// those of the file; what was chosen on another card or by other versions is left aside.
    pub fn prefer(&mut self, choices: BTreeMap<String, String>) {
        self.given.extend(choices);
    }

    /// What every prepared request uses, by card, versions and request.
    pub fn choices(&self) -> BTreeMap<String, String> {
        self.prepared.iter().map(|(request, way)| (self.key(request), way.name.clone())).collect()
    }

    /// What a prepared request uses.
    pub fn choice(&self, id: ConvId) -> Option<&str> {
        self.prepared.get(id.0).map(|p| p.1.name.as_str())
    }

    /// Bytes of scratch that a prepared request uses, from the start of its place; at most [`workspace`].
    pub fn scratch(&self, request: &Request) -> Option<u64> {
        self.known.get(&request.plain()).map(|id| self.prepared[id.0].1.scratch)
    }

    /// True where a way ran, or where there is no memory to try it in. Libraries name ways that then refuse to run.
    fn runs(&self, trial: Option<&Trial>, request: &Request, way: &Way) -> bool {
        trial.is_none_or(|trial| trial.run(&self.libraries, request, way).is_ok())
    }

    /// Prepares a request in every way that serves it: our own kernel, the library's ways, and the direct one that does
    /// everything. Each ran once, where there is memory to try it. For tests and benches; [`Self::choice`] names a way.
    ///
    /// # Errors
    /// As [`Self::prepare`].
    pub fn prepare_each(&mut self, request: Request) -> Result<Vec<ConvId>> {
        request.check()?;
        self.libraries.gpu.context().bind_to_thread()?;
        let trial = Trial::new(&self.libraries, &request).ok();
        let ways = (0..STAGES).flat_map(|stage| self.libraries.ways(&request, stage));
        let ways: Vec<Way> = ways.filter(|way| self.runs(trial.as_ref(), &request, way)).collect();
        let first = self.prepared.len();
        self.prepared.extend(ways.into_iter().map(|way| (request, way)));
        Ok((first..self.prepared.len()).map(ConvId).collect())
    }

    /// The name by which a choice for a request is kept.
    pub fn key(&self, request: &Request) -> String {
        format!("{}: {request}", self.home)
    }

    /// Chooses a way to compute a request, once for each request. With `tune`, the first few ways are timed and the
    /// choice is kept; else it is the kept choice, or the first way. Each is run once before it is taken. Takes memory for
    /// the request's tensors on the way and gives it back: where there is not enough, nothing is tried.
    ///
    /// # Errors
    /// Extents that no convolution has; no way to compute it; what the driver says.
    pub fn prepare(&mut self, request: Request, tune: bool) -> Result<ConvId> {
        request.check()?;
        let request = request.plain();
        if let Some(&id) = self.known.get(&request) {
            return Ok(id);
        }
        self.libraries.gpu.context().bind_to_thread()?;
        let way = self.choose(&request, tune)?;
        let id = ConvId(self.prepared.len());
        self.prepared.push((request, way));
        self.known.insert(request, id);
        Ok(id)
    }

    fn choose(&mut self, request: &Request, tune: bool) -> Result<Way> {
        let key = self.key(request);
        let trial = Trial::new(&self.libraries, request).ok();
        let kept = self.given.get(&key).map(String::as_str).or_else(|| self.tuning.get(&key));
        if let Some(name) = kept {
            let same = |way: &Way| way.name == name && self.runs(trial.as_ref(), request, way);
            if let Ok(way) = self.first(request, same) {
                return Ok(way);
            }
        }
        if tune
            && let Some(trial) = &trial
            && let Some(way) = self.fastest(request, trial)
        {
            self.tuning.insert(key, way.name.clone());
            return Ok(way);
        }
        self.first(request, |way| self.runs(trial.as_ref(), request, way))
    }

    /// The first way that will do.
    fn first(&self, request: &Request, mut will_do: impl FnMut(&Way) -> bool) -> Result<Way> {
        let mut ways = (0..STAGES).flat_map(|stage| self.libraries.ways(request, stage));
        let none = || CudaError::NoAlgorithm { library: "the installed libraries", what: request.to_string() };
        ways.find(|way| will_do(way)).ok_or_else(none)
    }

    /// The fastest way. The last stage, which does everything, is not timed.
    fn fastest(&self, request: &Request, trial: &Trial) -> Option<Way> {
        let mut best: Option<(f64, Way)> = None;
        for stage in 0..STAGES - 1 {
            for way in self.libraries.ways(request, stage) {
                let Ok(ms) = trial.time(&self.libraries, request, &way) else { continue };
                if best.as_ref().is_none_or(|b| ms < b.0) {
                    best = Some((ms, way));
                }
            }
            // Speed does not outweigh digits.
            if casts(request) && best.is_some() {
                break;
            }
        }
        best.map(|b| b.1)
    }

    /// Computes a prepared request on the card's stream. The calling thread has the card's context, as after
    /// [`Self::prepare`]. May be captured in a CUDA graph.
    ///
    /// Only the channels that the shape counts are written; channels of padding beyond those of a grouped convolution
    /// are the caller's.
    ///
    /// # Errors
    /// What the library or the driver says.
    ///
    /// # Safety
    /// The places are device memory of the request's extents and formats, and overlap in no byte that is written.
    pub unsafe fn run(&self, id: ConvId, places: Places) -> Result<()> {
        let Some((request, way)) = self.prepared.get(id.0) else {
            return Err(CudaError::NoAlgorithm {
                library: "another card",
                what: "a request prepared elsewhere".into(),
            });
        };
        // SAFETY: the caller's promise; the way was made for the request.
        unsafe { self.libraries.run(request, way, &places) }
    }
}
