//! Our own convolution kernels against the definition in float64, over operands that were rounded to their format.

mod kernels_common;

use cuda::conv::{Pass, Request, Shape};
use cuda::kernels::own_conv::{OwnConv, serves, workspace};
use cuda::{Buffer, Format, Gpu};
use kernels_common::{decode, encode, rounded};

/// A card with matrix instructions; `None`, with the reason printed, where there is none.
fn card() -> Option<(Gpu, OwnConv)> {
    if Gpu::count() == 0 {
        println!("skipped: no NVIDIA GPU");
        return None;
    }
    let gpu = Gpu::open(0).expect("a card");
    if gpu.properties().major < 8 {
        println!("skipped: {} is older than compute capability 8.0", gpu.properties().name);
        return None;
    }
    let own = OwnConv::new(&gpu);
    Some((gpu, own))
}

/// Numbers from a printed seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        testkit::mix(self.0)
    }

    /// From `low` to `high`, both included.
    fn range(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() >> 20) as usize % (high - low + 1)
    }

    /// Uniform in (-1, 1), as `format` stores it.
    fn value(&mut self, format: Format) -> f64 {
        rounded(format, 2.0 * (self.next() >> 11) as f64 / (1u64 << 53) as f64 - 1.0)
    }
}

/// Rows of channels as they lie in memory: NaN between the rows, which nobody may write.
fn spread(format: Format, values: &[f64], channels: usize, pitch: usize) -> Vec<u8> {
    let rows = values.chunks_exact(channels);
    rows.flat_map(|row| row.iter().copied().chain(std::iter::repeat_n(f64::NAN, pitch - channels)))
        .flat_map(|v| encode(format, v))
        .collect()
}

/// The channels of such rows, or what is wrong between them.
fn gather(format: Format, bytes: &[u8], channels: usize, pitch: usize) -> Result<Vec<f64>, String> {
    let values: Vec<f64> = bytes.chunks_exact(format.bytes()).map(|b| decode(format, b)).collect();
    let mut all = Vec::new();
    for (pixel, row) in values.chunks_exact(pitch).enumerate() {
        if row[channels..].iter().any(|v| !v.is_nan()) {
            return Err(format!("pixel {pixel} was written beyond its channels"));
        }
        all.extend_from_slice(&row[..channels]);
    }
    Ok(all)
}

fn request(inputs: usize, outputs: usize, kernel: usize, stride: usize, groups: usize) -> Request {
    let shape = Shape { groups, ..Shape::packed(1, 1, inputs, outputs, kernel, stride) };
    Request::new(shape, Pass::Forward, Format::Bf16)
}

/// The same with other extents.
fn with(r: Request, change: impl FnOnce(Shape) -> Shape) -> Request {
    Request { shape: change(r.shape), ..r }
}

/// Calls `f(y, x, w)` with the elements of every product.
fn products(s: &Shape, mut f: impl FnMut(usize, usize, usize)) {
    let (oh, ow) = (s.out_height(), s.out_width());
    let (inputs, outputs) = (s.inputs / s.groups, s.outputs / s.groups);
    for n in 0..s.images {
        for (oy, ox) in (0..oh).flat_map(|y| (0..ow).map(move |x| (y, x))) {
            for (ky, kx) in (0..s.kernel).flat_map(|y| (0..s.kernel).map(move |x| (y, x))) {
                let (iy, ix) = (oy * s.stride + ky, ox * s.stride + kx);
                if iy < s.pad || ix < s.pad || iy - s.pad >= s.height || ix - s.pad >= s.width {
                    continue;
                }
                let y = ((n * oh + oy) * ow + ox) * s.outputs;
                let x = ((n * s.height + iy - s.pad) * s.width + ix - s.pad) * s.inputs;
                for o in 0..s.outputs {
                    for i in 0..inputs {
                        let w = ((o * s.kernel + ky) * s.kernel + kx) * inputs + i;
                        f(y + o, x + o / outputs * inputs + i, w);
                    }
                }
            }
        }
    }
}

