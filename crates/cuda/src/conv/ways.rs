//! The ways in which the libraries can compute a request, and running one of them.

use super::direct::Direct;
use super::own::{OwnConv, OwnPass};
use super::scratch::{Kernels, Rows, Scratch};
use super::table::{Server, library, library_workspace, own};
use super::{Pass, Places, Request};
use crate::Format;
use crate::cublaslt::{self, CublasLt, Product};
use crate::cudnn::{self, Convolution, Cudnn, Plan, Wanted};
use crate::device::Gpu;
use crate::error::Result;
use std::sync::Arc;

/// Picks of cuDNN's older interface that are timed.
const PICKS: usize = 2;
/// Picks of its graph interface: its heuristics put the fastest second or third where channels are not multiples of 64.
const ENGINES: usize = 3;
/// Picks of cuBLASLt that are timed.
const PRODUCT_PICKS: usize = 4;

/// The libraries and kernels on one card.
pub(super) struct Libraries {
    pub gpu: Gpu,
    pub cudnn: Cudnn,
    pub lt: CublasLt,
    pub kernels: Kernels,
}

/// One way to compute a request.
pub(super) struct Way {
    /// What tuning files call it: the same for the same request, card and versions.
    pub name: String,
    /// Bytes of scratch that it uses, from the start of its place.
    pub scratch: u64,
    how: How,
}

enum How {
    Product { product: Arc<Product>, algorithm: cublaslt::Algorithm },
    Algorithm { conv: Arc<Convolution>, algorithm: cudnn::Algorithm, scratch: Scratch },
    Engine { plan: Plan, scratch: Scratch },
    Own(Box<dyn OwnPass>),
}

impl Way {
    pub fn own(kernel: &dyn OwnConv, gpu: &Gpu, request: &Request) -> Result<Self> {
        let (name, scratch) = (kernel.name().to_owned(), kernel.workspace(request));
        Ok(Self { name, scratch, how: How::Own(kernel.prepare(gpu, request)?) })
    }
}

/// Ways come in stages: our own kernel, two of the library, and the direct kernel that does everything. Each is for when
/// those before it did not do; tuning times all but the last.
pub(super) const STAGES: usize = 4;

/// True where a pass is computed in half precision by some ways and written in float32 by others.
pub(super) fn casts(request: &Request) -> bool {
    let library = library(request);
    request.pass == Pass::Forward && request.output != request.format && matches!(library, Server::Cudnn)
}

impl Libraries {
    pub fn new(gpu: &Gpu) -> Result<Self> {
        let (cudnn, lt) = (Cudnn::new(gpu.stream().clone())?, CublasLt::new(gpu.stream().clone())?);
        Ok(Self { gpu: gpu.clone(), cudnn, lt, kernels: Kernels::new(gpu)? })
    }

    /// The ways of a stage, the likely fastest first. A library that serves none has none.
    pub fn ways(&self, request: &Request, stage: usize) -> Vec<Way> {
        let own_way = |kernel: &dyn OwnConv| Way::own(kernel, &self.gpu, request).into_iter().collect();
        match (library(request), stage) {
            (_, 0) => own(request).map(own_way).unwrap_or_default(),
            (_, 3) => own_way(&Direct),
            (Server::CublasLt, 1) => self.products(request).unwrap_or_default(),
            // What writes float32 itself comes before what rounds to half precision on the way, and the interface that
            // names algorithms for groups which it then refuses to run comes last.
            (Server::Cudnn, 1 | 2) => {
                let engines_first = casts(request) || request.shape.groups > 1;
                if (stage == 1) == engines_first {
                    self.graph_engines(request)
                } else {
                    self.algorithms(request).unwrap_or_default()
                }
            }
            _ => Vec::new(),
        }
    }

    /// Engines on the tensors as they lie and, where one is a range, on packed copies: a range's sum is then computed
    /// into scratch and added.
    fn graph_engines(&self, request: &Request) -> Vec<Way> {
        let scratch = Scratch::of(request);
        if casts(request) || scratch.x.or(scratch.y).is_none() {
            return self.engines(request, true, ENGINES);
        }
        let mut ways = self.engines(request, false, ENGINES - 1);
        ways.extend(self.engines(request, true, 1));
        ways
    }

    fn products(&self, request: &Request) -> Result<Vec<Way>> {
        let formats = cublaslt::Formats { operands: request.format, result: request.result(), tf32: request.tf32 };
        let product = Arc::new(self.lt.product(&request.shape, request.pass, formats)?);
        let most = usize::try_from(library_workspace(request)).unwrap_or(0);
        let algorithms = self.lt.algorithms(&product, most, PRODUCT_PICKS)?;
        let way = |(i, algorithm): (usize, cublaslt::Algorithm)| Way {
            name: format!("cublaslt {i}"),
            scratch: algorithm.workspace as u64,
            how: How::Product { product: Arc::clone(&product), algorithm },
        };
        Ok(algorithms.into_iter().enumerate().map(way).collect())
    }

