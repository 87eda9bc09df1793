//! Times of single ops, summed up: by op and shape, and by kind.

use cuda::{OpTime, Peaks};
use plan::speed::Kind;
use serde::Serialize;
use std::collections::BTreeMap;

/// Ops of one name and shape.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpRow {
    /// As in `graph`, such as `Conv2d`.
    pub op: &'static str,
    pub shape: String,
    /// Who computed it.
    pub server: String,
    /// How many there are in a step.
    pub count: usize,
    /// Scope of the first of them.
    pub scope: String,
    pub ms: f64,
    /// What the card's arithmetic or memory allows.
    pub bound_ms: f64,
    pub lost_ms: f64,
    /// Bound by time.
    pub ratio: f64,
    pub gflop: f64,
    pub megabytes: f64,
}

/// All ops of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindTime {
    pub kind: &'static str,
    pub count: usize,
    pub ms: f64,
    pub bound_ms: f64,
    pub lost_ms: f64,
}

/// Where a step's time goes.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// Rates that bounds are computed with, and where they are from.
    pub peaks: Peaks,
    /// Sum over all ops.
    pub ms: f64,
    pub bound_ms: f64,
    /// Largest loss first.
    pub kinds: Vec<KindTime>,
    /// Largest loss first.
    pub rows: Vec<OpRow>,
}

impl Profile {
    /// Sums up the times of single ops.
    pub fn of(times: &[OpTime], peaks: &Peaks) -> Self {
        let mut rows: BTreeMap<(&str, &str, &str), OpRow> = BTreeMap::new();
        let mut kinds: BTreeMap<&str, KindTime> = BTreeMap::new();
        for time in times {
            let row = rows.entry((time.op, &time.shape, &time.server)).or_insert_with(|| OpRow {
                op: time.op,
                shape: time.shape.clone(),
                server: time.server.clone(),
                count: 0,
                scope: time.scope.clone(),
                ms: 0.0,
                bound_ms: 0.0,
                lost_ms: 0.0,
                ratio: 0.0,
                gflop: 0.0,
                megabytes: 0.0,
            });
            row.count += 1;
            row.ms += time.ms;
            row.bound_ms += time.bound_ms;
            row.lost_ms += time.lost_ms;
            row.gflop += 1e-9 * time.flops;
            row.megabytes += 1e-6 * time.bytes;
            let kind = Kind::of(time.op).name();
            let sum = kinds.entry(kind).or_insert(KindTime { kind, count: 0, ms: 0.0, bound_ms: 0.0, lost_ms: 0.0 });
            sum.count += 1;
            sum.ms += time.ms;
            sum.bound_ms += time.bound_ms;
            sum.lost_ms += time.lost_ms;
        }
        let mut rows: Vec<OpRow> = rows.into_values().collect();
        rows.iter_mut().for_each(|r| r.ratio = r.bound_ms / r.ms);
        rows.sort_by(|a, b| b.lost_ms.total_cmp(&a.lost_ms));
        let mut kinds: Vec<KindTime> = kinds.into_values().collect();
        kinds.sort_by(|a, b| b.lost_ms.total_cmp(&a.lost_ms));
        let sum = |of: fn(&KindTime) -> f64| kinds.iter().map(of).sum();
        Self { peaks: peaks.clone(), ms: sum(|k| k.ms), bound_ms: sum(|k| k.bound_ms), kinds, rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(op: &'static str, shape: &str, ms: f64, bound_ms: f64) -> OpTime {
        OpTime {
            scope: "model.0".to_owned(),
            op,
            shape: shape.to_owned(),
            server: "cuDNN".to_owned(),
            calls: 1,
            ms,
            flops: 2e9,
            bytes: 3e6,
            bound_ms,
            ratio: bound_ms / ms,
            lost_ms: ms - bound_ms,
        }
    }

    #[test]
    fn ops_of_one_shape_are_one_row_and_the_largest_loss_comes_first() {
        let times = [
            time("BnApply", "a", 1.0, 0.5),
            time("Conv2d", "b", 4.0, 1.0),
            time("Conv2d", "b", 4.0, 1.0),
            time("Conv2d", "c", 1.0, 0.9),
        ];
        let peaks = Peaks { flops: 1e12, bytes: 1e12, source: "a test".to_owned() };
        let profile = Profile::of(&times, &peaks);
        let found: Vec<_> = profile.rows.iter().map(|r| (r.shape.as_str(), r.count, r.lost_ms)).collect();
        assert_eq!((found[0], found[1].0, found[2].0), (("b", 2, 6.0), "a", "c"));
        assert_eq!((profile.rows[0].ratio, profile.rows[0].gflop, profile.rows[0].megabytes), (0.25, 4.0, 6.0));
        assert_eq!((profile.ms, profile.kinds[0].kind, profile.kinds[0].count), (10.0, "convolution, forward", 3));
    }
}
