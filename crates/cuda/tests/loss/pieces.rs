//! Steps of the loss against the single functions of the fixtures.

use crate::card::{self, Placed, Wanted};
use crate::problem::{BOX_PITCH, Maps, Problem};
use cuda::kernels::loss::Kernel;
use detect::{Levels, LossConfig};
use testkit::assert_close;

const INPUT_HW: (usize, usize) = (64, 96);
const ANCHORS: usize = 126;

fn blank(nc: usize, batch: usize, input_hw: (usize, usize)) -> Problem {
    let levels = [8, 16, 32].map(|s| (input_hw.0 / s, input_hw.1 / s, s));
    let levels = Levels::new(levels).expect("levels");
    let mut problem = Problem {
        name: "fixture",
        config: LossConfig::new(nc, vec![1.0]),
        batch,
        input_hw,
        levels,
        heads: vec![],
        offsets: vec![0],
        classes: vec![],
        boxes: vec![],
    };
    let maps = |cells: usize| Maps {
        boxes: vec![0.0; batch * cells * BOX_PITCH],
        classes: vec![0.0; batch * cells * problem.class_pitch()],
    };
    problem.heads = vec![levels.as_slice().iter().map(|l| maps(l.cells())).collect()];
    problem
}

/// Level, row of its maps and slot of an anchor.
fn place(problem: &Problem, image: usize, anchor: usize) -> (usize, usize, usize) {
    let (level, cell) = problem.levels.locate(anchor);
    let size = &problem.levels.as_slice()[level];
    let row = image * size.cells() + cell;
    (level, row, problem.batch * size.first + row)
}

/// Corners as a row of the targets.
fn as_row(corners: &[f64]) -> [f32; 4] {
    let (h, w) = (INPUT_HW.0 as f64, INPUT_HW.1 as f64);
    let [x0, y0, x1, y1] = corners else { panic!("four corners") };
    [(x0 + x1) / 2.0 / w, (y0 + y1) / 2.0 / h, (x1 - x0) / w, (y1 - y0) / h].map(|v| v as f32)
}

/// The assigner's cases. Predictions go straight to the scratch: no logits decode to some of them.
#[test]
fn assignment_matches_the_fixture() {
    let Some((gpu, loss)) = card::open() else { return };
    let arrays = testkit::arrays("pieces/assigner.safetensors");
    let facts = testkit::json("pieces/assigner.json");
    let mut with_score = 0;
    for (case, facts) in facts["cases"].as_object().expect("cases") {
        let get = |name: &str| arrays.get(&format!("{case}.{name}")).map_or(&[][..], |a| &a.data);
        let number = |name: &str| facts[name].as_u64().expect("a number") as usize;
        let (batch, gts) = (number("batch"), number("gts"));
        let mut problem = blank(4, batch, INPUT_HW);
        let mut corners = vec![];
        for image in 0..batch {
            for row in (image * gts..(image + 1) * gts).filter(|&r| get("in.mask_gt")[r] != 0.0) {
                problem.classes.push(get("in.gt_labels")[row] as u32);
                corners.push(<[f64; 4]>::try_from(&get("in.gt_bboxes")[4 * row..4 * row + 4]).expect("four"));
            }
            problem.offsets.push(corners.len() as u32);
        }
        problem.boxes = corners.iter().map(|c| as_row(c)).collect();
        let mut predicted = vec![0.0f32; batch * ANCHORS * 4];
        for image in 0..batch {
            for anchor in 0..ANCHORS {
                let (level, row, slot) = place(&problem, image, anchor);
                let (at, stride) = (image * ANCHORS + anchor, problem.levels.as_slice()[level].stride as f64);
                for k in 0..4 {
                    predicted[4 * slot + k] = (get("in.pd_bboxes")[4 * at + k] / stride) as f32;
                    let p = get("in.pd_scores")[4 * at + k];
                    let pitch = problem.class_pitch();
                    problem.heads[0][level].classes[row * pitch + k] = (p / (1.0 - p)).ln() as f32;
                }
            }
        }
        let mut placed = Placed::new(&gpu, &problem, Wanted::default());
        placed.launch(&loss, &[Kernel::Prepare]);
        let at = placed.layout.corners as usize;
        placed.scratch.write(at, &predicted).expect("a write");
        // The rounding of fractions must not move an edge off a cell's centre.
        let exact: Vec<f32> = corners.as_flattened().iter().map(|&v| v as f32).collect();
        let at = placed.layout.box_corners as usize;
        placed.scratch.write(at, &exact).expect("a write");
        placed.launch(&loss, &[Kernel::Claim, Kernel::Settle, Kernel::Score]);
        let got = placed.read();
        let (owner, score) = (&got.owner[0], &got.score[0]);
        if case == "ties" {
            for index in 0..corners.len() as u32 {
                let owned = owner.iter().filter(|&&o| o == index).count();
                assert!((1..=10).contains(&owned), "ties: box {index} owns {owned} anchors");
            }
            continue;
        }
        let mut scores = vec![0.0; batch * ANCHORS * 4];
        for (i, (&owner, &score)) in owner.iter().zip(score).enumerate().filter(|(_, (o, _))| **o != u32::MAX) {
            let index = (problem.offsets[i / ANCHORS] + owner) as usize;
            scores[4 * i + problem.classes[index] as usize] = f64::from(score);
            if score > 0.0 {
                with_score += 1;
                assert_eq!(get("out.fg_mask")[i], 1.0, "{case} anchor {i}");
                assert_eq!(get("out.target_labels")[i], f64::from(problem.classes[index]), "{case} anchor {i}");
                assert_eq!(&corners[index], &get("out.target_bboxes")[4 * i..4 * i + 4], "{case} anchor {i}");
            }
        }
        assert_close(&format!("{case} target scores"), &scores, get("out.target_scores"), 1e-6, 1e-4);
    }
    assert!(with_score > 300, "the fixture has many foreground anchors, {with_score} were compared");
}

