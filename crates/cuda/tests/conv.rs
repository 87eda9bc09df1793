//! Convolutions on a card against their definition in float64, every way that a library offers.

mod kernels_common;

use cuda::conv::{Convolutions, Pass, Places, Request, Shape, reads_bytes, workspace};
use cuda::{Buffer, Format, Gpu};
use kernels_common::{decode, encode, rounded};
use std::collections::{BTreeMap, BTreeSet};

/// A card with its libraries; `None`, with the reason printed, where there is none.
fn card() -> Option<(Gpu, Convolutions)> {
    if Gpu::count() == 0 {
        println!("skipped: no NVIDIA GPU");
        return None;
    }
    let gpu = Gpu::open(0).expect("a card");
    match Convolutions::new(&gpu, None) {
        Ok(convolutions) => Some((gpu, convolutions)),
        Err(missing) => {
            println!("skipped: {missing}");
            None
        }
    }
}

/// Uniform in (-1, 1), and as `format` stores it.
fn random(format: Format, seed: u64, i: usize) -> f64 {
    let unit = (testkit::mix(seed << 40 | i as u64) >> 11) as f64 / (1u64 << 53) as f64;
    rounded(format, 2.0 * unit - 1.0)
}

/// Rows of channels in memory, as they lie there: what is between the rows is poison.
#[derive(Clone)]
struct Tensor {
    format: Format,
    rows: usize,
    channels: usize,
    pitch: usize,
    /// Elements before the first row: the range does not start with its tensor.
    before: usize,
    values: Vec<f64>,
}

impl Tensor {
    fn random(format: Format, rows: usize, channels: usize, pitch: usize, seed: u64) -> Self {
        let before = if pitch > channels { 8 } else { 0 };
        let values = vec![f64::NAN; before + rows * pitch];
        let mut made = Self { format, rows, channels, pitch, before, values };
        for row in 0..rows {
            for c in 0..channels {
                let at = made.at(row, c);
                made.values[at] = random(format, seed, row * channels + c);
            }
        }
        made
    }

    /// What a picture of bytes counts as, over 8 channels.
    fn of_bytes(format: Format, picture: &[u8]) -> Self {
        let pixel = |p: &[u8]| std::array::from_fn(|c| p.get(c).map_or(0.0, |&v| f64::from(f32::from(v) / 255.0)));
        let values: Vec<f64> = picture.chunks_exact(3).flat_map(|p| -> [f64; 8] { pixel(p) }).collect();
        let values = values.into_iter().map(|v| rounded(format, v)).collect();
        Self { format, rows: picture.len() / 3, channels: 8, pitch: 8, before: 0, values }
    }

    fn poisoned(&self) -> Self {
        Self { values: vec![f64::NAN; self.values.len()], ..self.clone() }
    }

    fn at(&self, row: usize, channel: usize) -> usize {
        self.before + row * self.pitch + channel
    }

    fn get(&self, row: usize, channel: usize) -> f64 {
        self.values[self.at(row, channel)]
    }

    fn upload(&self, gpu: &Gpu) -> (Buffer, u64) {
        let mut buffer = gpu.allocate(self.values.len() * self.format.bytes()).expect("memory");
        let bytes: Vec<u8> = self.values.iter().flat_map(|&v| encode(self.format, v)).collect();
        buffer.write(0, &bytes).expect("written");
        let address = buffer.address() + (self.before * self.format.bytes()) as u64;
        (buffer, address)
    }
}

/// Calls `f(x's row, first input channel, y's row, output channel, first weight)` for every product of a convolution over
/// the inputs of one group.
fn each(s: &Shape, mut f: impl FnMut(usize, usize, usize, usize, usize)) {
    let (per_in, per_out) = (s.inputs / s.groups, s.outputs / s.groups);
    for n in 0..s.images {
        for (oy, ox) in (0..s.out_height()).flat_map(|oy| (0..s.out_width()).map(move |ox| (oy, ox))) {
            let y = (n * s.out_height() + oy) * s.out_width() + ox;
            for (ky, kx) in (0..s.kernel).flat_map(|ky| (0..s.kernel).map(move |kx| (ky, kx))) {
                let Some(iy) = (oy * s.stride + ky).checked_sub(s.pad).filter(|&iy| iy < s.height) else { continue };
                let Some(ix) = (ox * s.stride + kx).checked_sub(s.pad).filter(|&ix| ix < s.width) else { continue };
                let x = (n * s.height + iy) * s.width + ix;
                for o in 0..s.outputs {
                    f(x, o / per_out * per_in, y, o, ((o * s.kernel + ky) * s.kernel + kx) * per_in);
                }
            }
        }
    }
}

