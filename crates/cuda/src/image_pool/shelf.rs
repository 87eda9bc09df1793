//! Which picture lies where: places in one block of memory, given to pictures and taken from those that were used
//! longest ago. Knows no card.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places start at multiples of this many bytes.
const ALIGNMENT: u64 = 256;

/// A picture of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Address of its pixels on the card: RGB, 8 bit, row-major.
    pub at: u64,
    /// Width and height in pixels.
    pub wh: [u32; 2],
}

/// Free parts of a block of memory.
#[derive(Debug)]
pub(super) struct Slab {
    /// Length by offset. No two parts touch.
    by_place: BTreeMap<u64, u64>,
    /// The same as (length, offset).
    by_length: BTreeSet<(u64, u64)>,
}

impl Slab {
    pub fn new(bytes: u64) -> Self {
        let mut slab = Self { by_place: BTreeMap::new(), by_length: BTreeSet::new() };
        slab.add(0, bytes / ALIGNMENT * ALIGNMENT);
        slab
    }

    /// The offset of so many bytes, from the smallest part that holds them.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = rounded(bytes)?;
        let &(length, at) = self.by_length.range((bytes, 0)..).next()?;
        self.remove(at, length);
        self.add(at + bytes, length - bytes);
        Some(at)
    }

    /// Gives back what [`Self::take`] gave for so many bytes.
    pub fn give(&mut self, at: u64, bytes: u64) {
        let Some(bytes) = rounded(bytes) else { return };
        let (mut start, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = self.by_place.range(..at).next_back()
            && before + length == at
        {
            self.remove(before, length);
            start = before;
        }
        if let Some(&length) = self.by_place.get(&end) {
            self.remove(end, length);
            end += length;
        }
        self.add(start, end - start);
    }

    fn add(&mut self, at: u64, length: u64) {
        if length > 0 {
            self.by_place.insert(at, length);
            self.by_length.insert((length, at));
        }
    }

    fn remove(&mut self, at: u64, length: u64) {
        self.by_place.remove(&at);
        self.by_length.remove(&(length, at));
    }
}

/// Bytes of a place; an empty picture has one too.
fn rounded(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT)
}

/// What a picture is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Sample(usize),
    /// One of a single batch, by a number of its own.
    Once(u64),
}

#[derive(Debug)]
struct Kept {
    place: Resident,
    bytes: u64,
    /// When it was used last, by a clock that ticks with every use.
    used: u64,
    /// The last batch that uses it.
    batch: u64,
}

/// All pictures. Places are offsets here.
#[derive(Debug)]
pub(super) struct Shelf {
    slab: Slab,
    kept: HashMap<Key, Kept>,
    /// Keys by their last use.
    order: BTreeMap<u64, Key>,
    /// Those of single batches, with their batches.
    once: VecDeque<(u64, Key)>,
    clock: u64,
    named: u64,
    /// Batches below this number are rendered, or never will be.
    done: u64,
}

impl Shelf {
    pub fn new(bytes: u64) -> Self {
        Self {
            slab: Slab::new(bytes),
            kept: HashMap::new(),
            order: BTreeMap::new(),
            once: VecDeque::new(),
            clock: 0,
            named: 0,
            done: 0,
        }
    }

    /// A key for a picture of a single batch.
    pub fn once(&mut self) -> Key {
        self.named += 1;
        Key::Once(self.named)
    }

    /// A batch and all before it are rendered: their pictures may make room, and those of single batches go.
    pub fn batch_is_done(&mut self, batch: u64) {
        self.done = self.done.max(batch.saturating_add(1));
        while let Some(&(_, key)) = self.once.front().filter(|(batch, _)| *batch < self.done) {
            self.once.pop_front();
            self.forget(key);
        }
    }

    /// Where a picture lies; it stays until the batch is done.
    pub fn find(&mut self, key: Key, batch: u64) -> Option<Resident> {
        let kept = self.kept.get_mut(&key)?;
        self.clock += 1;
        self.order.remove(&kept.used);
        self.order.insert(self.clock, key);
        kept.used = self.clock;
        kept.batch = kept.batch.max(batch);
        Some(kept.place)
    }

