//! The whole detection loss: value and gradient against the formulas written plainly with a frozen
//! assignment, layout of the gradient maps, independence of threads, refusals.

use detect::assigner::{AssignerConfig, AssignerScratch, Assignment, BACKGROUND, PackedBoxes, Predictions, assign};
use detect::boxes::{Corners, Overlap, overlap, xywh_to_corners};
use detect::{
    Branch, BranchGradient, FixedAssignment, Levels, LossConfig, LossError, LossOutput, MapMut, MapRef, Real, Scratch,
    Targets, assigned_loss, detection_loss, scratch_len,
};
use testkit::assert_close;

const INPUT_HW: (usize, usize) = (64, 96);
const SIZES: [(usize, usize); 3] = [(8, 12), (4, 6), (2, 3)];
const BATCH: usize = 3;
const SENTINEL: f64 = 77.0;

/// One branch's maps with padded rows; `data[level]` holds (box logits, class logits).
struct Head<T> {
    data: Vec<(Vec<T>, Vec<T>)>,
    box_pitch: usize,
    class_pitch: usize,
}

impl<T: Real> Head<T> {
    fn random(nc: usize, seed: usize, box_pitch: usize, class_pitch: usize) -> Self {
        let fill = |name: &str, level: usize, pitch: usize, channels: usize, scale: f64, offset: f64| -> Vec<T> {
            let rows = BATCH * SIZES[level].0 * SIZES[level].1;
            let name = format!("{name}.{seed}.{level}");
            let value = |i: usize| match i % pitch < channels {
                true => offset + scale * testkit::fill_v(&name, i),
                false => SENTINEL,
            };
            (0..rows * pitch).map(|i| T::of((value(i) as f32) as f64)).collect()
        };
        let data = (0..3)
            .map(|l| (fill("box", l, box_pitch, 64, 2.5, 0.0), fill("class", l, class_pitch, nc, 2.0, -1.5)))
            .collect();
        Self { data, box_pitch, class_pitch }
    }

    fn boxes(&self) -> Vec<MapRef<'_, T>> {
        (0..3).map(|l| MapRef { data: &self.data[l].0, pitch: self.box_pitch, h: SIZES[l].0, w: SIZES[l].1 }).collect()
    }

    fn classes(&self) -> Vec<MapRef<'_, T>> {
        (0..3)
            .map(|l| MapRef { data: &self.data[l].1, pitch: self.class_pitch, h: SIZES[l].0, w: SIZES[l].1 })
            .collect()
    }
}

/// Image 1 has no box; image 2 holds a duplicate and a box at the border.
struct Boxes {
    offsets: Vec<u32>,
    classes: Vec<u32>,
    rows: Vec<[f32; 4]>,
}

fn boxes(nc: usize) -> Boxes {
    let rows = vec![
        [0.31, 0.42, 0.41, 0.53],
        [0.34, 0.45, 0.37, 0.61],
        [0.72, 0.33, 0.29, 0.47],
        [0.5, 0.5, 1.0, 1.0],
        [0.61, 0.57, 0.33, 0.41],
        [0.61, 0.57, 0.33, 0.41],
        [0.13, 0.17, 0.26, 0.34],
    ];
    let classes = [0, 1, 2, 1, 2, 0, 1].map(|c| c % nc as u32).to_vec();
    Boxes { offsets: vec![0, 3, 3, 7], classes, rows }
}

type Gradients<T> = Vec<Vec<(Vec<T>, Vec<T>)>>;

/// Runs the loss; gradient rows are padded by two zeroed channels, what lies beyond must stay.
fn run<T: Real>(config: &LossConfig, heads: &[Head<T>], targets: &Boxes, want: bool) -> (LossOutput, Gradients<T>) {
    run_assigned(config, heads, targets, None, want)
}