/// Largest relative L2 distance from exact arithmetic on the same operands.
fn tolerance(request: &Request, way: &str) -> f64 {
    let by_half = match request.format {
        Format::F32 => 0.0,
        Format::F16 => 6e-4,
        Format::Bf16 => 4e-3,
    };
    // Gradients of weights that cuDNN makes are rounded to half precision before they are added, and logits of its older
    // interface before they are cast.
    let writes_single = way.starts_with("cublaslt") || ["direct", "tiles"].contains(&way) || way.contains("engine");
    match request.pass {
        _ if request.format == Format::F32 && request.tf32 => 2e-3,
        Pass::Weight if way.starts_with("cudnn") => 1e-5 + by_half,
        Pass::Weight => 1e-5,
        Pass::Forward if request.output == Format::F32 && writes_single => 1e-5,
        _ => 1e-5 + by_half,
    }
}

/// Runs a request in every way and compares; the ways' names.
fn check(gpu: &Gpu, convolutions: &mut Convolutions, request: Request, seed: u64) -> Vec<String> {
    let s = &request.shape;
    let (format, single) = (request.format, Format::F32);
    let per_in = s.inputs / s.groups;
    let of = |pass, other| if request.pass == pass { other } else { format };
    let output = if request.pass == Pass::Forward { request.output } else { format };
    let picture: Vec<u8> = (0..s.in_pixels() * 3).map(|i| (testkit::mix(seed << 40 | i as u64) >> 20) as u8).collect();
    let x = match request.bytes {
        true => Tensor::of_bytes(format, &picture),
        false => Tensor::random(format, s.in_pixels(), s.inputs, s.input_pitch, seed),
    };
    let w = Tensor::random(of(Pass::Weight, single), 1, s.weights(), s.weights(), seed + 1);
    let y = Tensor::random(output, s.out_pixels(), s.outputs, s.output_pitch, seed + 2);
    let mut operands = [x, w, y];
    let result = match request.pass {
        Pass::Data => 0,
        Pass::Weight => 1,
        Pass::Forward => 2,
    };
    let before = operands[result].clone();
    if !request.add {
        operands[result] = before.poisoned();
    }
    let [x, w, y] = &operands;
    let mut want = vec![0.0; before.values.len()];
    each(s, |px, i0, py, o, w0| match request.pass {
        Pass::Forward => {
            want[y.at(py, o)] += (0..per_in).map(|i| x.get(px, i0 + i) * w.get(0, w0 + i)).sum::<f64>();
        }
        Pass::Data => (0..per_in).for_each(|i| want[x.at(px, i0 + i)] += y.get(py, o) * w.get(0, w0 + i)),
        Pass::Weight => (0..per_in).for_each(|i| want[w0 + i] += y.get(py, o) * x.get(px, i0 + i)),
    });
    let ids = convolutions.prepare_each(request).unwrap_or_else(|e| panic!("{request}: {e}"));
    let mut ways = Vec::new();
    for id in ids {
        let way = convolutions.choice(id).expect("prepared").to_owned();
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut held: Vec<(Buffer, u64)> = operands.iter().map(|t| t.upload(gpu)).collect();
            if request.bytes {
                let mut buffer = gpu.allocate(picture.len()).expect("memory");
                buffer.write(0, &picture).expect("written");
                held[0] = (buffer, 0);
                held[0].1 = held[0].0.address();
            }
            let space = usize::try_from(workspace(&request)).expect("a size");
            let mut scratch = gpu.allocate(space).expect("memory");
            scratch.write(0, &vec![0xFFu8; space.min(1 << 20)]).expect("written");
            let places = Places { x: held[0].1, w: held[1].1, y: held[2].1, workspace: scratch.address() };
            // SAFETY: memory of the request's extents.
            unsafe { convolutions.run(id, places) }.unwrap_or_else(|e| panic!("{request} by {way}: {e}"));
            runs.push(held[result].0.read::<u8>(0, held[result].0.bytes()).expect("read"));
        }
        assert!(runs[0] == runs[1], "{request} by {way}: two runs differ, seed {seed}");
        let elements = runs[0].chunks_exact(before.format.bytes());
        let got: Vec<f64> = elements.map(|bytes| decode(before.format, bytes)).collect();
        let (mut error, mut norm) = (0.0, 0.0);
        for row in 0..before.rows {
            for c in 0..before.channels {
                let at = before.at(row, c);
                let expected = want[at] + if request.add { before.values[at] } else { 0.0 };
                error += (got[at] - expected).powi(2);
                norm += expected.powi(2);
            }
            let gap = before.at(row, before.channels)..(before.at(row, 0) + before.pitch).min(got.len());
            assert!(got[gap].iter().all(|v| v.is_nan()), "{request} by {way}: wrote beside its channels");
        }
        let distance = (error / norm.max(1e-30)).sqrt();
        let most = tolerance(&request, &way);
        println!("{request} by {way}: {distance:.2e} of {most:.0e}");
        assert!(distance <= most, "{request} by {way}: {distance:.2e} off, {most:.0e} allowed, seed {seed}");
        ways.push(way);
    }
    ways
}