/// Distances, box losses and their gradient, with the fixture's own assignment: every foreground anchor a box of its own.
#[test]
fn distances_box_losses_and_their_gradient_match_the_fixture() {
    let Some((gpu, loss)) = card::open() else { return };
    let arrays = testkit::arrays("pieces/dfl.safetensors");
    let facts = testkit::json("pieces/dfl.json");
    let get = |name: &str| &arrays[name].data;
    let mut problem = blank(4, 2, INPUT_HW);
    let count = 2 * ANCHORS;
    problem.offsets = vec![0, ANCHORS as u32, count as u32];
    problem.classes = vec![0; count];
    problem.boxes = vec![[0.5, 0.5, 0.1, 0.1]; count];
    let slots: Vec<(usize, usize, usize)> = (0..count).map(|i| place(&problem, i / ANCHORS, i % ANCHORS)).collect();
    let (mut owner, mut score) = (vec![u32::MAX; count], vec![0.0f32; count]);
    let mut targets = vec![0.0f32; 4 * count];
    for (i, &(level, row, slot)) in slots.iter().enumerate() {
        for k in 0..64 {
            problem.heads[0][level].boxes[row * BOX_PITCH + k] = get("logits")[64 * i + k] as f32;
        }
        let stride = problem.levels.as_slice()[level].stride as f64;
        for k in 0..4 {
            targets[4 * i + k] = (get("target_box_grid")[4 * i + k] * stride) as f32;
        }
        if get("fg_mask")[i] != 0.0 {
            owner[slot] = i as u32;
            score[slot] = get("target_scores")[4 * i..4 * i + 4].iter().sum::<f64>() as f32;
        }
    }
    let mut placed = Placed::new(&gpu, &problem, Wanted::default());
    placed.launch(&loss, &Kernel::ALL[..4]);
    let layout = placed.layout;
    let cells: Vec<f32> = placed.scratch.read(layout.corners as usize, 4 * count).expect("corners");
    let cells: Vec<f64> = slots.iter().flat_map(|s| &cells[4 * s.2..4 * s.2 + 4]).map(|&v| f64::from(v)).collect();
    assert_close("corners in cells", &cells, get("xyxy_grid"), 1e-5, 1e-5);
    let sum = facts["target_scores_sum"].as_f64().expect("a sum");
    let mut sums = vec![0.0; layout.score_blocks];
    sums[0] = sum;
    placed.scratch.write(layout.owner as usize, &owner).expect("owners");
    placed.scratch.write(layout.score as usize, &score).expect("scores");
    placed.scratch.write(layout.box_corners as usize, &targets).expect("targets");
    placed.scratch.write(layout.score_sums as usize, &sums).expect("sums");
    placed.launch(&loss, &[Kernel::Terms, Kernel::Finish]);
    let got = placed.read();
    let want = |name: &str| facts[name].as_f64().expect("a loss");
    let values: Vec<f64> = got.values.iter().map(|&v| f64::from(v)).collect();
    assert_close("iou", &[values[4]], &[7.5 * want("loss_iou")], 0.0, 1e-5);
    assert_close("dfl", &[values[6]], &[1.5 * want("loss_dfl")], 0.0, 1e-5);
    assert_close("scores", &[values[8]], &[sum], 0.0, 1e-6);
    // The total is a sum over the batch of two.
    let mut gradient = vec![];
    for &(level, row, _) in &slots {
        let row = &got.gradients[0][level].0[row * BOX_PITCH..][..64];
        gradient.extend(row.iter().map(|&v| f64::from(v) / 2.0));
    }
    assert_close("gradient", &gradient, get("box_loss_grad_7.5iou_1.5dfl"), 2e-6, 1e-4);
}

/// A box that all anchors predict alike goes to the first of them, few candidates or many.
#[test]
fn equal_metrics_go_to_the_lower_anchor() {
    let Some((gpu, loss)) = card::open() else { return };
    for input_hw in [(32, 64), (64, 96), (128, 192), (256, 256)] {
        let mut problem = blank(1, 1, input_hw);
        (problem.offsets, problem.classes, problem.boxes) = (vec![0, 1], vec![0], vec![[0.5, 0.5, 1.0, 1.0]]);
        let mut placed = Placed::new(&gpu, &problem, Wanted::default());
        placed.launch(&loss, &[Kernel::Prepare]);
        let of = |l: &detect::Level| {
            let stride = l.stride as f32;
            [0.0, 0.0, input_hw.1 as f32 / stride, input_hw.0 as f32 / stride].repeat(l.cells())
        };
        let predicted: Vec<f32> = problem.levels.as_slice().iter().flat_map(of).collect();
        let at = placed.layout.corners as usize;
        placed.scratch.write(at, &predicted).expect("a write");
        placed.launch(&loss, &[Kernel::Claim, Kernel::Settle, Kernel::Score]);
        let owner = &placed.read().owner[0];
        assert!(owner[..10].iter().all(|&o| o == 0), "{input_hw:?}: {owner:?}");
        assert!(owner[10..].iter().all(|&o| o == u32::MAX), "{input_hw:?}: {owner:?}");
    }
}