    /// A place for a picture that is not here, which stays until the batch is done. Pictures that were used longest ago
    /// make room, in that order; `None` where those of batches under way leave none.
    pub fn place(&mut self, key: Key, wh: [u32; 2], batch: u64) -> Option<Resident> {
        let bytes = u64::from(wh[0]).checked_mul(u64::from(wh[1]))?.checked_mul(3)?;
        let at = loop {
            if let Some(at) = self.slab.take(bytes) {
                break at;
            }
            // Few are in use, and those were used last: the first one that is not comes early.
            let done = self.done;
            let oldest = self.order.values().copied().find(|key| self.kept.get(key).is_some_and(|k| k.batch < done));
            self.forget(oldest?);
        };
        self.clock += 1;
        let place = Resident { at, wh };
        self.order.insert(self.clock, key);
        self.kept.insert(key, Kept { place, bytes, used: self.clock, batch });
        if matches!(key, Key::Once(_)) {
            self.once.push_back((batch, key));
        }
        Some(place)
    }

    /// Takes a picture away.
    pub fn forget(&mut self, key: Key) {
        if let Some(kept) = self.kept.remove(&key) {
            self.order.remove(&kept.used);
            self.slab.give(kept.place.at, kept.bytes);
        }
    }
}

/// Says to any thread which pictures are in the pool, and keeps them there: whoever makes a batch ahead of time need not
/// load what it claims.
#[derive(Clone, Debug)]
pub struct Claims(Arc<Mutex<Shelf>>);