/// All passes in the given formats. Gradients of formats in turn overwrite and add to what is there.
fn check_all(shape: Shape, formats: &[(Format, bool)]) {
    check_some(shape, formats, |i| i % 2 == 1);
}

/// As [`check_all`], and the other half: all formats both overwrite and add.
fn check_both(shape: Shape, formats: &[(Format, bool)]) {
    check_some(shape, formats, |i| i % 2 == 1);
    check_some(shape, formats, |i| i % 2 == 0);
}

fn check_some(shape: Shape, formats: &[(Format, bool)], adds: impl Fn(usize) -> bool) {
    let Some((gpu, mut convolutions)) = card() else { return };
    for (at, &(format, tf32)) in formats.iter().enumerate() {
        for (i, pass) in Pass::ALL.into_iter().enumerate() {
            let add = adds(at + i) && pass != Pass::Forward;
            let request = Request { tf32, add, ..Request::new(shape, pass, format) };
            let ways = check(&gpu, &mut convolutions, request, 100 + i as u64);
            // Full float32 and single pixels are left to whoever takes them.
            let common = format != Format::F32 && shape.height > 1 && shape.width > 1;
            assert!(!common || ways.len() >= 2, "{request}: only our own direct kernel serves it");
        }
    }
}

const ALL: [(Format, bool); 4] =
    [(Format::F32, false), (Format::F32, true), (Format::F16, false), (Format::Bf16, false)];
const HALF: [(Format, bool); 2] = [(Format::F16, false), (Format::Bf16, false)];

#[test]
fn kernels_and_strides() {
    for kernel in [1, 2, 3, 5, 7] {
        for stride in [1, 2] {
            let shape = Shape { height: 10, width: 7, ..Shape::packed(2, 0, 32, 16, kernel, stride) };
            check_all(shape, if kernel == 2 || kernel == 5 { &HALF } else { &ALL });
        }
    }
}

#[test]
fn every_count_of_channels() {
    for (inputs, outputs) in [(8, 32), (16, 16), (24, 24), (40, 64), (64, 48), (96, 8), (184, 192), (192, 96)] {
        check_all(Shape::packed(2, 7, inputs, outputs, 3, 1), &HALF);
        check_all(Shape::packed(2, 7, inputs, outputs, 1, 1), &HALF);
    }
    check_all(Shape::packed(2, 7, 40, 64, 1, 1), &ALL[..2]);
}