/// [`run`], with `fixed` in place of the assigner where it is given.
fn run_assigned<T: Real>(
    config: &LossConfig,
    heads: &[Head<T>],
    targets: &Boxes,
    fixed: Option<&[FixedAssignment]>,
    want: bool,
) -> (LossOutput, Gradients<T>) {
    let maps: Vec<_> = heads.iter().map(|h| (h.boxes(), h.classes())).collect();
    let branches: Vec<_> = maps.iter().map(|(boxes, classes)| Branch { boxes, classes }).collect();
    let blank = |v: &Vec<T>| vec![T::of(SENTINEL); v.len()];
    let mut gradients: Gradients<T> =
        heads.iter().map(|h| h.data.iter().map(|(b, c)| (blank(b), blank(c))).collect()).collect();
    let mut views: Vec<_> = gradients
        .iter_mut()
        .zip(heads)
        .map(|(levels, head)| {
            let (mut b, mut c) = (vec![], vec![]);
            for (l, (boxes, classes)) in levels.iter_mut().enumerate() {
                let (h, w) = SIZES[l];
                b.push(MapMut { data: boxes, pitch: head.box_pitch, h, w, channels_padded: 66 });
                c.push(MapMut { data: classes, pitch: head.class_pitch, h, w, channels_padded: config.nc + 2 });
            }
            (b, c)
        })
        .collect();
    let mut gradient_branches: Vec<_> =
        views.iter_mut().map(|(boxes, classes)| BranchGradient { boxes, classes }).collect();
    let anchors = SIZES.iter().map(|(h, w)| h * w).sum();
    let (floats, integers) = scratch_len(config, BATCH, anchors, targets.rows.len());
    // Dirty memory: contents must not matter.
    let (mut floats, mut integers) = (vec![T::of(9.0); floats], vec![5; integers]);
    let targets = Targets { offsets: &targets.offsets, classes: &targets.classes, boxes: &targets.rows };
    let scratch = Scratch { floats: &mut floats, integers: &mut integers };
    let wanted = want.then_some(&mut gradient_branches[..]);
    let output = match fixed {
        None => detection_loss(config, BATCH, INPUT_HW, &branches, &targets, scratch, wanted),
        Some(fixed) => assigned_loss(config, BATCH, INPUT_HW, &branches, (&targets, fixed), scratch, wanted),
    }
    .unwrap();
    drop(gradient_branches);
    drop(views);
    (output, gradients)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|x| x.exp()).sum();
    x.iter().map(|x| x.exp() / sum).collect()
}

/// Plain formulas of one branch in f64.
struct Plain<'a> {
    config: &'a LossConfig,
    levels: Levels,
    head: &'a Head<f64>,
    targets: &'a Boxes,
    corners: Vec<Corners<f64>>,
    owner: Vec<u32>,
    score: Vec<f64>,
}

impl Predictions<f64> for Plain<'_> {
    fn score(&self, image: usize, anchor: usize, class: u32) -> f64 {
        sigmoid(self.class_logits(image, anchor)[class as usize])
    }

    fn corners(&self, image: usize, anchor: usize) -> Corners<f64> {
        let stride = self.stride(anchor);
        self.decoded(anchor, self.box_logits(image, anchor)).map(|v| v * stride)
    }
}

impl<'a> Plain<'a> {
    fn new(config: &'a LossConfig, head: &'a Head<f64>, targets: &'a Boxes) -> Self {
        let levels = Levels::new([(8, 12, 8), (4, 6, 16), (2, 3, 32)]).unwrap();
        let (h, w) = (INPUT_HW.0 as f64, INPUT_HW.1 as f64);
        let px = |b: &[f32; 4]| {
            let b = b.map(f64::from);
            xywh_to_corners(&[b[0] * w, b[1] * h, b[2] * w, b[3] * h])
        };
        let corners: Vec<_> = targets.rows.iter().map(px).collect();
        let mut plain = Self { config, levels, head, targets, corners, owner: vec![], score: vec![] };
        let (n, k) = (plain.corners.len(), config.topk);
        let (mut owner, mut score) = (vec![0; BATCH * levels.anchors()], vec![0.0; BATCH * levels.anchors()]);
        assign(
            &AssignerConfig { topk: k, alpha: config.alpha, beta: config.beta },
            &levels,
            PackedBoxes { offsets: &targets.offsets, classes: &targets.classes, corners: &plain.corners },
            &plain,
            AssignerScratch {
                metrics: &mut vec![0.0; n * k],
                maxima: &mut vec![0.0; 2 * n],
                claims: &mut vec![0; n * k],
                claim_counts: &mut vec![0; n],
            },
            Assignment { owner: &mut owner, score: &mut score },
        );
        plain.owner = owner;
        plain.score = score;
        plain
    }

