//! The detection loss of a training step: what [`detect::detection_loss`] computes in float32, on the card.
//!
//! Six launches with grids that follow from extents alone, so that they can be captured in a graph; how many boxes there
//! are is read on the card. Every sum has a fixed order: results are the same bits in every run. Targets that do not fit
//! together make every loss not a number.

mod head;

pub use head::{DeviceTargets, Head, Layout, LevelMaps, MAX_TOPK};

use super::compiler::Source;
use super::{Function, Module};
use crate::device::Gpu;
use crate::error::Result;
use crate::view::Format;
use head::THREADS;

pub(super) const ASSIGN: Source = Source {
    name: "loss_assign.cu",
    text: concat!(
        include_str!("common.cuh"),
        include_str!("overlap.cuh"),
        "#line 1 \"assign.cu\"\n",
        include_str!("assign.cu")
    ),
};
pub(super) const TERMS: Source = Source {
    name: "loss_terms.cu",
    text: concat!(
        include_str!("common.cuh"),
        include_str!("overlap.cuh"),
        "#line 1 \"terms.cu\"\n",
        include_str!("terms.cu")
    ),
};

/// Steps of the loss, one launch each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Decodes predictions and targets.
    Prepare,
    /// Boxes claim anchors.
    Claim,
    /// Contested anchors are given away.
    Settle,
    /// Target scores and their sum.
    Score,
    /// Losses and gradients.
    Terms,
    /// Sums of the blocks.
    Finish,
}

impl Kernel {
    /// In the order they run.
    pub const ALL: [Self; 6] = [Self::Prepare, Self::Claim, Self::Settle, Self::Score, Self::Terms, Self::Finish];
}

/// The loss on a card.
#[derive(Clone, Debug)]
pub struct Loss {
    /// By [`Kernel`] up to the score.
    assign: [Function; 4],
    /// Without and with focal modulation: no gradients, float32, fp16, bf16.
    terms: [[Function; 4]; 2],
    finish: Function,
}

impl Loss {
    /// Compiles the kernels, or takes them from the cache.
    ///
    /// # Errors
    /// As [`Module::load`].
    pub fn load(gpu: &Gpu) -> Result<Self> {
        let (assign, terms) = (Module::load(gpu, ASSIGN)?, Module::load(gpu, TERMS)?);
        Ok(Self {
            assign: [
                assign.function("loss_prepare")?,
                assign.function("loss_claim")?,
                assign.function("loss_settle")?,
                assign.function("loss_score")?,
            ],
            terms: [
                [
                    terms.function("loss_terms_none")?,
                    terms.function("loss_terms_f32")?,
                    terms.function("loss_terms_f16")?,
                    terms.function("loss_terms_bf16")?,
                ],
                [
                    terms.function("loss_terms_none_focal")?,
                    terms.function("loss_terms_f32_focal")?,
                    terms.function("loss_terms_f16_focal")?,
                    terms.function("loss_terms_bf16_focal")?,
                ],
            ],
            finish: terms.function("loss_finish")?,
        })
    }

    /// Bytes of scratch for `batch` images of `anchors` anchors on `levels` levels and at most `max_boxes` boxes in the
    /// whole batch.
    pub fn scratch(branches: usize, levels: usize, batch: usize, anchors: usize, max_boxes: usize) -> u64 {
        Layout::new(branches, levels, batch, anchors, max_boxes).bytes
    }

    /// Values and gradients of a head: d(total)/d(logit) times the loss scale over every element of the gradient maps.
    ///
    /// # Errors
    /// [`crate::CudaError::Head`] where the head does not fit together; what the driver says.
    ///
    /// # Safety
    /// Addresses are device memory of the extents described that nothing else writes meanwhile; maps overlap nothing.
    pub unsafe fn run(&self, head: &Head<'_>) -> Result<()> {
        for kernel in Kernel::ALL {
            // SAFETY: the caller's promise.
            unsafe { self.launch(kernel, head) }?;
        }
        Ok(())
    }

    /// One step alone.
    ///
    /// # Errors
    /// As [`Self::run`].
    ///
    /// # Safety
    /// As [`Self::run`]; the steps before have run on this scratch.
    pub unsafe fn launch(&self, kernel: Kernel, head: &Head<'_>) -> Result<()> {
        let checked = head.check()?;
        let args = &checked.args;
        let (score_blocks, term_blocks) = args.blocks();
        let (function, grid) = match kernel {
            Kernel::Prepare => {
                let items = (4 * args.slots()).max(args.max_boxes());
                (&self.assign[0], args.grid(items, THREADS, 4096))
            }
            Kernel::Claim => (&self.assign[1], args.grid(args.max_boxes(), 1, 1024)),
            Kernel::Settle => (&self.assign[2], args.grid(args.slots(), THREADS, 1024)),
            Kernel::Score => (&self.assign[3], args.grid(score_blocks, 1, score_blocks)),
            Kernel::Terms => {
                let format = match checked.gradients {
                    None => 0,
                    Some(Format::F32) => 1,
                    Some(Format::F16) => 2,
                    Some(Format::Bf16) => 3,
                };
                (&self.terms[usize::from(checked.focal)][format], args.grid(term_blocks, 1, term_blocks))
            }
            Kernel::Finish => (&self.finish, [1; 3]),
        };
        // SAFETY: the argument mirrors the kernels' own; what it points to is the caller's promise.
        unsafe { function.launch(grid, [THREADS as u32, 1, 1], 0, args) }
    }
}