/// The library's, and, with 24 channels, our own kernel's.
#[test]
fn channel_ranges_of_wider_tensors() {
    for kernel in [1, 3] {
        let packed = Shape::packed(2, 9, 32, 48, kernel, 1);
        check_all(Shape { input_pitch: 128, ..packed }, &ALL);
        check_all(Shape { output_pitch: 104, ..packed }, &ALL);
        check_both(Shape { input_pitch: 40, output_pitch: 56, ..packed }, &ALL);
    }
    check_both(Shape { input_pitch: 40, output_pitch: 64, ..Shape::packed(2, 9, 24, 24, 3, 1) }, &HALF);
    check_all(Shape { input_pitch: 64, output_pitch: 64, ..Shape::packed(2, 11, 16, 32, 3, 2) }, &HALF);
}

#[test]
fn extents_of_one_pixel() {
    for (height, width) in [(1, 1), (1, 5), (4, 1)] {
        for kernel in [1, 3] {
            check_all(Shape { height, width, ..Shape::packed(3, 0, 16, 24, kernel, 1) }, &HALF);
        }
        check_all(Shape { height, width, ..Shape::packed(3, 0, 16, 24, 3, 2) }, &HALF);
    }
}

#[test]
fn groups() {
    for kernel in [1, 3] {
        let shape = Shape { groups: 4, ..Shape::packed(2, 8, 64, 64, kernel, 1) };
        check_all(shape, &ALL);
        check_both(Shape { input_pitch: 96, output_pitch: 80, ..shape }, &HALF);
    }
}

/// Every server, few pixels: what compute-sanitizer gets through.
#[test]
fn small_shapes_of_every_way() {
    let Some((gpu, mut convolutions)) = card() else { return };
    let side =
        |inputs, outputs, kernel, stride| Shape { height: 5, ..Shape::packed(1, 4, inputs, outputs, kernel, stride) };
    let (product, three, own) = (side(16, 24, 1, 1), side(24, 40, 3, 1), side(16, 16, 3, 1));
    let pitched = |s: Shape| Shape { input_pitch: s.inputs + 16, output_pitch: s.outputs + 8, ..s };
    let grouped = Shape { groups: 4, ..side(64, 64, 3, 1) };
    let mut shapes = [product, three, own].map(|s| [s, pitched(s)]).concat();
    shapes.extend([grouped, Shape { kernel: 1, pad: 0, ..grouped }, side(16, 32, 3, 2), side(16, 24, 5, 1)]);
    let mut ways = BTreeSet::new();
    for shape in shapes {
        for (format, tf32) in [(Format::F32, false), (Format::F32, true), (Format::Bf16, false)] {
            for pass in Pass::ALL {
                let request = Request { tf32, add: pass == Pass::Weight, ..Request::new(shape, pass, format) };
                ways.extend(check(&gpu, &mut convolutions, request, 700));
            }
        }
    }
    let logits = Request { output: Format::F32, ..Request::new(pitched(product), Pass::Forward, Format::F16) };
    ways.extend(check(&gpu, &mut convolutions, logits, 701));
    for outputs in [16, 24] {
        let stem = side(8, outputs, 3, 2).over_bytes();
        for pass in [Pass::Forward, Pass::Weight] {
            let request = Request { bytes: true, add: pass == Pass::Weight, ..Request::new(stem, pass, Format::Bf16) };
            ways.extend(check(&gpu, &mut convolutions, request, 702));
        }
    }
    let has = |server: &str| ways.iter().any(|way| way.starts_with(server));
    let tiles = has("tiles") || gpu.properties().major < 8;
    assert!(has("cublaslt") && has("cudnn") && has("direct") && tiles, "{ways:?}");
}

/// Groups of 5 channels start nowhere in particular, and the last channels of the pitch are padding.
#[test]
fn odd_groups_and_one_channel_a_group() {
    let Some((gpu, mut convolutions)) = card() else { return };
    let odd = Shape { groups: 4, input_pitch: 24, output_pitch: 24, ..Shape::packed(2, 8, 20, 20, 3, 1) };
    let each_channel = Shape { groups: 16, ..Shape::packed(2, 8, 16, 16, 3, 1) };
    for (shape, kernel) in [(odd, 3), (odd, 1), (each_channel, 3)] {
        let shape = Shape { kernel, pad: kernel / 2, ..shape };
        for pass in Pass::ALL {
            for (format, tf32) in ALL {
                check(&gpu, &mut convolutions, Request { tf32, ..Request::new(shape, pass, format) }, 300);
            }
        }
    }
}