    fn stride(&self, anchor: usize) -> f64 {
        self.levels.as_slice()[self.levels.locate(anchor).0].stride as f64
    }

    fn row(&self, image: usize, anchor: usize) -> (usize, usize) {
        let (level, cell) = self.levels.locate(anchor);
        (level, image * self.levels.as_slice()[level].cells() + cell)
    }

    fn box_logits(&self, image: usize, anchor: usize) -> &[f64] {
        let (level, row) = self.row(image, anchor);
        &self.head.data[level].0[row * self.head.box_pitch..][..64]
    }

    fn class_logits(&self, image: usize, anchor: usize) -> &[f64] {
        let (level, row) = self.row(image, anchor);
        &self.head.data[level].1[row * self.head.class_pitch..][..self.config.nc]
    }

    fn centre(&self, anchor: usize) -> (f64, f64) {
        let (level, cell) = self.levels.locate(anchor);
        self.levels.as_slice()[level].centre(cell)
    }

    fn decoded(&self, anchor: usize, logits: &[f64]) -> Corners<f64> {
        let d: Vec<f64> =
            logits.chunks(16).map(|side| softmax(side).iter().enumerate().map(|(i, p)| i as f64 * p).sum()).collect();
        let (x, y) = self.centre(anchor);
        [x - d[0], y - d[1], x + d[2], y + d[3]]
    }

    fn normaliser(&self) -> f64 {
        self.score.iter().sum::<f64>().max(1.0)
    }

    fn owner(&self, image: usize, anchor: usize) -> Option<(usize, f64)> {
        let i = image * self.levels.anchors() + anchor;
        (self.owner[i] != BACKGROUND)
            .then(|| (self.targets.offsets[image] as usize + self.owner[i] as usize, self.score[i]))
    }

    fn aspect(&self, p: &Corners<f64>, t: &Corners<f64>) -> f64 {
        let angle = |b: &Corners<f64>| ((b[2] - b[0]) / (b[3] - b[1] + 1e-7)).atan();
        4.0 / std::f64::consts::PI.powi(2) * (angle(t) - angle(p)).powi(2)
    }

    /// (1 - CIoU, DFL) of an anchor, weighted and normalised, for other logits than the stored ones: alpha of
    /// CIoU stays at its stored value, as a constant must.
    fn box_loss(&self, image: usize, anchor: usize, logits: &[f64]) -> (f64, f64) {
        let Some((target, score)) = self.owner(image, anchor) else { return (0.0, 0.0) };
        let target = self.corners[target].map(|v| v / self.stride(anchor));
        let stored = self.decoded(anchor, self.box_logits(image, anchor));
        let v = self.aspect(&stored, &target);
        let alpha = v / (v - overlap(Overlap::Iou, &stored, &target) + 1.0 + 1e-7);
        let predicted = self.decoded(anchor, logits);
        let ciou = overlap(Overlap::Diou, &predicted, &target) - alpha * self.aspect(&predicted, &target);
        let (x, y) = self.centre(anchor);
        let ltrb = [x - target[0], y - target[1], target[2] - x, target[3] - y].map(|d| d.clamp(0.0, 14.99));
        let mut dfl = 0.0;
        for (side, d) in logits.chunks(16).zip(ltrb) {
            let p = softmax(side);
            let right = d - d.floor();
            dfl -= (p[d as usize].ln() * (1.0 - right) + p[d as usize + 1].ln() * right) / 4.0;
        }
        let weight = score / self.normaliser();
        ((1.0 - ciou) * weight * self.config.box_gain, dfl * weight * self.config.dfl_gain)
    }