impl Claims {
    pub(super) fn new(bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Shelf::new(bytes))))
    }

    /// Whether the picture of a sample is in the pool. If so it stays until the batch of that number, or a later one, is
    /// rendered.
    pub fn claim(&self, sample: usize, batch: u64) -> bool {
        self.shelf().find(Key::Sample(sample), batch).is_some()
    }

    /// A thread that panicked while it held the lock was in no bookkeeping of ours.
    pub(super) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 * 16 * 3 = 768 bytes.
    const WH: [u32; 2] = [16, 16];

    fn put(shelf: &mut Shelf, sample: usize, batch: u64) -> Option<u64> {
        shelf.place(Key::Sample(sample), WH, batch).map(|place| place.at)
    }

    fn has(shelf: &mut Shelf, sample: usize) -> bool {
        shelf.kept.contains_key(&Key::Sample(sample))
    }

    #[test]
    fn parts_that_are_given_back_join() {
        let mut slab = Slab::new(4096 + 100);
        let parts: Vec<u64> = (0..4).map(|_| slab.take(1000).unwrap()).collect();
        assert_eq!((parts, slab.take(1)), (vec![0, 1024, 2048, 3072], None));
        for at in [1024, 3072, 2048, 0] {
            slab.give(at, 1000);
        }
        assert_eq!(slab.by_place, BTreeMap::from([(0, 4096)]));
        assert_eq!(slab.by_length, BTreeSet::from([(4096, 0)]));
        assert_eq!(slab.take(u64::MAX), None);
    }

    #[test]
    fn the_smallest_part_that_fits_is_taken() {
        let mut slab = Slab::new(8192);
        let parts: Vec<u64> = [2048, 256, 1024, 256, 512, 256].map(|bytes| slab.take(bytes).unwrap()).to_vec();
        slab.give(parts[0], 2048);
        slab.give(parts[2], 1024);
        slab.give(parts[4], 512);
        assert_eq!(slab.take(700), Some(parts[2]));
        assert_eq!(slab.take(512), Some(parts[4]));
    }

    #[test]
    fn random_use_never_gives_a_byte_twice_and_loses_none() {
        let (mut slab, mut taken) = (Slab::new(1 << 20), Vec::new());
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            if random % 5 < 3 {
                let bytes = random / 8 % 30_000 + 1;
                if let Some(at) = slab.take(bytes) {
                    assert!(taken.iter().all(|&(start, size): &(u64, u64)| at + bytes <= start || start + size <= at));
                    taken.push((at, bytes));
                }
            } else if !taken.is_empty() {
                let (at, bytes) = taken.swap_remove(random as usize / 8 % taken.len());
                slab.give(at, bytes);
            }
            let used: u64 = taken.iter().filter_map(|t| rounded(t.1)).sum();
            assert_eq!(used + slab.by_place.values().sum::<u64>(), 1 << 20);
            assert_eq!(slab.by_place.len(), slab.by_length.len());
        }
        taken.into_iter().for_each(|(at, bytes)| slab.give(at, bytes));
        assert_eq!(slab.by_place, BTreeMap::from([(0, 1 << 20)]));
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let mut shelf = Shelf::new(3 * 768);
        for sample in 0..3 {
            put(&mut shelf, sample, 0).unwrap();
        }
        shelf.batch_is_done(0);
        assert!(shelf.find(Key::Sample(0), 1).is_some());
        assert_eq!(put(&mut shelf, 3, 1), Some(768), "the place of sample 1");
        assert!(has(&mut shelf, 0) && !has(&mut shelf, 1) && has(&mut shelf, 2));
        assert_eq!(shelf.find(Key::Sample(3), 1), Some(Resident { at: 768, wh: WH }));
        assert_eq!(shelf.find(Key::Sample(1), 1), None);
    }

    #[test]
    fn pictures_of_batches_under_way_stay() {
        let mut shelf = Shelf::new(2 * 768);
        put(&mut shelf, 0, 4).unwrap();
        put(&mut shelf, 1, 5).unwrap();
        assert_eq!(put(&mut shelf, 2, 6), None);
        shelf.batch_is_done(4);
        assert_eq!(put(&mut shelf, 2, 6), Some(0));
        assert_eq!(put(&mut shelf, 3, 6), None);
        // A batch before one that is done is done, too; an earlier one that is told later changes nothing.
        shelf.batch_is_done(6);
        shelf.batch_is_done(3);
        assert!(put(&mut shelf, 3, 7).is_some());
    }

    #[test]
    fn a_claim_of_a_later_batch_outlives_the_earlier_ones() {
        let claims = Claims::new(2 * 768);
        for sample in [7, 8] {
            put(&mut claims.shelf(), sample, 0).unwrap();
        }
        assert!(claims.claim(7, 5) && !claims.claim(9, 5));
        claims.shelf().batch_is_done(0);
        assert!(put(&mut claims.shelf(), 9, 1).is_some());
        assert_eq!((claims.claim(7, 5), claims.claim(8, 5)), (true, false));
        assert_eq!(put(&mut claims.shelf(), 10, 1), None);
        claims.shelf().batch_is_done(5);
        assert!(put(&mut claims.shelf(), 10, 6).is_some());
    }

    #[test]
    fn a_picture_of_a_single_batch_goes_with_it() {
        let mut shelf = Shelf::new(768);
        let key = shelf.once();
        shelf.place(key, WH, 2).unwrap();
        let next = shelf.once();
        assert_ne!(key, next);
        assert_eq!(shelf.place(next, WH, 3), None);
        shelf.batch_is_done(2);
        assert_eq!((shelf.find(key, 3), shelf.once.len()), (None, 0));
        assert!(shelf.place(next, WH, 3).is_some());
    }

    #[test]
    fn a_picture_larger_than_the_pool_has_no_place_and_the_pool_is_emptied_for_it() {
        let mut shelf = Shelf::new(768);
        put(&mut shelf, 0, 0).unwrap();
        shelf.batch_is_done(0);
        assert_eq!(shelf.place(Key::Sample(1), [17, 16], 1), None);
        assert_eq!(shelf.place(Key::Sample(1), [u32::MAX, u32::MAX], 1), None);
        assert!(put(&mut shelf, 2, 1).is_some());
    }
}