/// Runs a request on random operands and compares; the error names what went wrong.
fn check(gpu: &Gpu, own: &OwnConv, r: &Request, random: &mut Random) -> Result<(), String> {
    assert!(serves(r), "{r:?}");
    let s = &r.shape;
    let (in_pixels, out_pixels) = (s.in_pixels(), s.out_pixels());
    let mut many = |n: usize, f: Format| (0..n).map(|_| random.value(f)).collect::<Vec<f64>>();
    let mut x = many(in_pixels * s.inputs, r.format);
    let mut w = many(s.weights(), r.format);
    let mut y = many(out_pixels * s.outputs, r.format);
    let stem = s.inputs == 8;
    let image: Vec<u8> = (0..in_pixels * 3).map(|_| random.next() as u8).collect();
    if stem {
        // Five of the eight channels are padding.
        let padding = |v: &mut [f64]| v.chunks_exact_mut(8).for_each(|row| row[3..].fill(0.0));
        padding(&mut x);
        padding(&mut w);
    }
    if r.bytes {
        for (row, pixel) in x.chunks_exact_mut(8).zip(image.chunks_exact(3)) {
            for (v, &byte) in row.iter_mut().zip(pixel) {
                *v = rounded(r.format, f64::from(f32::from(byte) / 255.0));
            }
        }
    }

    // What is expected: the result, and where it is added, what was there.
    let mut before = match r.pass {
        Pass::Forward => many_of(random, y.len(), r.result()),
        Pass::Data => many_of(random, x.len(), r.result()),
        Pass::Weight => many_of(random, w.len(), Format::F32),
    };
    let mut want = if r.add { before.clone() } else { vec![0.0; before.len()] };
    products(s, |yi, xi, wi| match r.pass {
        Pass::Forward => want[yi] += x[xi] * w[wi],
        Pass::Data => want[xi] += y[yi] * w[wi],
        Pass::Weight => want[wi] += y[yi] * x[xi],
    });
    if !r.add {
        before.fill(f64::NAN);
    }
    let (channels, pitch) = match r.pass {
        Pass::Forward => (s.outputs, s.output_pitch),
        Pass::Data => (s.inputs, s.input_pitch),
        Pass::Weight => (w.len(), w.len()),
    };
    let places = |x: &[f64], w: &[f64], y: &[f64]| {
        let format = |pass| if r.pass == pass { r.result() } else { r.format };
        let x = match r.bytes {
            true => image.clone(),
            false => spread(format(Pass::Data), x, s.inputs, s.input_pitch),
        };
        let w = spread(format(Pass::Weight), w, w.len(), w.len());
        [x, w, spread(format(Pass::Forward), y, s.outputs, s.output_pitch)]
    };
    match r.pass {
        Pass::Forward => y = before,
        Pass::Data => x = before,
        Pass::Weight => w = before,
    }
    let bytes = places(&x, &w, &y);
    let target = match r.pass {
        Pass::Data => 0,
        Pass::Weight => 1,
        Pass::Forward => 2,
    };

    let failed = |e: cuda::CudaError| e.to_string();
    let pass = own.prepare(r).map_err(failed)?;
    let mut runs: Vec<Vec<u8>> = Vec::new();
    for _ in 0..2 {
        let mut buffers: Vec<Buffer> = Vec::new();
        for part in &bytes {
            let mut buffer = gpu.allocate(part.len()).map_err(failed)?;
            buffer.write(0, part).map_err(failed)?;
            buffers.push(buffer);
        }
        // Poison, which must not be read before it is written.
        let mut space = gpu.allocate(workspace(r) as usize).map_err(failed)?;
        space.write(0, &vec![0xFFu8; workspace(r) as usize]).map_err(failed)?;
        let at = [buffers[0].address(), buffers[1].address(), buffers[2].address()];
        // SAFETY: buffers of the request's extents.
        unsafe { pass.run(at, space.address()) }.map_err(failed)?;
        runs.push(buffers[target].read(0, bytes[target].len()).map_err(failed)?);
    }
    if runs[0] != runs[1] {
        return Err("two runs differ".into());
    }
    let got = gather(r.result(), &runs[0], channels, pitch)?;
    // One rounding of the result; float32 sums before it.
    let (relative, per_sum) = match r.result() {
        Format::Bf16 => (0.0040, 1e-5),
        Format::F16 => (0.0005, 1e-5),
        Format::F32 => (1e-5, 1e-5),
    };
    let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (&g, &v)) in got.iter().zip(&want).enumerate() {
        let most = relative * v.abs() + per_sum * scale;
        let off = (g - v).abs();
        if off.is_nan() || off > most {
            return Err(format!("element {i} of {}: {g} instead of {v}, {most:.1e} allowed", got.len()));
        }
    }
    Ok(())
}