    fn class_loss(&self, image: usize, anchor: usize, logits: &[f64]) -> f64 {
        let object = self.owner(image, anchor).map(|(t, score)| (self.targets.classes[t] as usize, score));
        let mut sum = 0.0;
        for (class, &x) in logits.iter().enumerate() {
            let s = self.config.label_smoothing;
            let share = |assigned: usize| if assigned == class { 1.0 - s / 2.0 } else { s / 2.0 };
            let t = object.map_or(0.0, |(assigned, score)| score * share(assigned));
            let p = sigmoid(x);
            let mut loss = -(self.config.cls_pw * t * p.ln() + (1.0 - t) * (1.0 - p).ln());
            if self.config.fl_gamma > 0.0 {
                let hit = t * p + (1.0 - t) * (1.0 - p);
                loss *= (t * 0.25 + (1.0 - t) * 0.75) * (1.0 - hit).powf(self.config.fl_gamma);
            }
            sum += loss;
        }
        sum / self.normaliser() * self.config.cls_gain
    }
}

/// An assignment that no assigner makes: every positive has the next box of its image, at half of its score.
fn shifted(plain: &Plain<'_>) -> FixedAssignment {
    let anchors = plain.levels.anchors();
    let next = |(at, &owner): (usize, &u32)| match plain.targets.offsets[at / anchors..] {
        [first, end, ..] if owner != BACKGROUND => (owner + 1) % (end - first),
        _ => BACKGROUND,
    };
    let owner = plain.owner.iter().enumerate().map(next).collect();
    FixedAssignment { owner, score: plain.score.iter().map(|&s| 0.5 * s as f32).collect() }
}

fn check_against_plain_formulas(config: &LossConfig) {
    check(config, false);
}

/// `given`: with a shifted assignment instead of the assigner's.
fn check(config: &LossConfig, given: bool) {
    let nc = config.nc;
    let count = config.branch_weights.len();
    let heads: Vec<Head<f64>> = (0..count).map(|b| Head::random(nc, b, 64 + 4 * (b + 1), nc + 3)).collect();
    let targets = boxes(nc);
    let fixed: Vec<FixedAssignment> = heads.iter().map(|h| shifted(&Plain::new(config, h, &targets))).collect();
    let fixed = given.then_some(&fixed[..]);
    let (output, gradients) = run_assigned(config, &heads, &targets, fixed, true);
    let (without, _) = run_assigned(config, &heads, &targets, fixed, false);
    assert_close("loss without gradient", &[without.total], &[output.total], 0.0, 1e-12);
    let mut items = [0.0; 3];
    let mut foreground = 0;
    for (index, (head, weight)) in heads.iter().zip(&config.branch_weights).enumerate() {
        let mut plain = Plain::new(config, head, &targets);
        if let Some(fixed) = fixed {
            plain.owner.clone_from(&fixed[index].owner);
            plain.score = fixed[index].score.iter().map(|&s| s.into()).collect();
        }
        let losses = output.branches()[index];
        let scale = weight * BATCH as f64;
        let mut sums = [0.0; 3];
        for image in 0..BATCH {
            for anchor in 0..plain.levels.anchors() {
                let (boxes, classes) = (plain.box_logits(image, anchor), plain.class_logits(image, anchor));
                let (iou, dfl) = plain.box_loss(image, anchor, boxes);
                sums[0] += iou;
                sums[1] += plain.class_loss(image, anchor, classes);
                sums[2] += dfl;
                foreground += plain.owner(image, anchor).is_some() as usize;

                let (level, row) = plain.row(image, anchor);
                let got = &gradients[index][level].0[row * head.box_pitch..][..head.box_pitch];
                let total = |logits: &[f64]| {
                    let (iou, dfl) = plain.box_loss(image, anchor, logits);
                    (iou + dfl) * scale
                };
                check_row(&format!("branch {index} image {image} anchor {anchor} box"), got, boxes, total);
                let got = &gradients[index][level].1[row * head.class_pitch..][..head.class_pitch];
                let total = |logits: &[f64]| plain.class_loss(image, anchor, logits) * scale;
                check_row(&format!("branch {index} image {image} anchor {anchor} class"), got, classes, total);
            }
        }
        let got = [losses.box_loss, losses.cls_loss, losses.dfl_loss];
        assert_close(&format!("branch {index} items"), &got, &sums, 1e-12, 1e-10);
        assert_close("score sum", &[losses.target_score_sum], &[plain.score.iter().sum()], 0.0, 1e-10);
        items.iter_mut().zip(sums).for_each(|(item, sum)| *item += weight * sum);
    }
    assert!(foreground > 20 * count, "{foreground} foreground anchors");
    assert_eq!(output.branches().iter().map(|b| b.foreground).sum::<usize>(), foreground);
    assert_close("items", &[output.box_loss, output.cls_loss, output.dfl_loss], &items, 0.0, 1e-10);
    assert_close("total", &[output.total], &[items.iter().sum::<f64>() * BATCH as f64], 0.0, 1e-10);
}

