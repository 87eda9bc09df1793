//! The largest batch that fits, from a few compiled ones: an arena grows almost in proportion to its batch.

use graph::GraphError;

/// A tensor that stops a batch from growing: no tensor may have more than 2^31 elements.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TooLarge {
    pub tensor: String,
    /// In the batch that was tried.
    pub elements: u64,
}

/// What a batch needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    Bytes(u64),
    /// More than any plan may have, such as a budget of the arena.
    NoPlan,
    TooLarge(TooLarge),
}

impl Need {
    /// Sorts errors of compiling into what says that a batch is too large, and others.
    ///
    /// # Errors
    /// What has nothing to do with the batch.
    pub fn of(error: GraphError) -> Result<Self, GraphError> {
        match error {
            GraphError::TooLarge { tensor, elements } => {
                // The picture's own maps lie in no layer.
                let tensor = tensor.trim_start_matches('.').to_owned();
                Ok(Self::TooLarge(TooLarge { tensor, elements }))
            }
            GraphError::Budget { .. } => Ok(Self::NoPlan),
            other => Err(other),
        }
    }
}

/// The largest batch that fits.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Largest {
    pub batch: usize,
    pub bytes: u64,
    /// Where no memory is short but a tensor would be too large: [`TooLarge`] of a larger batch.
    pub capped: Option<TooLarge>,
}

/// Batches are multiples of this above it.
const STEP: usize = 8;
/// Shares of the room that a guess may be off by without being looked at.
const SURE: f64 = 0.02;

/// The batch after `batch`.
fn next(batch: usize) -> usize {
    if batch < STEP { batch + 1 } else { (batch / STEP + 1) * STEP }
}

/// The largest possible batch up to `batch`.
fn floor(batch: usize) -> usize {
    if batch <= STEP { batch.max(1) } else { batch / STEP * STEP }
}

/// The largest batch of at most `most` images that needs no more than `room` bytes: a multiple of 8 above 8, any number
/// below. `None` where not even one image fits. `need` is asked a few times, most of them near the answer.
///
/// # Errors
/// What `need` says.
pub fn largest<E>(
    room: u64,
    most: usize,
    need: &mut dyn FnMut(usize) -> Result<Need, E>,
) -> Result<Option<Largest>, E> {
    let most = most.max(1);
    // Between the largest that is known to fit and the smallest that is known not to.
    let mut fits: Vec<(usize, u64)> = Vec::new();
    let mut fails: Option<usize> = None;
    let mut known: Vec<(usize, f64)> = Vec::new();
    let mut capped: Option<(usize, TooLarge)> = None;
    let mut batch = floor(most.min(2 * STEP));
    loop {
        match need(batch)? {
            Need::Bytes(bytes) => {
                known.push((batch, bytes as f64));
                match bytes <= room {
                    true => fits.push((batch, bytes)),
                    false => fails = Some(fails.map_or(batch, |f| f.min(batch))),
                }
            }
            Need::NoPlan => fails = Some(fails.map_or(batch, |f| f.min(batch))),
            Need::TooLarge(tensor) => {
                fails = Some(fails.map_or(batch, |f| f.min(batch)));
                if capped.as_ref().is_none_or(|c| c.0 > batch) {
                    capped = Some((batch, tensor));
                }
            }
        }
        let low = fits.iter().max().copied();
        let smallest = low.map_or(1, |l| next(l.0));
        let beyond = fails.unwrap_or(usize::MAX).min(next(floor(most)));
        if smallest >= beyond {
            let stopped_by_tensor = |b: usize| capped.as_ref().filter(|c| c.0 == b).map(|c| c.1.clone());
            return Ok(low.map(|(batch, bytes)| Largest { batch, bytes, capped: fails.and_then(stopped_by_tensor) }));
        }
        let largest = floor(beyond - 1).max(smallest);
        batch = match (&capped, line(&known)) {
            // Elements grow in proportion.
            (Some((at, tensor)), _) if fails == Some(*at) => {
                let fitting = (*at as u64 * (1 << 31) / tensor.elements.max(1)) as usize;
                floor(fitting.max(1)).clamp(smallest, largest)
            }
            (_, Some(Line { fixed, slope, sure })) if slope > 0.0 => {
                let (room, fixed) = (room as f64, fixed.min(room as f64));
                let guess = floor(((room - fixed) / slope).clamp(1.0, 1e9) as usize);
                // One more of what fits needs no look where the line leaves no doubt.
                if let Some((low, bytes)) = low
                    && sure
                    && low >= guess
                    && bytes as f64 + slope * (next(low) - low) as f64 > (1.0 + SURE) * room
                    && capped.is_none()
                {
                    return Ok(Some(Largest { batch: low, bytes, capped: None }));
                }
                guess.clamp(smallest, largest)
            }
            _ => floor((smallest + largest.min(8 * smallest)) / 2).clamp(smallest, largest),
        };
    }
}