fn many_of(random: &mut Random, n: usize, format: Format) -> Vec<f64> {
    (0..n).map(|_| random.value(format)).collect()
}

/// Every pass of a convolution over odd shapes, strided ranges, both formats, with and without adding; and, in bf16,
/// over `many` images, which are more tiles than blocks.
fn check_shapes(base: Request, passes: &[Pass], many: usize, seed: u64) {
    // One pixel, less than a tile, a few tiles, and many.
    check_sizes(base, passes, &[1, 7, 40, 90, MANY], many, seed);
}

/// Most pixels on a side where there are more tiles than blocks.
const MANY: usize = 130;

fn check_sizes(base: Request, passes: &[Pass], sizes: &[usize], many: usize, seed: u64) {
    let Some((gpu, own)) = card() else { return };
    println!("seed {seed}");
    let random = &mut Random(seed << 32);
    for &pass in passes {
        for format in [Format::Bf16, Format::F16] {
            for &most in sizes.iter().filter(|&&most| format == Format::Bf16 || most < MANY) {
                let images = if most == MANY { many } else { random.range(1, 3) };
                let stride = base.shape.stride;
                let [height, width] = match most {
                    1 => [1, 1],
                    MANY => [random.range(45, 55) * stride, random.range(45, 55) * stride],
                    _ => [random.range(1, most / 2 + 1), random.range(1, most)],
                };
                let (input, output) = (8 * random.range(0, 3), 8 * random.range(0, 3));
                let add = pass != Pass::Forward && random.range(0, 1) == 1;
                let shape = Shape {
                    images,
                    height,
                    width: width.next_multiple_of(if base.bytes { 4 } else { 1 }),
                    input_pitch: if base.bytes { 3 } else { base.shape.inputs + input },
                    output_pitch: base.shape.outputs + output,
                    ..base.shape
                };
                let logits = pass == Pass::Forward && base.output == Format::F32;
                let output = if logits { Format::F32 } else { format };
                let r = Request { shape, pass, format, output, add, ..base };
                if let Err(what) = check(&gpu, &own, &r, random) {
                    panic!("{r}: {what}");
                }
            }
        }
    }
}

/// Every kernel over less than a tile: what compute-sanitizer gets through.
#[test]
fn small_shapes() {
    let sizes = [1, 7];
    for channels in [16, 24, 32, 48] {
        check_sizes(request(channels, channels, 3, 1, 1), &Pass::ALL, &sizes, 1, 200);
    }
    for kernel in [1, 3] {
        check_sizes(request(64, 64, kernel, 1, 4), &Pass::ALL, &sizes, 1, 201);
    }
    check_sizes(Request { output: Format::F32, ..request(64, 64, 1, 1, 4) }, &[Pass::Forward], &sizes, 1, 202);
    for outputs in [16, 32, 64] {
        let stem = request(8, outputs, 3, 2, 1);
        for base in [stem, Request { bytes: true, ..stem }] {
            check_sizes(base, &[Pass::Forward, Pass::Weight], &sizes, 1, 203);
        }
    }
    for (inputs, outputs) in [(16, 32), (32, 64)] {
        check_sizes(request(inputs, outputs, 3, 2, 1), &[Pass::Data], &sizes, 1, 204);
    }
}

