//! The assigner against every case of the fixture, and its rules at the edges.

use detect::assigner::{AssignerConfig, AssignerScratch, Assignment, BACKGROUND, PackedBoxes, Predictions, assign};
use detect::boxes::{Corners, Overlap, overlap};
use detect::{Levels, Real};
use testkit::assert_close;

struct Stored<T> {
    anchors: usize,
    nc: usize,
    scores: Vec<T>,
    corners: Vec<Corners<T>>,
}

impl<T: Real> Predictions<T> for Stored<T> {
    fn score(&self, image: usize, anchor: usize, class: u32) -> T {
        self.scores[(image * self.anchors + anchor) * self.nc + class as usize]
    }

    fn corners(&self, image: usize, anchor: usize) -> Corners<T> {
        self.corners[image * self.anchors + anchor]
    }
}

fn run<T: Real>(
    levels: &Levels,
    offsets: &[u32],
    classes: &[u32],
    corners: &[Corners<T>],
    predictions: &Stored<T>,
) -> (Vec<u32>, Vec<T>) {
    let config = AssignerConfig::default();
    let (boxes, anchors) = (corners.len(), (offsets.len() - 1) * levels.anchors());
    // Dirty memory: contents of scratch and result must not matter.
    let mut floats = vec![T::of(7.0); boxes * (config.topk + 2)];
    let mut integers = vec![3; boxes * (config.topk + 1)];
    let (mut owner, mut score) = (vec![1; anchors], vec![T::of(5.0); anchors]);
    let (metrics, maxima) = floats.split_at_mut(boxes * config.topk);
    let (claims, claim_counts) = integers.split_at_mut(boxes * config.topk);
    assign(
        &config,
        levels,
        PackedBoxes { offsets, classes, corners },
        predictions,
        AssignerScratch { metrics, maxima, claims, claim_counts },
        Assignment { owner: &mut owner, score: &mut score },
    );
    (owner, score)
}

fn fixture_levels() -> Levels {
    Levels::new([(8, 12, 8), (4, 6, 16), (2, 3, 32)]).unwrap()
}

fn check_fixture<T: Real>() {
    let arrays = testkit::arrays("pieces/assigner.safetensors");
    let facts = testkit::json("pieces/assigner.json");
    let levels = fixture_levels();
    assert_eq!(levels.anchors(), 126);
    let mut with_score = 0;
    for (case, facts) in facts["cases"].as_object().unwrap() {
        let get = |name: &str| arrays.get(&format!("{case}.{name}")).map_or(&[][..], |a| &a.data);
        let batch = facts["batch"].as_u64().unwrap() as usize;
        let gts = facts["gts"].as_u64().unwrap() as usize;
        let as_corners = |v: &[f64]| v.as_chunks::<4>().0.iter().map(|b| b.map(T::of)).collect::<Vec<_>>();
        let predictions = Stored {
            anchors: 126,
            nc: 4,
            scores: get("in.pd_scores").iter().map(|&v| T::of(v)).collect(),
            corners: as_corners(get("in.pd_bboxes")),
        };
        let (mut offsets, mut classes, mut boxes) = (vec![0], vec![], vec![]);
        let rows = as_corners(get("in.gt_bboxes"));
        for image in 0..batch {
            for row in image * gts..(image + 1) * gts {
                if get("in.mask_gt")[row] != 0.0 {
                    classes.push(get("in.gt_labels")[row] as u32);
                    boxes.push(rows[row]);
                }
            }
            offsets.push(boxes.len() as u32);
        }
        let (owner, score) = run(&levels, &offsets, &classes, &boxes, &predictions);
        if case == "ties" {
            for index in 0..boxes.len() {
                let owned = owner.iter().filter(|&&o| o == index as u32).count();
                assert!((1..=10).contains(&owned), "ties: box {index} owns {owned} anchors");
            }
            assert!(score.iter().all(|s| (0.0..=1.0).contains(&s.wide())));
            continue;
        }
        let mut scores = vec![0.0; batch * 126 * 4];
        for (i, (&owner, &score)) in owner.iter().zip(&score).enumerate() {
            if owner == BACKGROUND {
                assert_eq!(score, T::zero());
                continue;
            }
            let row = offsets[i / 126] as usize + owner as usize;
            scores[i * 4 + classes[row] as usize] = score.wide();
            if score > T::zero() {
                with_score += 1;
                assert_eq!(get("out.fg_mask")[i], 1.0, "{case} anchor {i}");
                assert_eq!(get("out.target_labels")[i], classes[row] as f64, "{case} anchor {i}");
                let want = &get("out.target_bboxes")[i * 4..i * 4 + 4];
                assert_eq!(boxes[row].map(|v| v.wide()), want, "{case} anchor {i}");
            }
        }
        assert_close(&format!("{case} target scores"), &scores, get("out.target_scores"), 1e-6, 1e-5);
        let sum = facts["score_sum"].as_f64().unwrap();
        assert_close(&format!("{case} score sum"), &[scores.iter().sum()], &[sum], 1e-9, 1e-5);
    }
    assert!(with_score > 300, "the fixture has many foreground anchors, {with_score} were compared");
}

#[test]
fn assignment_matches_the_fixture_in_f32() {
    check_fixture::<f32>();
}

#[test]
fn assignment_matches_the_fixture_in_f64() {
    check_fixture::<f64>();
}

/// Predictions from a small linear congruence: boxes of varied size around every anchor.
fn varied(levels: &Levels, images: usize) -> Stored<f32> {
    let mut state = 12345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let mut stored = Stored { anchors: levels.anchors(), nc: 4, scores: vec![], corners: vec![] };
    for i in 0..images * levels.anchors() {
        let (level, cell) = levels.locate(i % levels.anchors());
        let level = &levels.as_slice()[level];
        let (x, y) = level.centre::<f32>(cell);
        let s = level.stride as f32;
        stored.corners.push([
            (x - 2.0 * next()) * s,
            (y - 2.0 * next()) * s,
            (x + 2.0 * next()) * s,
            (y + 2.0 * next()) * s,
        ]);
        stored.scores.extend([next(), next(), next(), next()]);
    }
    stored
}

