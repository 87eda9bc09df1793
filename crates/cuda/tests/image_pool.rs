//! The pool of pictures on a card: what is rendered from it is what was put in, whatever was pushed out. Skipped where
//! there is no card.

mod kernels_common;

use cuda::kernels::RenderImage;
use cuda::{
    CudaBackend, CudaError, CudaExecutor, CudaOptions, Engine, Gpu, ImagePool, NewPicture, RenderBatch, Resident,
};
use graph::{CompileOptions, DType, ExecError, Executor, GraphBuilder, Precision, Shape, StateSpec, compile};
use kernels_common::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Width and height of the pictures, and the same as height and width.
const OUT: [u32; 2] = [64, 48];
const HW: [usize; 2] = [48, 64];
const BYTES: usize = 64 * 48 * 3;

/// The picture of a sample: bytes that tell it from others.
fn pixels(sample: usize) -> Vec<u8> {
    (0..BYTES).map(|i| ((i * (2 * sample + 1)) >> 3) as u8 ^ sample as u8).collect()
}

#[test]
fn pictures_are_what_was_put_in_however_often_they_are_pushed_out() {
    let Some(gpu) = gpu() else { return };
    // Room for twenty pictures; a batch shows up to eight of forty.
    let mut pool = ImagePool::new(&gpu, 20 * BYTES as u64).unwrap();
    let pictures: Vec<Vec<u8>> = (0..40).map(pixels).collect();
    let mut outs = [gpu.allocate(8 * BYTES).unwrap(), gpu.allocate(8 * BYTES).unwrap()];
    let (mut r, mut sent, mut found) = (Random::new(), 0, 0);
    let mut shown: Vec<Vec<usize>> = Vec::new();
    for batch in 0..100 {
        let samples: BTreeSet<usize> = (0..1 + r.below(8)).map(|_| r.below(40)).collect();
        pool.begin(batch).unwrap();
        let missing: Vec<usize> = samples.iter().copied().filter(|&s| pool.find(s).is_none()).collect();
        (sent, found) = (sent + missing.len(), found + samples.len() - missing.len());
        let new: Vec<NewPicture<'_>> =
            missing.iter().map(|&s| NewPicture { sample: Some(s), wh: OUT, pixels: &pictures[s] }).collect();
        pool.put(&new).unwrap();
        let image = |sample: &usize| {
            let Resident { at, wh } = pool.find(*sample).unwrap();
            RenderImage::finished(at, wh)
        };
        let images: Vec<RenderImage> = samples.iter().map(image).collect();
        let batch_of = RenderBatch { images: &images, hw: HW, out_hw: HW };
        pool.render(&batch_of, &mut outs[batch as usize % 2]).unwrap();
        shown.push(samples.into_iter().collect());
        // Every other batch is read one batch late, so that two are under way.
        if batch % 2 == 1 {
            for (at, out) in outs.iter().enumerate() {
                let samples = &shown[batch as usize - 1 + at];
                for (i, &sample) in samples.iter().enumerate() {
                    let got: Vec<u8> = out.read(i * BYTES, BYTES).unwrap();
                    assert!(got == pictures[sample], "batch {batch}, sample {sample}");
                }
            }
        }
    }
    assert!(sent > 40 && found > 40, "{sent} sent, {found} found");
}

#[test]
fn a_card_with_nothing_else_to_do_waits_for_pictures() {
    let Some(gpu) = gpu() else { return };
    let mut pool = ImagePool::new(&gpu, 4 * BYTES as u64).unwrap();
    let mut out = gpu.allocate(BYTES).unwrap();
    let (start, mut last) = (Instant::now(), Duration::ZERO);
    for number in 1..=5 {
        pool.begin(number).unwrap();
        // Of a batch it is known when the next but one begins.
        let waited = pool.waited();
        assert!(if number < 3 { waited.is_zero() } else { waited > last }, "{waited:?} at batch {number}");
        last = waited;
        let place = pool.put(&[NewPicture { sample: None, wh: OUT, pixels: &pixels(0) }]).unwrap()[0];
        let images = [RenderImage::finished(place.at, OUT)];
        pool.render(&RenderBatch { images: &images, hw: HW, out_hw: HW }, &mut out).unwrap();
        gpu.synchronize().unwrap();
    }
    assert!(last < start.elapsed(), "{last:?}");
}

#[test]
fn rendered_images_are_resized_afterwards() {
    let Some(gpu) = gpu() else { return };
    let mut pool = ImagePool::new(&gpu, 4 * BYTES as u64).unwrap();
    let mut out = gpu.allocate(4 * BYTES).unwrap();
    for (batch, out_hw) in [[96, 128], HW, [24, 32], [192, 64]].into_iter().enumerate() {
        let picture: Vec<u8> = vec![40 + batch as u8; BYTES];
        pool.begin(batch as u64).unwrap();
        let place = pool.put(&[NewPicture { sample: None, wh: OUT, pixels: &picture }]).unwrap()[0];
        let images = [RenderImage::finished(place.at, OUT)];
        let batch = RenderBatch { images: &images, hw: HW, out_hw };
        out.write(0, &vec![0xEE_u8; 4 * BYTES]).unwrap();
        pool.render(&batch, &mut out).unwrap();
        let got: Vec<u8> = out.read(0, 4 * BYTES).unwrap();
        let (inside, beyond) = got.split_at(batch.bytes());
        assert!(inside.iter().all(|&v| v == picture[0]) && beyond.iter().all(|&v| v == 0xEE), "{out_hw:?}");
    }
}

