//! The recorded training batch of a case and its assignment.

use crate::{Device, Packed, Step, filled, load, pictures};
use detect::FixedAssignment;
use detect::assigner::BACKGROUND;
use detect::boxes::xywh_to_corners;
use graph::OptimizerKind;

/// Pictures, height, width of every recorded training batch.
pub const SHAPE: [usize; 3] = [4, 128, 160];

/// How far a recorded box may be from a target, in pixels.
const SAME: f64 = 1e-3;

/// A training step of a filled model with the recorded batch.
pub fn recorded_step<D: Device>(device: D, case: &str, optimizer: OptimizerKind) -> Step<D> {
    let model = load(case);
    let mut step = Step::on(device, &model, &filled(&model, case), SHAPE, optimizer, false);
    let targets = &testkit::arrays(&format!("train/{case}.safetensors"))["targets"];
    step.upload(&pictures("train", SHAPE[0], SHAPE[1], SHAPE[2]), &Packed::of(&targets.f32(), SHAPE[0]));
    step
}

/// The recorded assignment of every branch, the auxiliary one first. Anchors of score 0, whose box the reference leaves
/// open and which change no loss, are background.
pub fn recorded_assignment(case: &str) -> Vec<FixedAssignment> {
    let arrays = testkit::arrays(&format!("train/{case}.safetensors"));
    let targets = Packed::of(&arrays["targets"].f32(), SHAPE[0]);
    let (h, w) = (SHAPE[1] as f64, SHAPE[2] as f64);
    let boxes = targets.boxes.as_chunks::<4>().0.iter().map(|b| b.map(f64::from));
    let corners: Vec<[f64; 4]> = boxes.map(|b| xywh_to_corners(&[b[0] * w, b[1] * h, b[2] * w, b[3] * h])).collect();
    let branches = ["aux", "main"].into_iter().filter(|b| arrays.contains_key(&format!("{b}_fg_mask")));
    let of_branch = |branch: &str| {
        let array = |what: &str| &arrays[&format!("{branch}_{what}")];
        let (marked, score) = (&array("fg_mask").data, array("target_score").f32());
        let (labels, recorded) = (&array("target_label").data, array("target_box_xyxy_px").data.as_chunks::<4>().0);
        let anchors = score.len() / SHAPE[0];
        let owner_of = |at: usize| {
            if marked[at] == 0.0 || score[at] == 0.0 {
                return BACKGROUND;
            }
            let own = targets.offsets[at / anchors]..targets.offsets[at / anchors + 1];
            let same = |&index: &u32| {
                let near = corners[index as usize].iter().zip(&recorded[at]).all(|(a, b)| (a - b).abs() < SAME);
                near && f64::from(targets.classes[index as usize]) == labels[at]
            };
            let index = own.clone().find(same).unwrap_or_else(|| panic!("{case} {branch} anchor {at}: a box"));
            index - own.start
        };
        FixedAssignment { owner: (0..score.len()).map(owner_of).collect(), score }
    };
    branches.map(of_branch).collect()
}