/// Central differences of `total` in every logit, zeros in the padding, nothing beyond it.
fn check_row(what: &str, got: &[f64], logits: &[f64], total: impl Fn(&[f64]) -> f64) {
    let h = 1e-5;
    let want: Vec<f64> = (0..logits.len())
        .map(|i| {
            let at = |delta: f64| {
                let mut moved = logits.to_vec();
                moved[i] += delta;
                total(&moved)
            };
            (at(h) - at(-h)) / (2.0 * h)
        })
        .collect();
    assert_close(what, &got[..logits.len()], &want, 3e-9, 1e-6);
    assert_eq!(got[logits.len()..logits.len() + 2], [0.0; 2], "{what}: padding");
    assert!(got[logits.len() + 2..].iter().all(|&v| v == SENTINEL), "{what}: beyond the padding");
}

#[test]
fn single_branch_matches_plain_formulas_and_central_differences() {
    check_against_plain_formulas(&LossConfig::new(3, vec![1.0]));
}

#[test]
fn dual_branches_with_many_classes_match_plain_formulas_and_central_differences() {
    check_against_plain_formulas(&LossConfig::new(19, vec![0.25, 1.0]));
}

#[test]
fn a_given_assignment_matches_plain_formulas_and_central_differences() {
    check(&LossConfig::new(3, vec![0.25, 1.0]), true);
}

/// Runs the loss of one branch with an assignment of zeros that was changed, and returns the refusal.
fn refused_assignment(change: impl Fn(&mut Vec<FixedAssignment>)) -> LossError {
    let (config, targets, head) = (LossConfig::new(3, vec![1.0]), boxes(3), Head::<f32>::random(3, 0, 68, 6));
    let (b, c) = (head.boxes(), head.classes());
    let (floats, integers) = scratch_len(&config, BATCH, 126, 7);
    let mut fixed = vec![FixedAssignment { owner: vec![BACKGROUND; BATCH * 126], score: vec![0.0; BATCH * 126] }];
    change(&mut fixed);
    let targets = Targets { offsets: &targets.offsets, classes: &targets.classes, boxes: &targets.rows };
    let scratch = Scratch { floats: &mut vec![0.0; floats], integers: &mut vec![0; integers] };
    let branch = Branch { boxes: &b, classes: &c };
    assigned_loss(&config, BATCH, INPUT_HW, &[branch], (&targets, &fixed), scratch, None).unwrap_err()
}

