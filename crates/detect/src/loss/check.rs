//! Checks that the arguments of the loss fit together, so that the passes may index freely.

use super::maps::needed;
use super::{Branch, BranchGradient, LossConfig, LossError, MAX_BRANCHES, Targets};
use crate::dfl::BOX_CHANNELS;
use crate::{Levels, Real};

/// Levels of the head when everything fits.
pub(super) fn arguments<T: Real>(
    config: &LossConfig,
    batch: usize,
    branches: &[Branch<'_, T>],
    targets: &Targets<'_>,
    gradients: Option<&[BranchGradient<'_, '_, T>]>,
) -> Result<Levels, LossError> {
    let weights = config.branch_weights.len();
    let gradient_branches = gradients.map_or(branches.len(), <[_]>::len);
    if branches.is_empty() || branches.len() > MAX_BRANCHES || weights != branches.len() {
        return Err(LossError::Branches { branches: branches.len(), weights });
    }
    if gradient_branches != branches.len() {
        return Err(LossError::Branches { branches: gradient_branches, weights });
    }
    if config.nc == 0 || config.topk == 0 || config.strides.contains(&0) {
        return Err(LossError::ZeroSetting);
    }
    let strides = config.strides.len();
    for (branch, maps) in branches.iter().enumerate() {
        let (boxes, classes) = (maps.boxes.len(), maps.classes.len());
        if boxes != strides || classes != strides || strides == 0 {
            return Err(LossError::Levels { branch, boxes, classes, strides });
        }
    }
    for (branch, maps) in gradients.into_iter().flatten().enumerate() {
        let (boxes, classes) = (maps.boxes.len(), maps.classes.len());
        if boxes != strides || classes != strides {
            return Err(LossError::Levels { branch, boxes, classes, strides });
        }
    }
    let first = branches[0].boxes;
    let sizes = first.iter().zip(&config.strides).map(|(m, &stride)| (m.h, m.w, stride));
    let levels =
        Levels::new(sizes).ok_or(LossError::Levels { branch: 0, boxes: strides, classes: strides, strides })?;
    maps_fit(config, batch, &levels, branches, gradients)?;
    targets_fit(config, batch, targets)?;
    Ok(levels)
}

fn maps_fit<T: Real>(
    config: &LossConfig,
    batch: usize,
    levels: &Levels,
    branches: &[Branch<'_, T>],
    gradients: Option<&[BranchGradient<'_, '_, T>]>,
) -> Result<(), LossError> {
    let check = |branch, level: usize, what, (h, w), pitch, channels, written: usize, len| {
        let size = &levels.as_slice()[level];
        let need = h_w_batch(h, w, batch).and_then(|cells| needed(cells, pitch, written));
        let fits = (h, w) == (size.h, size.w) && written >= channels && written <= pitch;
        match need {
            Some(need) if fits && need <= len => Ok(()),
            _ => Err(LossError::Map { branch, level, what, batch, h, w, channels, pitch, len }),
        }
    };
    for (branch, maps) in branches.iter().enumerate() {
        for (level, (b, c)) in maps.boxes.iter().zip(maps.classes).enumerate() {
            check(branch, level, "box logits", (b.h, b.w), b.pitch, BOX_CHANNELS, BOX_CHANNELS, b.data.len())?;
            check(branch, level, "class logits", (c.h, c.w), c.pitch, config.nc, config.nc, c.data.len())?;
        }
    }
    for (branch, maps) in gradients.into_iter().flatten().enumerate() {
        for (level, (b, c)) in maps.boxes.iter().zip(maps.classes.iter()).enumerate() {
            let (box_written, class_written) = (b.channels_padded, c.channels_padded);
            check(branch, level, "box gradient", (b.h, b.w), b.pitch, BOX_CHANNELS, box_written, b.data.len())?;
            check(branch, level, "class gradient", (c.h, c.w), c.pitch, config.nc, class_written, c.data.len())?;
        }
    }
    Ok(())
}

fn h_w_batch(h: usize, w: usize, batch: usize) -> Option<usize> {
    h.checked_mul(w)?.checked_mul(batch)
}

fn targets_fit(config: &LossConfig, batch: usize, targets: &Targets<'_>) -> Result<(), LossError> {
    let (offsets, classes, boxes) = (targets.offsets, targets.classes.len(), targets.boxes.len());
    let packed = offsets.len() == batch + 1
        && offsets[0] == 0
        && offsets[batch] as usize == boxes
        && offsets.is_sorted()
        && classes == boxes;
    if !packed {
        return Err(LossError::Targets { batch, offsets: offsets.len(), classes, boxes });
    }
    match targets.classes.iter().position(|&class| class as usize >= config.nc) {
        Some(index) => Err(LossError::Class { index, class: targets.classes[index], nc: config.nc }),
        None => Ok(()),
    }
}