/// Our stem, and the definition for what it was not made for.
#[test]
fn pictures_of_bytes() {
    let Some((gpu, mut convolutions)) = card() else { return };
    for (outputs, width, kernel, stride) in
        [(16, 20, 3, 2), (32, 36, 3, 2), (64, 20, 3, 2), (24, 9, 3, 2), (32, 7, 5, 1)]
    {
        let shape = Shape { width, ..Shape::packed(2, 14, 8, outputs, kernel, stride) }.over_bytes();
        for pass in [Pass::Forward, Pass::Weight] {
            for format in [Format::F32, Format::F16, Format::Bf16] {
                let request = Request { bytes: true, add: pass == Pass::Weight, ..Request::new(shape, pass, format) };
                let ways = check(&gpu, &mut convolutions, request, 600);
                let ours = reads_bytes(shape, format) && gpu.properties().major >= 8;
                assert_eq!(ways.len(), 1 + usize::from(ours), "{request}");
            }
        }
    }
}

#[test]
fn unusual_padding() {
    let Some((gpu, mut convolutions)) = card() else { return };
    for (kernel, pad, stride) in [(3, 0, 1), (1, 1, 1), (1, 0, 2), (5, 1, 3), (11, 5, 4), (4, 1, 2)] {
        let shape = Shape { pad, ..Shape::packed(2, 13, 16, 24, kernel, stride) };
        for pass in Pass::ALL {
            for (format, tf32) in if kernel == 1 { ALL.to_vec() } else { HALF.to_vec() } {
                check(&gpu, &mut convolutions, Request { tf32, ..Request::new(shape, pass, format) }, 400);
            }
        }
    }
}

#[test]
fn logits_are_float32_from_half_operands() {
    let Some((gpu, mut convolutions)) = card() else { return };
    for groups in [1, 4] {
        for kernel in [1, 3] {
            let shape = Shape { groups, output_pitch: 80, ..Shape::packed(2, 9, 64, 64, kernel, 1) };
            for format in [Format::F16, Format::Bf16] {
                let request = Request { output: Format::F32, ..Request::new(shape, Pass::Forward, format) };
                check(&gpu, &mut convolutions, request, 500);
            }
        }
    }
}

#[test]
fn tuned_choices_are_kept_and_handed_on() {
    let Some((gpu, _)) = card() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tuning.json");
    let request = Request::new(Shape::packed(4, 20, 64, 64, 3, 1), Pass::Data, Format::Bf16);
    let open = || Convolutions::new(&gpu, Some(file.clone())).expect("libraries");
    let mut tuned = open();
    let id = tuned.prepare(request, true).expect("prepared");
    assert_eq!(tuned.prepare(request, false).expect("prepared"), id, "a request is prepared once");
    let choices = tuned.choices();
    assert_eq!(choices.len(), 1);
    let mut later = open();
    later.prepare(request, false).expect("prepared");
    assert_eq!(later.choices(), choices, "the file's choice holds");
    let ways = tuned.prepare_each(request).expect("prepared");
    let other = ways.into_iter().filter_map(|way| tuned.choice(way)).find(|way| tuned.choice(id) != Some(way));
    let other = other.expect("a second way").to_owned();
    let given = BTreeMap::from([(tuned.key(&request), other)]);
    let mut resumed = open();
    resumed.prefer(given.clone());
    resumed.prepare(request, true).expect("prepared");
    assert_eq!(resumed.choices(), given, "a run's choices come before the file's");
}

#[test]
fn impossible_extents_are_errors() {
    let Some((_, mut convolutions)) = card() else { return };
    let shape = Shape { pad: 0, ..Shape::packed(1, 4, 16, 16, 5, 1) };
    let error = convolutions.prepare(Request::new(shape, Pass::Forward, Format::Bf16), false).expect_err("refused");
    assert!(error.to_string().contains("no convolution has these extents"), "{error}");
}