#[test]
fn a_given_assignment_that_does_not_fit_is_refused() {
    assert!(matches!(refused_assignment(Vec::clear), LossError::Assignments { assignments: 0, branches: 1 }));
    // Image 0 has three boxes, image 1 none.
    for (anchor, owner) in [(5, 3), (126, 0)] {
        let refusal = refused_assignment(|f| f[0].owner[anchor] = owner);
        assert!(matches!(refusal, LossError::Assignment { branch: 0, .. }), "{refusal}");
    }
    let short = refused_assignment(|f| f[0].score.truncate(377));
    assert!(matches!(short, LossError::Assignment { scores: 377, needed: 378, .. }), "{short}");
}

#[test]
fn focal_loss_and_positive_weight_match_plain_formulas_and_central_differences() {
    check_against_plain_formulas(&LossConfig { fl_gamma: 1.5, cls_pw: 2.5, ..LossConfig::new(3, vec![0.25, 1.0]) });
    check_against_plain_formulas(&LossConfig { cls_pw: 0.4, ..LossConfig::new(9, vec![1.0]) });
}

#[test]
fn label_smoothing_and_other_exponents_match_plain_formulas_and_central_differences() {
    let base = LossConfig::new(9, vec![1.0]);
    check_against_plain_formulas(&LossConfig { label_smoothing: 0.1, alpha: 1.0, beta: 4.0, topk: 7, ..base });
    let dual = LossConfig::new(3, vec![0.25, 1.0]);
    check_against_plain_formulas(&LossConfig { label_smoothing: 0.3, fl_gamma: 2.0, cls_pw: 1.7, ..dual });
    check_against_plain_formulas(&LossConfig { label_smoothing: 0.9, ..LossConfig::new(1, vec![1.0]) });
}

#[test]
fn label_smoothing_moves_only_the_classes_of_anchors_with_an_object() {
    let plain = LossConfig::new(9, vec![1.0]);
    let smooth = LossConfig { label_smoothing: 0.2, ..plain.clone() };
    let heads = [Head::<f32>::random(9, 0, 68, 12)];
    let (without, without_gradients) = run(&plain, &heads, &boxes(9), true);
    let (with, with_gradients) = run(&smooth, &heads, &boxes(9), true);
    assert_eq!((with.box_loss, with.dfl_loss), (without.box_loss, without.dfl_loss));
    assert_eq!(with.branches()[0].target_score_sum, without.branches()[0].target_score_sum);
    assert_ne!(with.cls_loss, without.cls_loss);
    let mut moved = 0;
    for (with, without) in with_gradients[0].iter().zip(&without_gradients[0]) {
        assert!(with.0 == without.0, "box gradients");
        moved += with.1.chunks(12).zip(without.1.chunks(12)).filter(|(a, b)| a != b).count();
    }
    assert_eq!(moved, with.branches()[0].foreground);
}

#[test]
fn a_batch_without_boxes_has_only_class_loss() {
    let config = LossConfig::new(3, vec![1.0]);
    let heads = [Head::<f32>::random(3, 0, 68, 6)];
    let targets = Boxes { offsets: vec![0; BATCH + 1], classes: vec![], rows: vec![] };
    let (output, gradients) = run(&config, &heads, &targets, true);
    assert_eq!((output.box_loss, output.dfl_loss), (0.0, 0.0));
    assert_eq!((output.branches()[0].foreground, output.branches()[0].target_score_sum), (0, 0.0));
    assert!(output.cls_loss > 1.0);
    for (boxes, classes) in &gradients[0] {
        assert!(boxes.chunks(68).all(|row| row[..66].iter().all(|&v| v == 0.0)));
        assert!(classes.chunks(6).all(|row| row[..3].iter().all(|&v| v > 0.0)));
    }
}