#[test]
fn few_channels_are_convolved_wrongly() {
    for (channels, many) in [(16, 50), (24, 24), (32, 32), (48, 12)] {
        check_shapes(request(channels, channels, 3, 1, 1), &Pass::ALL, many, channels as u64);
    }
}

#[test]
fn groups_of_16_are_convolved_wrongly() {
    check_shapes(request(64, 64, 3, 1, 4), &Pass::ALL, 16, 1);
    check_shapes(request(128, 128, 3, 1, 8), &Pass::ALL, 2, 2);
}

#[test]
fn pointwise_groups_of_16_are_convolved_wrongly() {
    check_shapes(request(64, 64, 1, 1, 4), &Pass::ALL, 24, 3);
    check_shapes(request(128, 128, 1, 1, 8), &Pass::ALL, 2, 4);
    check_shapes(Request { output: Format::F32, ..request(64, 64, 1, 1, 4) }, &[Pass::Forward], 24, 5);
}

#[test]
fn stems_are_convolved_wrongly() {
    for outputs in [16, 32, 64] {
        check_shapes(request(8, outputs, 3, 2, 1), &[Pass::Forward, Pass::Weight], 36, outputs as u64);
    }
}

#[test]
fn data_gradients_of_stride_2_are_wrong() {
    for (inputs, outputs, many) in [(16, 32, 40), (32, 64, 20)] {
        check_shapes(request(inputs, outputs, 3, 2, 1), &[Pass::Data], many, 100 + inputs as u64);
    }
}

#[test]
fn stems_over_bytes_are_convolved_wrongly() {
    for outputs in [16, 32, 64] {
        let base = Request { bytes: true, ..request(8, outputs, 3, 2, 1) };
        check_shapes(base, &[Pass::Forward, Pass::Weight], 36, outputs as u64);
    }
}

/// No card needed: what is said of a request depends on it alone.
#[test]
fn requests_that_no_kernel_was_made_for_are_taken() {
    let few = request(32, 32, 3, 1, 1);
    let stem = request(8, 32, 3, 2, 1);
    let grouped = request(64, 64, 3, 1, 4);
    let down = Request { pass: Pass::Data, ..request(32, 64, 3, 2, 1) };
    let bytes = |width: usize| Request { bytes: true, ..with(stem, |s| Shape { width, ..s.over_bytes() }) };
    for served in [few, stem, grouped, down, bytes(4)] {
        assert!(serves(&served), "{served:?}");
    }
    let weight = Request { pass: Pass::Weight, add: true, ..few };
    assert!(serves(&weight) && workspace(&weight) == 32 * 32 * 9 * 4);
    for refused in [
        with(few, |s| Shape { inputs: 40, outputs: 40, input_pitch: 40, output_pitch: 40, ..s }),
        with(few, |s| Shape { outputs: 16, ..s }),
        with(few, |s| Shape { stride: 2, ..s }),
        with(few, |s| Shape { pad: 0, ..s }),
        with(few, |s| Shape { kernel: 5, pad: 2, ..s }),
        Request { format: Format::F32, output: Format::F32, ..few },
        Request { output: Format::F32, ..few },
        with(few, |s| Shape { input_pitch: 36, ..s }),
        with(few, |s| Shape { input_pitch: 24, ..s }),
        Request { add: true, ..few },
        with(few, |s| Shape { images: 0, ..s }),
        Request { bytes: true, ..few },
        Request { pass: Pass::Data, ..stem },
        Request { pass: Pass::Forward, ..down },
        with(down, |s| Shape { outputs: 32, ..s }),
        bytes(6),
        with(stem, |s| Shape { outputs: 24, output_pitch: 24, ..s }),
        with(grouped, |s| Shape { groups: 2, ..s }),
        with(grouped, |s| Shape { groups: 8, ..s }),
        with(grouped, |s| Shape { groups: 0, inputs: 0, outputs: 0, ..s }),
        with(few, |s| Shape { images: 1 << 20, height: 1 << 10, width: 1 << 10, ..s }),
    ] {
        assert!(!serves(&refused), "{refused:?}");
        assert_eq!(workspace(&refused), 0);
    }
}