/// Bytes as they grow with the batch.
struct Line {
    fixed: f64,
    /// An image.
    slope: f64,
    /// False where it is guessed from one batch.
    sure: bool,
}

/// The line through the last two batches that were asked for.
fn line(known: &[(usize, f64)]) -> Option<Line> {
    let &(b, bytes) = known.last()?;
    Some(match known.iter().rev().find(|k| k.0 != b) {
        Some(&(a, other)) => {
            let slope = (bytes - other) / (b as f64 - a as f64);
            Line { fixed: bytes - slope * b as f64, slope, sure: true }
        }
        None => Line { fixed: 0.0, slope: bytes / b as f64, sure: false },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer and how often it was asked for.
    fn find(room: u64, most: usize, need: impl Fn(usize) -> Need) -> (Option<Largest>, usize) {
        let mut asked = 0;
        let found = largest(room, most, &mut |batch| {
            asked += 1;
            assert!(batch >= 1 && batch <= most, "{batch} of {most}");
            assert!(batch <= 8 || batch % 8 == 0, "{batch}");
            Ok::<_, ()>(need(batch))
        });
        (found.unwrap(), asked)
    }

    fn brute(room: u64, most: usize, need: impl Fn(usize) -> u64) -> Option<usize> {
        (1..=most).filter(|b| *b <= 8 || b % 8 == 0).filter(|&b| need(b) <= room).max()
    }

    #[test]
    fn it_is_what_trying_all_gives_and_few_are_tried() {
        // A fixed part, a slope, and the unevenness of arenas.
        let need = |b: usize| 300 + 70 * b as u64 + (b as u64 * 37) % 11;
        for room in [0, 369, 380, 440, 700, 860, 1000, 2000, 5000, 9_999, 33_333, 70_000] {
            for most in [1, 3, 8, 11, 64, 100, 65_536] {
                let (found, asked) = find(room, most, |b| Need::Bytes(need(b)));
                assert_eq!(found.as_ref().map(|f| f.batch), brute(room, most, need), "room {room}, most {most}");
                assert!(found.is_none_or(|f| f.bytes == need(f.batch) && f.capped.is_none()));
                assert!(asked <= 7, "room {room}, most {most}: {asked}");
            }
        }
    }

    #[test]
    fn a_tensor_that_would_be_too_large_is_a_cap_that_is_named() {
        let each = 3_276_800u64;
        let need = |b: usize| match b as u64 * each {
            elements if elements > 1 << 31 => Need::TooLarge(TooLarge { tensor: "model.0.conv".to_owned(), elements }),
            _ => Need::Bytes(b as u64),
        };
        for most in [65_536, 2000] {
            let (found, asked) = find(1 << 40, most, need);
            let found = found.unwrap();
            assert_eq!((found.batch, found.capped.map(|c| c.tensor)), (648, Some("model.0.conv".to_owned())));
            assert!(asked <= 6, "{asked}");
        }
        // Memory that ends first leaves the tensor out of it.
        let (found, _) = find(100, 65_536, need);
        assert_eq!(found, Some(Largest { batch: 96, bytes: 96, capped: None }));
    }

    #[test]
    fn batches_without_a_plan_are_too_large() {
        let need = |b: usize| if b > 43 { Need::NoPlan } else { Need::Bytes(10 * b as u64) };
        assert_eq!(find(1 << 30, 512, need).0.map(|f| f.batch), Some(40));
        assert_eq!(find(1 << 30, 512, |_| Need::NoPlan).0, None);
    }

    #[test]
    fn only_errors_of_size_are_needs() {
        let large = GraphError::TooLarge { tensor: "a".to_owned(), elements: 1 << 32 };
        assert!(matches!(Need::of(large), Ok(Need::TooLarge(_))));
        assert_eq!(Need::of(GraphError::Budget { needed: 2, budget: 1 }), Ok(Need::NoPlan));
        assert!(Need::of(GraphError::DuplicateParam("a".to_owned())).is_err());
    }
}
