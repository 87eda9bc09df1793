//! Where pictures stay, settled before the first batch: whether the card holds them all, and what `auto` takes.

use crate::footprint::{Room, size};
use crate::work::WorkSettings;
use crate::{Cache, Observer, TrainError, card_pictures};
use data::{ImagePool, Sample};

/// What `wish` comes to on this machine: anything but [`Cache::Auto`]. `on_card` are the bytes that a card keeps of
/// training pictures, out of `room`.
///
/// # Errors
/// [`Cache::Gpu`] without a card, or on one that has no room for all of them.
pub(crate) fn settle(
    wish: Cache,
    on_card: Option<u64>,
    work: &WorkSettings,
    val: Option<&[Sample]>,
    room: &Room,
    observer: &mut dyn Observer,
) -> Result<Cache, TrainError> {
    let on_card_all = card_pictures::bytes_of_all(work);
    let held = on_card.is_some_and(|bytes| bytes >= on_card_all);
    match wish {
        Cache::Gpu if held => Ok(Cache::Gpu),
        Cache::Gpu => Err(match room.for_pictures_on_card() {
            Some(available) => TrainError::Memory {
                what: "--cache gpu",
                memory: "memory of the card",
                needed: on_card_all,
                available,
                parts: format!("{} training pictures", work.samples.len()),
                hint: "--cache auto keeps on the card what fits there; a smaller --batch or --memory-budget leaves \
                       more of it"
                    .to_owned(),
            },
            None => {
                let hint = "--cache ram keeps pictures in memory, --cache auto takes what the machine has";
                TrainError::option("cache", "gpu needs a card, and this run computes on the processor", Some(hint))
            }
        }),
        Cache::Auto if held => {
            observer.info(&format!(
                "--cache auto: all training pictures stay on the card ({}), as --cache gpu",
                size(on_card_all)
            ));
            Ok(Cache::Gpu)
        }
        Cache::Auto => {
            let side = u32::try_from(work.size).unwrap_or(u32::MAX);
            let samples = work.samples.iter().chain(val.unwrap_or_default());
            let all = samples.map(|s| ImagePool::picture_bytes(s, side)).sum::<u64>();
            let free = room.for_pictures();
            let told = free.map_or("not known".to_owned(), size);
            let (cache, name) = match free {
                Some(free) if all <= free => (Cache::Ram, "ram"),
                _ => (Cache::None, "none"),
            };
            observer.info(&format!(
                "--cache auto: all pictures need {}, free for them in memory: {told}; as --cache {name}",
                size(all)
            ));
            Ok(cache)
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::footprint::Room;
    use data::AugmentConfig;
    use std::sync::Arc;

    /// Four training pictures of 100 x 100 pixels, 30 000 bytes each; 30 208 where places start at multiples of 256.
    fn work() -> WorkSettings {
        WorkSettings {
            samples: Arc::new(vec![sample(); 4]),
            config: AugmentConfig::NONE,
            size: 100,
            stride: 32,
            batch: 1,
            seed: 0,
            epochs: 1,
            close_mosaic: 0,
            rect: false,
            multi_scale: false,
            weights: None,
        }
    }

    fn sample() -> Sample {
        Sample { path: "a.png".into(), width: 100, height: 100, labels: Vec::new(), segments: Vec::new() }
    }

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Observer for Lines {
        fn info(&mut self, line: &str) {
            self.0.push(line.to_owned());
        }
        fn warn(&mut self, line: &str) {
            panic!("nothing to warn of: {line}");
        }
        fn progress(&mut self, _: &crate::Progress) {}
        fn should_stop(&self) -> bool {
            false
        }
    }

    /// The choice and what is told of it, on a card or, without `on_card`, in `memory` bytes for pictures.
    fn settled(wish: Cache, on_card: Option<u64>, memory: u64) -> (Result<Cache, TrainError>, Vec<String>) {
        let room = match on_card {
            Some(bytes) => Room::of_a_card(bytes / 4 * 5),
            None => Room::new(Some(memory / 4 * 5), &Device::Cpu).unwrap(),
        };
        let mut lines = Lines::default();
        let val = vec![sample(); 2];
        let cache = settle(wish, on_card, &work(), Some(&val), &room, &mut lines);
        (cache, lines.0)
    }

    #[test]
    fn a_card_holds_all_training_pictures_or_gpu_is_refused_in_numbers() {
        assert_eq!(settled(Cache::Gpu, Some(4 * 30_208), 0).0.unwrap(), Cache::Gpu);
        let error = settled(Cache::Gpu, Some(4 * 30_208 - 4), 0).0.unwrap_err();
        let TrainError::Memory { needed, available, .. } = &error else { panic!("{error}") };
        assert_eq!((*needed, *available), (4 * 30_208, 4 * 30_208 - 4));
        assert!(error.hint().unwrap().contains("--cache auto"));
        let error = settled(Cache::Gpu, None, 1 << 30).0.unwrap_err();
        assert!(matches!(error, TrainError::Option { flag: "cache", .. }), "{error}");
    }

    #[test]
    fn auto_takes_the_card_then_the_memory_then_neither_and_says_so() {
        let (cache, told) = settled(Cache::Auto, Some(4 * 30_208), 0);
        assert_eq!(cache.unwrap(), Cache::Gpu);
        assert_eq!(told, ["--cache auto: all training pictures stay on the card (0.1 MiB), as --cache gpu"]);
        let (cache, told) = settled(Cache::Auto, None, 6 * 30_000);
        assert_eq!(cache.unwrap(), Cache::Ram);
        assert_eq!(told, ["--cache auto: all pictures need 0.2 MiB, free for them in memory: 0.2 MiB; as --cache ram"]);
        let (cache, told) = settled(Cache::Auto, None, 6 * 30_000 - 4);
        assert_eq!(cache.unwrap(), Cache::None);
        assert!(told[0].ends_with("as --cache none"), "{told:?}");
        // A card with too little left, on a system that does not say what it has.
        assert_eq!(settled(Cache::Auto, Some(30_208), 0).0.unwrap(), Cache::None);
    }

    #[test]
    fn other_wishes_are_taken_as_they_are() {
        for wish in [Cache::None, Cache::Ram, Cache::Disk, Cache::Val] {
            let (cache, told) = settled(wish, None, 0);
            assert_eq!((cache.unwrap(), told.len()), (wish, 0));
        }
    }
}
