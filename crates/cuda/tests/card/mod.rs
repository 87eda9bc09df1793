//! A card as tests of whole plans name it.
#![allow(dead_code, reason = "each test file uses a part")]

use cuda::{CudaBackend, CudaExecutor, CudaOptions, Engine, Gpu};
use graph::{Backend, Precision, StateSpec};
use parity::Device;
use std::rc::Rc;

/// A card that computes in one way.
#[derive(Clone)]
pub struct Card {
    pub engine: Rc<Engine>,
    pub options: CudaOptions,
}

impl Card {
    /// The first card, with convolutions as they come, or `None` after saying why the test is skipped.
    pub fn open(precision: Precision, capture: bool) -> Option<Self> {
        match Gpu::open(0).and_then(|gpu| Engine::new(&gpu)) {
            Ok(engine) => Some(Self { engine, options: CudaOptions { precision, tf32: false, tune: false, capture } }),
            Err(missing) => {
                eprintln!("skipped: {missing}");
                None
            }
        }
    }
}

impl Device for Card {
    type Executor = CudaExecutor;

    fn backend(&self) -> Box<dyn Backend> {
        Box::new(CudaBackend::new(self.options))
    }

    fn precision(&self) -> Precision {
        self.options.precision
    }

    /// Sigmoids of the card are good to about six digits. One element of a tensor may hold more than its share of that;
    /// [`parity::tensors::every_tensor_agrees`] bounds the tensor.
    fn slack(&self) -> f64 {
        10.0
    }

    fn executor(&self, spec: StateSpec) -> CudaExecutor {
        CudaExecutor::new(&self.engine, spec, self.options).expect("an executor")
    }
}
