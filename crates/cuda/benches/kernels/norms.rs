//! Batch norms.

use crate::{Bench, text};
use cuda::kernels::{BnApply, BnBackward, BnReduce, BnStats, Branch, BranchGrad, BranchSums, Copy};
use cuda::{Format, Result};
use graph::Activation;

/// Batch norms of one shape: each kernel on operands that are not in the cache, and those that follow each other in a
/// step in one row, where each finds a part of its operands there.
pub fn norms(bench: &mut Bench, shape: [usize; 4]) -> Result<()> {
    let (name, c) = (text(shape), shape[3]);
    let pixels = shape[0] * shape[1] * shape[2];
    let bytes = pixels * c * 2;
    let stats = BnStats::load(&bench.gpu)?;
    bench.case(
        "bn_stats",
        &name,
        |room| {
            let x = room.view(Format::Bf16, shape);
            (bytes, (x, room.vector(c), room.vector(c), room.bytes(BnStats::scratch(pixels, c))))
        },
        // SAFETY: operands lie one after the other in a set.
        |&(x, mean, var, scratch)| unsafe { stats.run(x, mean, var, scratch) },
    )?;
    let apply = BnApply::load(&bench.gpu)?;
    for (what, count, act, residual) in [
        ("bn_apply, SiLU", 1, Activation::Silu, false),
        ("bn_apply, identity", 1, Activation::Identity, false),
        ("bn_apply, SiLU, residual", 1, Activation::Silu, true),
        ("bn_apply, two branches, SiLU", 2, Activation::Silu, false),
    ] {
        bench.case(
            what,
            &name,
            |room| {
                let branches: Vec<Branch> = (0..count).map(|_| room.branch(shape)).collect();
                let add = residual.then(|| room.view(Format::Bf16, shape));
                (bytes * (count + 1 + usize::from(residual)), (branches, add, room.view(Format::Bf16, shape)))
            },
            // SAFETY: as above.
            |(branches, add, y)| unsafe { apply.run(branches, 1e-3, act, *add, *y) },
        )?;
    }
    let (reduce, backward) = (BnReduce::load(&bench.gpu)?, BnBackward::load(&bench.gpu)?);
    for (count, what) in [(1, ""), (2, "two branches, ")] {
        bench.case(
            &format!("bn_reduce, {what}SiLU"),
            &name,
            |room| {
                let branches: Vec<Branch> = (0..count).map(|_| room.branch(shape)).collect();
                let sums: Vec<BranchSums> = (0..count)
                    .map(|_| BranchSums { s2: room.vector(c), gamma_grad: Some(room.vector(c)), beta_grad: None })
                    .collect();
                let dy = room.view(Format::Bf16, shape);
                let scratch = room.bytes(BnReduce::scratch(pixels, c, count));
                (bytes * (count + 1), (branches, sums, dy, room.vector(c), scratch))
            },
            |(branches, sums, dy, s1, scratch)| {
                // SAFETY: as above.
                unsafe { reduce.run(*dy, branches, 1e-3, Activation::Silu, *s1, sums, *scratch) }
            },
        )?;
        bench.case(
            &format!("bn_backward, {what}SiLU"),
            &name,
            |room| {
                let branches: Vec<Branch> = (0..count).map(|_| room.branch(shape)).collect();
                let grads: Vec<BranchGrad> = (0..count)
                    .map(|_| BranchGrad { s2: room.vector(c), dx: room.view(Format::Bf16, shape), accumulate: false })
                    .collect();
                let dy = room.view(Format::Bf16, shape);
                (bytes * (2 * count + 1), (branches, grads, dy, room.vector(c)))
            },
            |(branches, grads, dy, s1)| {
                // SAFETY: as above.
                unsafe { backward.run(*dy, branches, 1e-3, Activation::Silu, *s1, pixels, grads) }
            },
        )?;
    }
    sequences(bench, shape)
}

/// A copy stands for the convolution that writes x, from its first pixel to its last.
fn sequences(bench: &mut Bench, shape: [usize; 4]) -> Result<()> {
    let (name, c) = (text(shape), shape[3]);
    let pixels = shape[0] * shape[1] * shape[2];
    let bytes = pixels * c * 2;
    let copy = Copy::load(&bench.gpu)?;
    let (stats, apply) = (BnStats::load(&bench.gpu)?, BnApply::load(&bench.gpu)?);
    bench.case(
        "row: copy, bn_stats, bn_apply",
        &name,
        |room| {
            let (from, branch, y) =
                (room.view(Format::Bf16, shape), room.branch(shape), room.view(Format::Bf16, shape));
            (bytes * 5, (from, [branch], y, room.bytes(BnStats::scratch(pixels, c))))
        },
        |(from, branches, y, scratch)| {
            let Branch { x, mean, var, .. } = branches[0];
            // SAFETY: operands lie one after the other in a set.
            unsafe {
                copy.run(*from, x, false)?;
                stats.run(x, mean, var, *scratch)?;
                apply.run(branches, 1e-3, Activation::Silu, None, *y)
            }
        },
    )?;
    let (reduce, backward) = (BnReduce::load(&bench.gpu)?, BnBackward::load(&bench.gpu)?);
    for (count, what) in [(1, ""), (2, ", two branches")] {
        bench.case(
            &format!("row: bn_reduce, bn_backward{what}"),
            &name,
            |room| {
                let branches: Vec<Branch> = (0..count).map(|_| room.branch(shape)).collect();
                let sums: Vec<BranchSums> = (0..count)
                    .map(|_| BranchSums { s2: room.vector(c), gamma_grad: Some(room.vector(c)), beta_grad: None })
                    .collect();
                let grads: Vec<BranchGrad> = sums
                    .iter()
                    .map(|s| BranchGrad { s2: s.s2, dx: room.view(Format::Bf16, shape), accumulate: false })
                    .collect();
                let (dy, s1) = (room.view(Format::Bf16, shape), room.vector(c));
                let scratch = room.bytes(BnReduce::scratch(pixels, c, count));
                (bytes * (3 * count + 2), (dy, branches, s1, sums, grads, scratch))
            },
            |(dy, branches, s1, sums, grads, scratch)| {
                // SAFETY: as above.
                unsafe {
                    reduce.run(*dy, branches, 1e-3, Activation::Silu, *s1, sums, *scratch)?;
                    backward.run(*dy, branches, 1e-3, Activation::Silu, *s1, pixels, grads)
                }
            },
        )?;
    }
    Ok(())
}