#[test]
fn what_lies_outside_of_pool_or_output_is_refused() {
    let Some(gpu) = gpu() else { return };
    let mut pool = ImagePool::new(&gpu, 4 * BYTES as u64).unwrap();
    let (mut out, other) = (gpu.allocate(BYTES).unwrap(), gpu.allocate(BYTES).unwrap());
    pool.begin(0).unwrap();
    let place = pool.put(&[NewPicture { sample: Some(0), wh: OUT, pixels: &pixels(0) }]).unwrap()[0];
    let mine = RenderImage::finished(place.at, OUT);
    let not_mine = [RenderImage::finished(other.address(), OUT)];
    let two = [mine.clone(), mine.clone()];
    let batch = |images| RenderBatch { images, hw: HW, out_hw: HW };
    assert!(matches!(pool.render(&batch(&not_mine), &mut out), Err(CudaError::Operands { .. })));
    assert!(matches!(pool.render(&batch(&two), &mut out), Err(CudaError::Range { .. })));
    pool.render(&batch(&two[..1]), &mut out).unwrap();
    assert!(out.read::<u8>(0, BYTES).unwrap() == pixels(0));
}

#[test]
fn more_than_fits_is_refused_and_leaves_the_pool_usable() {
    let Some(gpu) = gpu() else { return };
    let mut pool = ImagePool::new(&gpu, 2 * BYTES as u64).unwrap();
    let picture = pixels(3);
    let new = |sample| NewPicture { sample: Some(sample), wh: OUT, pixels: &picture };
    pool.begin(0).unwrap();
    assert!(matches!(pool.put(&[new(0), new(1), new(2)]), Err(CudaError::Pool { .. })));
    assert!((0..3).all(|sample| pool.find(sample).is_none()));
    assert!(matches!(pool.put(&[NewPicture { wh: [64, 47], ..new(0) }]), Err(CudaError::Operands { .. })));
    let places = pool.put(&[new(0), new(1), new(0)]).unwrap();
    assert_eq!(places[0], places[2], "the same picture twice has one place");
    assert!(pool.claims().claim(1, 5) && !pool.claims().claim(2, 5));
    for batch in 1..4 {
        pool.begin(batch).unwrap();
        assert!(matches!(pool.put(&[new(7), new(8)]), Err(CudaError::Pool { .. })), "sample 1 is claimed");
    }
    for batch in 5..8 {
        pool.begin(batch).unwrap();
    }
    assert!(pool.put(&[new(7), new(8)]).is_ok());
}

#[test]
fn an_input_is_rendered_as_if_it_were_uploaded() {
    let Some(gpu) = gpu() else { return };
    let mut pool = ImagePool::new(&gpu, 4 * BYTES as u64).unwrap();
    let engine = Engine::new(&gpu).unwrap();
    let options = CudaOptions { precision: Precision::F32, tf32: false, tune: false, capture: true };
    let mut b = GraphBuilder::new();
    let input = b.input("images", Shape::new(2, HW[0], HW[1], 3), DType::U8);
    let output = b.normalize(input);
    b.output(output);
    let plan = compile(b.finish(), &CudaBackend::new(options), &CompileOptions::inference(Precision::F32)).unwrap();
    let spec = StateSpec { layout: plan.params().clone(), optimizer: None, ema: false };
    let mut executor = CudaExecutor::new(&engine, spec, options).unwrap();
    let plan = executor.prepare(Arc::new(plan)).unwrap();
    // The third run repeats what the second one recorded.
    for number in 0..4 {
        let pictures = [pixels(2 * number), pixels(2 * number + 1)];
        executor.upload_u8(plan, input, &pictures.concat()).unwrap();
        executor.run(plan).unwrap();
        let want = executor.download(plan, output).unwrap();
        pool.begin(number as u64).unwrap();
        let new = pictures.each_ref().map(|pixels| NewPicture { sample: None, wh: OUT, pixels });
        let images: Vec<RenderImage> =
            pool.put(&new).unwrap().iter().map(|place| RenderImage::finished(place.at, OUT)).collect();
        let batch = RenderBatch { images: &images, hw: HW, out_hw: HW };
        executor.render(plan, input, &mut pool, &batch).unwrap();
        executor.run(plan).unwrap();
        assert!(executor.download(plan, output).unwrap() == want, "batch {number}");
        let turned = RenderBatch { out_hw: [HW[1], HW[0]], ..batch };
        assert!(matches!(executor.render(plan, input, &mut pool, &turned), Err(ExecError::Upload { .. })));
    }
    let mut elsewhere = ImagePool::new(&Gpu::open(0).unwrap(), BYTES as u64).unwrap();
    let nothing = RenderBatch { images: &[], hw: HW, out_hw: HW };
    assert!(executor.render(plan, input, &mut elsewhere, &nothing).is_err());
}