#[test]
fn f32_agrees_with_f64() {
    let config = LossConfig::new(19, vec![0.25, 1.0]);
    let wide: Vec<Head<f64>> = (0..2).map(|b| Head::random(19, b, 68, 22)).collect();
    let narrow: Vec<Head<f32>> = (0..2).map(|b| Head::random(19, b, 68, 22)).collect();
    let (want, want_gradients) = run(&config, &wide, &boxes(19), true);
    let (got, got_gradients) = run(&config, &narrow, &boxes(19), true);
    assert_close("total", &[got.total], &[want.total], 0.0, 2e-6);
    for (got, want) in got_gradients.iter().flatten().zip(want_gradients.iter().flatten()) {
        let widen = |v: &[f32]| v.iter().map(|&v| v as f64).collect::<Vec<_>>();
        assert_close("box gradient", &widen(&got.0), &want.0, 2e-6, 1e-4);
        assert_close("class gradient", &widen(&got.1), &want.1, 1e-7, 1e-5);
    }
}

#[test]
fn result_bits_do_not_depend_on_the_number_of_threads() {
    let config = LossConfig::new(19, vec![0.25, 1.0]);
    let heads: Vec<Head<f32>> = (0..2).map(|b| Head::random(19, b, 68, 22)).collect();
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run(&config, &heads, &boxes(19), true))
    };
    let one = with(1);
    for threads in [2, 3] {
        assert!(with(threads) == one, "{threads} threads differ from one");
    }
}

#[test]
fn a_box_logit_that_is_not_a_number_shows_in_the_loss_even_on_a_background_anchor() {
    let config = LossConfig::new(3, vec![1.0]);
    let mut heads = [Head::<f32>::random(3, 0, 68, 6)];
    // Image 1 has no box, so all of its anchors are background.
    let row = SIZES[0].0 * SIZES[0].1 + 5;
    heads[0].data[0].0[row * 68 + 7] = f32::NAN;
    let (output, _) = run(&config, &heads, &boxes(3), true);
    assert!(output.box_loss.is_nan() && output.total.is_nan());
    assert!(output.cls_loss.is_finite());
}

/// Runs the loss with one argument changed and returns the refusal.
fn refusal(change: impl Fn(&mut LossConfig, &mut Boxes, &mut Head<f32>, &mut usize)) -> LossError {
    let mut config = LossConfig::new(3, vec![1.0]);
    let (mut targets, mut head, mut missing) = (boxes(3), Head::<f32>::random(3, 0, 68, 6), 0);
    change(&mut config, &mut targets, &mut head, &mut missing);
    let (b, c) = (head.boxes(), head.classes());
    let (floats, integers) = scratch_len(&config, BATCH, 126, 7);
    let (mut floats, mut integers) = (vec![0.0; floats - missing], vec![0; integers]);
    detection_loss(
        &config,
        BATCH,
        INPUT_HW,
        &[Branch { boxes: &b, classes: &c }],
        &Targets { offsets: &targets.offsets, classes: &targets.classes, boxes: &targets.rows },
        Scratch { floats: &mut floats, integers: &mut integers },
        None,
    )
    .unwrap_err()
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_what_is_wrong() {
    assert!(matches!(refusal(|_, t, _, _| t.classes[4] = 3), LossError::Class { index: 4, class: 3, nc: 3 }));
    assert!(matches!(refusal(|_, t, _, _| t.offsets[1] = 5), LossError::Targets { .. }));
    assert!(matches!(refusal(|_, t, _, _| t.offsets[3] = 6), LossError::Targets { .. }));
    assert!(matches!(refusal(|_, t, _, _| t.offsets.truncate(3)), LossError::Targets { .. }));
    assert!(matches!(refusal(|c, _, _, _| c.branch_weights.push(1.0)), LossError::Branches { .. }));
    assert!(matches!(refusal(|c, _, _, _| c.strides.push(64)), LossError::Levels { .. }));
    assert!(matches!(refusal(|c, _, _, _| c.topk = 0), LossError::ZeroSetting));
    assert!(matches!(refusal(|_, _, _, missing| *missing = 1), LossError::Scratch { .. }));
    let short = refusal(|_, _, h, _| h.data[1].1.truncate(70));
    assert!(matches!(short, LossError::Map { branch: 0, level: 1, what: "class logits", len: 70, .. }));
    assert!(short.to_string().contains("class logits: 4x6 cells of pitch 6"), "{short}");
}
