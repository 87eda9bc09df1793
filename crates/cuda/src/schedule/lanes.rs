//! On which of a few lanes each op runs, and behind what.

use super::hazards::Before;

/// An op's place in a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Index in the plan.
    pub op: usize,
    /// Ops of one lane run one after the other.
    pub lane: usize,
    /// Ops that must be over before it starts, the one before it on its lane included where that does not follow.
    pub waits: Vec<usize>,
}

/// Ops in an order in which they may be recorded: each comes after those that it waits for.
///
/// Each op goes where it can start the earliest were every lane a card of its own: those with the longest way to the end
/// of the plan first, so that the longest chain stays on one lane, lane 0, and what nobody waits for, such as weight
/// gradients, fills the others. `waits` are the ops that each one must wait for, all of them earlier ones; `cost` is how
/// long each takes, above zero, in any unit.
pub fn arrange(waits: &[Vec<usize>], cost: &[f64], lanes: usize) -> Vec<Step> {
    let ops = waits.len();
    let mut rest = cost.to_vec();
    for op in (0..ops).rev() {
        for &wait in &waits[op] {
            rest[wait] = rest[wait].max(cost[wait] + rest[op]);
        }
    }
    let mut order: Vec<usize> = (0..ops).collect();
    order.sort_by(|&a, &b| rest[b].total_cmp(&rest[a]).then(a.cmp(&b)));

    let mut lanes: Vec<Lane> = vec![Lane::default(); lanes.max(1)];
    // By op: when it is over, and its place in the order.
    let (mut end, mut position) = (vec![0.0f64; ops], vec![0; ops]);
    let mut before = Before::new(ops);
    let mut steps: Vec<Step> = Vec::with_capacity(ops);
    for op in order {
        let ready = waits[op].iter().map(|&wait| end[wait]).fold(0.0, f64::max);
        let start = |lane: usize| ready.max(lanes[lane].free);
        // At equal times behind an op that it waits for anyway, which is an order less to keep.
        let strange = |lane: usize| lanes[lane].last.is_some_and(|last| !waits[op].contains(&last));
        let lane = (0..lanes.len())
            .min_by(|&a, &b| start(a).total_cmp(&start(b)).then(strange(a).cmp(&strange(b))))
            .unwrap_or(0);
        end[op] = start(lane) + cost[op];
        let mut behind: Vec<usize> = waits[op].iter().copied().chain(lanes[lane].last).collect();
        lanes[lane] = Lane { free: end[op], last: Some(op) };
        behind.sort_unstable_by_key(|&wait| std::cmp::Reverse(position[wait]));
        behind.dedup();
        before.reduce(op, &mut behind);
        position[op] = steps.len();
        steps.push(Step { op, lane, waits: behind });
    }
    steps
}

#[derive(Clone, Debug, Default)]
struct Lane {
    free: f64,
    last: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::super::hazards::{Access, waits};
    use super::super::random::{Random, conflict};
    use super::*;

    /// Ops before each op when the steps are followed: by waits, and along each lane.
    fn replay(steps: &[Step]) -> Before {
        let mut before = Before::new(steps.len());
        let mut last = [None; 8];
        let mut done = vec![false; steps.len()];
        for step in steps {
            for &wait in step.waits.iter().chain(&last[step.lane]) {
                assert!(done[wait], "{step:?} waits for what is not recorded yet");
                before.add(step.op, wait);
            }
            last[step.lane] = Some(step.op);
            assert!(!std::mem::replace(&mut done[step.op], true), "{step:?} comes twice");
        }
        assert!(done.iter().all(|&done| done));
        before
    }

    #[test]
    fn conflicting_ops_of_random_plans_keep_their_order_on_any_number_of_lanes() {
        for seed in 0..200 {
            let mut random = Random(seed);
            let uses: Vec<Vec<Access>> = (0..60).map(|_| random.uses()).collect();
            let cost: Vec<f64> = (0..60).map(|_| 1.0 + random.below(20) as f64).collect();
            let waits = waits(&uses);
            for lanes in 1..=5 {
                let steps = arrange(&waits, &cost, lanes);
                let before = replay(&steps);
                for op in 0..uses.len() {
                    for earlier in (0..op).filter(|&earlier| conflict(&uses[earlier], &uses[op])) {
                        assert!(before.contains(op, earlier), "seed {seed}, {lanes} lanes: {op} before {earlier}");
                    }
                }
                // A recorded graph knows waits only: they must hold the order of each lane.
                let mut by_waits = Before::new(uses.len());
                for step in &steps {
                    step.waits.iter().for_each(|&wait| by_waits.add(step.op, wait));
                }
                for lane in 0..lanes {
                    let own: Vec<usize> = steps.iter().filter(|s| s.lane == lane).map(|s| s.op).collect();
                    assert!(own.windows(2).all(|w| by_waits.contains(w[1], w[0])), "seed {seed}, {lanes} lanes");
                }
            }
        }
    }

    #[test]
    fn what_nobody_waits_for_leaves_the_chain_alone() {
        // A chain of even ops, each with an odd one beside it.
        let waits: Vec<Vec<usize>> = (0..20usize).map(|op| (op / 2 * 2).checked_sub(2).into_iter().collect()).collect();
        let steps = arrange(&waits, &[10.0; 20], 2);
        for step in &steps {
            assert_eq!(step.lane, step.op % 2, "{step:?}");
        }
        let chain: Vec<&Step> = steps.iter().filter(|s| s.lane == 0).collect();
        assert!(chain.windows(2).all(|w| w[1].waits == [w[0].op]), "{chain:?}");
    }

    #[test]
    fn one_lane_runs_one_op_after_the_other() {
        let waits = [vec![], vec![0], vec![0], vec![2]];
        let steps = arrange(&waits, &[1.0, 5.0, 2.0, 1.0], 1);
        let order: Vec<usize> = steps.iter().map(|s| s.op).collect();
        assert_eq!(order, [0, 1, 2, 3]);
        assert_eq!(steps.iter().map(|s| s.waits.len()).collect::<Vec<_>>(), [0, 1, 1, 1]);
    }
}