/// The same rules written the plain way, with every pair of box and anchor.
fn dense(levels: &Levels, classes: &[u32], boxes: &[Corners<f32>], p: &Stored<f32>) -> (Vec<u32>, Vec<f32>) {
    let n = levels.anchors();
    let ciou = |b: usize, a: usize| overlap(Overlap::Ciou, &boxes[b], &p.corners(0, a)).max(0.0);
    let metric = |b: usize, a: usize| {
        let squared = ciou(b, a) * ciou(b, a);
        p.score(0, a, classes[b]).sqrt() * squared * squared * squared
    };
    let mut claims = vec![vec![]; n];
    for b in 0..boxes.len() {
        let inside = |a: usize| {
            let (level, cell) = levels.locate(a);
            let level = &levels.as_slice()[level];
            let (x, y) = level.centre::<f32>(cell);
            let (x, y) = (x * level.stride as f32, y * level.stride as f32);
            let t = &boxes[b];
            (x - t[0]).min(y - t[1]).min(t[2] - x).min(t[3] - y) > 1e-9
        };
        let mut candidates: Vec<usize> = (0..n).filter(|&a| inside(a) && metric(b, a) > 0.0).collect();
        candidates.sort_by(|&a, &c| metric(b, c).total_cmp(&metric(b, a)).then(a.cmp(&c)));
        candidates.truncate(10);
        candidates.iter().for_each(|&a| claims[a].push(b));
    }
    let owner: Vec<u32> = (0..n)
        .map(|a| match claims[a].as_slice() {
            [] => BACKGROUND,
            [one] => *one as u32,
            _ => (0..boxes.len()).rev().max_by(|&b, &c| ciou(b, a).total_cmp(&ciou(c, a))).unwrap() as u32,
        })
        .collect();
    let largest = |b: u32, f: &dyn Fn(usize, usize) -> f32| {
        (0..n).filter(|&a| owner[a] == b).map(|a| f(b as usize, a)).fold(0.0, f32::max)
    };
    let score = (0..n)
        .map(|a| match owner[a] {
            BACKGROUND => 0.0,
            b => metric(b as usize, a) * largest(b, &ciou) / (largest(b, &metric) + 1e-9),
        })
        .collect();
    (owner, score)
}

#[test]
fn walking_cells_gives_exactly_what_the_dense_rules_give() {
    let levels = fixture_levels();
    let predictions = varied(&levels, 1);
    let mut boxes: Vec<Corners<f32>> = (0..60)
        .map(|i| {
            let (x, y) = ((i * 37 % 90) as f32, (i * 23 % 60) as f32);
            [x, y, x + 3.0 + (i * 7 % 40) as f32, y + 2.0 + (i * 11 % 30) as f32]
        })
        .collect();
    // Edges exactly on cell centres, a duplicate, boxes beyond the picture and without area.
    boxes.extend([[4.0, 4.0, 20.0, 28.0], [4.0, 4.0, 20.0, 28.0], [-50.0, -50.0, 500.0, 500.0], [9.0, 9.0, 9.0, 30.0]]);
    let classes: Vec<u32> = (0..boxes.len() as u32).map(|i| i % 4).collect();
    let got = run(&levels, &[0, boxes.len() as u32], &classes, &boxes, &predictions);
    let want = dense(&levels, &classes, &boxes, &predictions);
    assert_eq!(got.0, want.0);
    assert_eq!(got.1, want.1);
}

#[test]
fn thousands_of_boxes_in_one_image_and_none_in_its_neighbours_are_assigned() {
    let levels = Levels::new([(80, 80, 8), (40, 40, 16), (20, 20, 32)]).unwrap();
    let predictions = varied(&levels, 3);
    let boxes: Vec<Corners<f32>> = (0..3000)
        .map(|i| {
            let (x, y) = ((i * 131 % 620) as f32, (i * 57 % 620) as f32);
            [x, y, x + 6.0 + (i % 50) as f32, y + 6.0 + (i % 31) as f32]
        })
        .collect();
    let classes = vec![2; boxes.len()];
    let (owner, score) = run(&levels, &[0, 0, 3000, 3000], &classes, &boxes, &predictions);
    let n = levels.anchors();
    assert!(owner[..n].iter().chain(&owner[2 * n..]).all(|&o| o == BACKGROUND));
    assert!(score[..n].iter().chain(&score[2 * n..]).all(|&s| s == 0.0));
    let foreground = owner[n..2 * n].iter().filter(|&&o| o != BACKGROUND).count();
    assert!(foreground > 2000, "{foreground} foreground anchors");
}

#[test]
fn no_box_non_finite_box_and_non_finite_prediction_do_not_panic() {
    let levels = fixture_levels();
    let mut predictions = varied(&levels, 1);
    predictions.corners[5] = [f32::NAN; 4];
    predictions.corners[6] = [f32::INFINITY; 4];
    let boxes = [[f32::NAN; 4], [0.0, 0.0, f32::INFINITY, f32::INFINITY], [-1.0; 4], [0.0; 4]];
    let (owner, _) = run(&levels, &[0, 4], &[0; 4], &boxes, &predictions);
    assert!(owner.iter().all(|&o| o == BACKGROUND || o == 1));
    let (owner, _) = run::<f32>(&levels, &[0, 0], &[], &[], &predictions);
    assert!(owner.iter().all(|&o| o == BACKGROUND));
}
