//! Training pictures that stay on a card, and batches that the card renders from them.
//!
//! The card's pixels are those of the processor, byte by byte: where its memory is too small for them, the host renders
//! and nothing else changes.

use crate::footprint::{self, Room};
use crate::work::WorkSettings;
use crate::{Observer, TrainError};
use cuda::kernels::RenderImage;
use cuda::{CudaError, CudaExecutor, Gpu, NewPicture, RenderBatch, Resident};
use data::{Batch, Kept, LoaderOptions, Unrendered};
use graph::{ExecError, PlanId, TensorId};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Batches whose pictures must stay at the same time: those that the loader makes ahead, the one that is handed over, and
/// two that the card may still render.
const UNDER_WAY: usize = LoaderOptions::PREFETCH + 3;
/// Batches that the host holds the pictures of.
const LOADED: u64 = LoaderOptions::PREFETCH as u64 + 1;
/// Numbers that each loader has for its batches.
const LOADER_NUMBERS: u64 = 1 << 32;

/// Bytes of a card's memory for pictures, taken with what the host needs for them; `None` where batches are rendered on
/// the host: on the processor, and where a card has too little left.
pub(crate) fn budget(room: &mut Room, work: &WorkSettings, observer: &mut dyn Observer) -> Option<u64> {
    let free = room.for_pictures_on_card()?;
    let (all, largest) = (bytes_of_all(work), bytes_of_each(work).max().unwrap_or(0));
    let shown = match (work.rect || work.config.mosaic == 0.0, work.config.mixup > 0.0) {
        (true, _) => 1,
        (false, false) => 4,
        (false, true) => 8,
    };
    let batch = (work.batch * shown) as u64 * largest;
    let least = all.min(UNDER_WAY as u64 * batch);
    if free < least {
        observer.info(&format!(
            "batches are rendered on the host: their pictures need {} of the card's memory, {} are free",
            footprint::size(least),
            footprint::size(free)
        ));
        return None;
    }
    room.take(LOADED * batch.min(all));
    let bytes = all.min(free);
    observer.info(&format!(
        "the card renders batches and keeps {} of {} of pictures",
        footprint::size(bytes),
        footprint::size(all)
    ));
    Some(bytes)
}

/// Bytes that the training pictures take on a card, where each has a place of its own.
fn bytes_of_each(work: &WorkSettings) -> impl Iterator<Item = u64> {
    let side = u32::try_from(work.size).unwrap_or(u32::MAX);
    work.samples.iter().map(move |s| data::ImagePool::picture_bytes(s, side).max(1).next_multiple_of(256))
}

/// Bytes of a card that all training pictures take.
pub(crate) fn bytes_of_all(work: &WorkSettings) -> u64 {
    bytes_of_each(work).sum()
}

/// Pictures on a card.
pub(crate) struct CardPictures {
    card: cuda::ImagePool,
    host: Arc<data::ImagePool>,
    /// Number of the first batch of the loader that runs.
    first: u64,
}

impl CardPictures {
    /// No pictures yet, and room for `bytes`. `host` decodes.
    pub fn new(gpu: &Gpu, bytes: u64, host: Arc<data::ImagePool>) -> Result<Self, TrainError> {
        Ok(Self { card: cuda::ImagePool::new(gpu, bytes)?, host, first: 0 })
    }

    /// Tells a new loader, whose batches are numbered from 0, what need not be loaded.
    pub fn next_loader(&mut self) -> Arc<Kept> {
        self.first += LOADER_NUMBERS;
        let (claims, first) = (self.card.claims(), self.first);
        Arc::new(move |sample, number| claims.claim(sample, first + number as u64))
    }

    /// Time so far in which the card waited for pictures on their way to it.
    pub fn upload_wait(&self) -> Duration {
        self.card.waited()
    }

    /// Renders a batch into an input of a plan. False where its pictures do not fit beside those that are in use.
    pub fn render(
        &mut self,
        executor: &mut CudaExecutor,
        (plan, input): (PlanId, TensorId),
        batch: &Batch,
        unrendered: &Unrendered,
    ) -> Result<bool, TrainError> {
        let Unrendered { recipes, pictures } = unrendered;
        self.card.begin(self.first + batch.number as u64)?;
        let missing: Vec<NewPicture<'_>> = pictures
            .iter()
            .filter(|(id, _)| self.card.find(**id).is_none())
            .map(|(&id, p)| NewPicture { sample: Some(id), wh: [p.width, p.height], pixels: &p.data })
            .collect();
        match self.card.put(&missing) {
            Err(CudaError::Pool { .. }) => return Ok(false),
            other => other?,
        };
        let places: HashMap<usize, Resident> = recipes
            .iter()
            .flat_map(|recipe| recipe.shown())
            .filter_map(|p| Some((p.sample, self.card.find(p.sample)?)))
            .collect();
        // Outlines that are pasted are filled here, which is the host's share of rendering.
        let images: Vec<RenderImage> = recipes
            .par_iter()
            .map_init(Vec::new, |marks, recipe| render::flat(recipe, &|id| places.get(&id).copied(), marks))
            .collect();
        let hw = recipes.first().map_or([0, 0], |r| [r.out_wh[1] as usize, r.out_wh[0] as usize]);
        let batch = RenderBatch { images: &images, hw, out_hw: [batch.shape[1], batch.shape[2]] };
        executor.render(plan, input, &mut self.card, &batch).map_err(|e: ExecError| e.into()).map(|()| true)
    }

    /// The pixels of such a batch, rendered on the host.
    pub fn pixels(&self, batch: &Batch, unrendered: &Unrendered) -> Vec<u8> {
        unrendered.render(&self.host, [batch.shape[1], batch.shape[2]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::device::Device;
    use data::{AugmentConfig, Sample};

    #[test]
    fn the_processor_keeps_no_pictures_on_a_card() {
        let sample = Sample { path: "a.png".into(), width: 8, height: 8, labels: Vec::new(), segments: Vec::new() };
        let work = WorkSettings {
            samples: Arc::new(vec![sample]),
            config: AugmentConfig::NONE,
            size: 64,
            stride: 32,
            batch: 1,
            seed: 0,
            epochs: 1,
            close_mosaic: 0,
            rect: false,
            multi_scale: false,
            weights: None,
        };
        let mut room = Room::new(Some(1 << 30), &Device::Cpu).unwrap();
        let before = room.for_pictures();
        assert_eq!(budget(&mut room, &work, &mut Silent), None);
        assert_eq!(room.for_pictures(), before);
        // 64 x 64 x 3 bytes: as much as its batch needs, and all of it.
        let mut room = Room::of_a_card(12_288 * 5 / 4);
        assert_eq!(budget(&mut room, &work, &mut Silent), Some(12_288));
        let mut room = Room::of_a_card(12_288 * 5 / 4 - 5);
        assert_eq!(budget(&mut room, &work, &mut Silent), None);
    }
}
