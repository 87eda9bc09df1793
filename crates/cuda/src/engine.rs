//! Kernels and libraries on one card: what executors of one process share.

use crate::arena::Arena;
use crate::conv::{Convolutions, tuning_file};
use crate::device::Gpu;
use crate::error::Result;
use crate::kernels::loss::Loss;
use crate::kernels::{
    Activate, Add, AveragePool, Bias, BnApply, BnBackward, BnReduce, BnStats, Commit, Copy, Decode, Fill, MaxPool, Nms,
    Normalize, Resize, RunningStats,
};
use crate::schedule::STREAMS;
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Everything that is loaded on a card to compute. Cheap to share, slow to make: the first one on a machine compiles
/// all kernels.
pub struct Engine {
    gpu: Gpu,
    kernels: Kernels,
    convolutions: RefCell<Convolutions>,
    arena: RefCell<Arena>,
    streams: Cell<usize>,
}

impl Engine {
    /// Loads kernels and libraries.
    ///
    /// # Errors
    /// A missing library, a kernel that does not compile, or what the driver says.
    pub fn new(gpu: &Gpu) -> Result<Rc<Self>> {
        let convolutions = RefCell::new(Convolutions::new(gpu, tuning_file())?);
        let arena = RefCell::new(Arena::new(gpu.clone()));
        let (kernels, streams) = (Kernels::load(gpu)?, Cell::new(STREAMS));
        Ok(Rc::new(Self { gpu: gpu.clone(), kernels, convolutions, arena, streams }))
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The one block of memory that all executors of this engine compute in, one run after the other.
    pub(crate) fn arena(&self) -> Ref<'_, Arena> {
        self.arena.borrow()
    }

    /// Makes the arena at least as large; what was in it is lost where it had to grow.
    ///
    /// # Errors
    /// No memory on the card; the arena is empty then.
    pub(crate) fn grow_arena(&self, bytes: u64) -> Result<()> {
        self.arena.borrow_mut().grow(bytes)
    }

    /// How many ops of a captured plan may run side by side; 1 is one after the other.
    pub fn streams(&self) -> usize {
        self.streams.get()
    }

    /// Sets [`Self::streams`] for plans that are captured from now on. Results are the same to the bit.
    pub fn set_streams(&self, streams: usize) {
        self.streams.set(streams.max(1));
    }

    /// Which way every prepared convolution is computed, by card, library versions and request.
    pub fn choices(&self) -> BTreeMap<String, String> {
        self.convolutions().choices()
    }

    /// Takes such choices before those that were kept on disk, for convolutions that are prepared from now on.
    pub fn prefer(&self, choices: BTreeMap<String, String>) {
        self.convolutions_mut().prefer(choices);
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }

    /// No launch is under way while the other borrow lives: both are held for single calls only.
    pub(crate) fn convolutions(&self) -> Ref<'_, Convolutions> {
        self.convolutions.borrow()
    }

    pub(crate) fn convolutions_mut(&self) -> RefMut<'_, Convolutions> {
        self.convolutions.borrow_mut()
    }
}

macro_rules! kernels {
    ($($name:ident: $kind:ident),* $(,)?) => {
        /// Our own kernels that plans and commits use.
        pub(crate) struct Kernels { $(pub $name: $kind),* }

        impl Kernels {
            fn load(gpu: &Gpu) -> Result<Self> {
                Ok(Self { $($name: $kind::load(gpu)?),* })
            }
        }
    };
}

kernels! {
    normalize: Normalize,
    bias: Bias,
    bn_stats: BnStats,
    bn_apply: BnApply,
    bn_reduce: BnReduce,
    bn_backward: BnBackward,
    running_stats: RunningStats,
    activate: Activate,
    add: Add,
    copy: Copy,
    fill: Fill,
    max_pool: MaxPool,
    average_pool: AveragePool,
    resize: Resize,
    commit: Commit,
    decode: Decode,
    nms: Nms,
    loss: Loss,
}
