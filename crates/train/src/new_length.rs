//! A run that goes on to another number of epochs than it began with: what that changes, in words.

use crate::Observer;
use crate::schedule::Schedule;

/// Tells how learning rate and mosaic change for a run that goes on with `epoch`, where it does so under a new schedule.
pub(crate) fn tell(old: &Schedule, new: &Schedule, epoch: usize, close_mosaic: usize, observer: &mut dyn Observer) {
    if old.epochs == new.epochs {
        return;
    }
    let first = epoch * new.batches_per_epoch;
    // Group 1 holds the weights of convolutions: it has no warm-up of its own as the biases have.
    let rate = |schedule: &Schedule, iteration: usize| format!("{:.3e}", schedule.at(iteration).lr[1]);
    let before = match first.checked_sub(1) {
        Some(last) => format!(", after {} in the epoch before", rate(old, last)),
        None => String::new(),
    };
    observer.info(&format!(
        "{} epochs in all instead of {}: the learning rate now falls until the end of epoch {}; epoch {epoch} starts with \
         {}{before}",
        new.epochs,
        old.epochs,
        new.epochs.saturating_sub(1),
        rate(new, first)
    ));
    let closed = |epoch: usize, epochs: usize| close_mosaic > 0 && epoch + close_mosaic >= epochs;
    if epoch > 0 && closed(epoch - 1, old.epochs) && !closed(epoch, new.epochs) {
        let closes = new.epochs.saturating_sub(close_mosaic);
        observer.info(&format!(
            "mosaic is on again until it closes for the last {close_mosaic} epochs, from epoch {closes}"
        ));
    }
}