    /// cuDNN's older interface, on packed copies where a tensor is a range.
    fn algorithms(&self, request: &Request) -> Result<Vec<Way>> {
        let scratch = Scratch::of(request);
        let conv = Arc::new(self.cudnn.convolution(request.shape.without_pitch(), request.format, request.tf32)?);
        let most = usize::try_from(scratch.library_bytes).unwrap_or(0);
        let all = self.cudnn.algorithms(&conv, request.pass)?;
        let mut ways: Vec<Way> = Vec::new();
        for algorithm in cudnn::usable(all, most, "")? {
            let name = format!("cudnn {}", algorithm.id);
            // An algorithm is listed once for each kind of arithmetic; ours is set.
            if !ways.iter().any(|w| w.name == name) {
                let how = How::Algorithm { conv: Arc::clone(&conv), algorithm, scratch };
                ways.push(Way { name, scratch: scratch.library + algorithm.workspace as u64, how });
            }
        }
        ways.truncate(PICKS);
        Ok(ways)
    }

    /// cuDNN's graph interface, on the tensors as they lie or on packed copies.
    fn engines(&self, request: &Request, as_they_lie: bool, engines: usize) -> Vec<Way> {
        let mut scratch = Scratch::of(request);
        let (shape, output) = if as_they_lie {
            (scratch.x, scratch.y) = (None, None);
            (request.shape, request.result())
        } else {
            (request.shape.without_pitch(), request.format)
        };
        let format = request.format;
        let formats = if request.pass == Pass::Forward { [format, format, output] } else { [format; 3] };
        let adds = request.add && scratch.is_in_place(request.pass);
        let wanted = Wanted {
            exact: format == Format::F32 && !request.tf32,
            workspace: usize::try_from(scratch.library_bytes).unwrap_or(0),
            engines,
        };
        let Ok(plans) = self.cudnn.plans(&shape, request.pass, formats, adds, wanted) else { return Vec::new() };
        let way = |plan: Plan| {
            let packed = if as_they_lie { "" } else { " packed" };
            let name = format!("cudnn engine {}, pick {}{packed}", plan.engine, plan.pick);
            Way { name, scratch: scratch.library + plan.workspace as u64, how: How::Engine { plan, scratch } }
        };
        plans.into_iter().map(way).collect()
    }

    /// Computes a request in one of its ways.
    ///
    /// # Errors
    /// What the library or the driver says.
    ///
    /// # Safety
    /// As for [`super::Convolutions::run`]; `way` is one of `request`.
    pub unsafe fn run(&self, request: &Request, way: &Way, places: &Places) -> Result<()> {
        let at = [places.x, places.w, places.y];
        // SAFETY: the caller's promise; scratch offsets and the library's workspace lie in what was asked for.
        unsafe {
            match &way.how {
                How::Product { product, algorithm } => {
                    self.lt.run(product, algorithm, at, places.workspace, request.add)
                }
                How::Algorithm { conv, algorithm, scratch } => {
                    self.around(request, scratch, places, |at, workspace, add| {
                        self.cudnn.run(conv, request.pass, *algorithm, at, workspace, add)
                    })
                }
                How::Engine { plan, scratch } => self.around(request, scratch, places, |at, workspace, _| {
                    // Whether it adds is part of the engine.
                    self.cudnn.run_plan(plan, at, workspace)
                }),
                How::Own(pass) => pass.run(places),
            }
        }
    }

    /// Packs operands into scratch, calls the library, and brings the result to where it belongs.
    unsafe fn around(
        &self,
        request: &Request,
        scratch: &Scratch,
        places: &Places,
        call: impl FnOnce([u64; 3], u64, bool) -> Result<()>,
    ) -> Result<()> {
        let (s, pass, format) = (&request.shape, request.pass, request.format);
        let place = |part: Option<u64>, outside: u64| part.map_or(outside, |offset| places.workspace + offset);
        let [x, w, y] = [place(scratch.x, places.x), place(scratch.w, places.w), place(scratch.y, places.y)];
        let packed = |at, pitch| Rows { at, format, pitch };
        let (x_rows, y_rows) = (packed(x, s.inputs), packed(y, s.outputs));
        let x_range = Rows { at: places.x, format, pitch: s.input_pitch };
        let y_range = |format| Rows { at: places.y, format, pitch: s.output_pitch };
        let (x_pixels, y_pixels) = (s.in_pixels(), s.out_pixels());
        // SAFETY: the caller's promise, here and below.
        unsafe {
            if pass != Pass::Data && scratch.x.is_some() {
                self.kernels.copy(x_pixels, s.inputs, x_range, x_rows, false)?;
            }
            if pass != Pass::Forward && scratch.y.is_some() {
                self.kernels.copy(y_pixels, s.outputs, y_range(format), y_rows, false)?;
            }
            let in_place = scratch.is_in_place(pass);
            call([x, w, y], places.workspace + scratch.library, request.add && in_place)?;
            if in_place {
                return Ok(());
            }
            match pass {
                Pass::Forward => self.kernels.copy(y_pixels, s.outputs, y_rows, y_range(request.output), request.add),
                Pass::Data => self.kernels.copy(x_pixels, s.inputs, x_rows, x_range, request.add),
                Pass::Weight => {
                    let (from, to) =
                        (packed(w, s.weights()), Rows { at: places.w, format: Format::F32, pitch: s.weights() });
                    self.kernels.copy(1, s.weights(), from, to, request.add)
                }
            }
        }
    }
}

impl Scratch {
    /// True where the result is written where it belongs.
    fn is_in_place(&self, pass: Pass) -> bool {
        match pass {
            Pass::Forward => self.y.is_none(),
            Pass::Data => self.x.is_none(),
            Pass::Weight => self.w.is_none(),
        }
    }
}
