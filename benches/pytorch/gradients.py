#!/usr/bin/env python3
"""Judges gradients by a float64 truth: the twin's in fp32 and bf16, and those of another program.

The model is filled by the rule of the fixtures, and the batch, boxes and (unless --assignment own) the assignment are
the recorded ones, so that no positive flips between two runs. Gradients are those of the total loss, before clipping.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import torch

from twin import fixtures, tensors
from twin.loss import loss
from twin.report import pick_device, say, versions
from twin.train import Trainer, set_tf32

# A tensor whose true gradient is this much smaller per entry than the whole's is 0 but for rounding, such as a bias in
# front of a batch norm: its relative error says nothing.
ZERO = 1e-9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="yolov9-t", help="a model with a training case, or the case (yolov9-t-nc80)")
    parser.add_argument("--fixture", type=Path, default=fixtures.PARITY, help="folder of the recorded cases")
    parser.add_argument("--out", type=Path, help="result file; default is gradients-<case>.json here")
    parser.add_argument(
        "--compare",
        type=Path,
        action="append",
        default=[],
        help="safetensors file of another program's gradients by name, shapes as in PyTorch; may be repeated",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        help="safetensors file of weights instead of the fill; the recorded assignment stays the target",
    )
    parser.add_argument(
        "--assignment",
        choices=("fixture", "own"),
        default="fixture",
        help="own: each run assigns from its own outputs, in float32 at least",
    )
    parser.add_argument("--precision", default="fp32,bf16", help="runs of the twin to judge, of fp32, tf32, bf16")
    parser.add_argument("--truth", choices=("float64", "float32"), default="float64")
    parser.add_argument("--truth-device", default="cpu", help="cpu or cuda")
    parser.add_argument("--device", help="of the runs to judge; default is the GPU where there is one")
    parser.add_argument("--save-truth", type=Path, help="write the true gradients (safetensors, of the truth's type)")
    parser.add_argument("--save-runs", type=Path, help="folder for the gradients of every run (safetensors)")
    return parser.parse_args()


@torch.no_grad()
def load(model, path):
    """Weights from a safetensors file by name; all float entries must be there."""
    given = tensors.read(path)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or ".dfl" in name:
            continue
        if name not in given or given[name].shape != tensor.shape:
            raise SystemExit(f"error: {path} has no {name} of shape {list(tensor.shape)}")
        tensor.copy_(given[name])


def gradients(case, precision, device, assignment, weights):
    """Loss, items and gradients by name of one forward and backward pass."""
    dtype = torch.float64 if precision == "float64" else torch.float32
    model = case.model(dtype)
    if weights:
        load(model, weights)
    model = model.to(device).to(memory_format=torch.channels_last)
    trainer = Trainer(model, precision)
    images = case.images("train", dtype).to(device).to(memory_format=torch.channels_last)
    place = lambda t: type(t)(*(x.to(device) for x in t))  # noqa: E731
    if assignment == "fixture":
        total, items = loss(trainer.forward(images), slots=[place(s) for s in case.slots(dtype)])
    else:
        total, items = loss(trainer.forward(images), place(case.boxes(dtype)))
    total.backward()
    found = {n: p.grad.detach().cpu() for n, p in model.named_parameters() if p.requires_grad}
    total = total.detach()
    return {"total": total.item(), "items": items.tolist()}, found


def judge(truth, found):
    """Relative L2 error per tensor, and how they spread."""
    entries = sum(t.numel() for t in truth.values())
    whole = sum(float(t.double().square().sum()) for t in truth.values()) ** 0.5
    floor = ZERO * whole / entries**0.5
    errors, missing, misshapen, zero = {}, [], {}, {}
    squared, dot, size = 0.0, 0.0, 0.0
    for name, want in truth.items():
        if name not in found:
            missing.append(name)
            continue
        got, want = found[name].double(), want.double()
        if got.shape != want.shape:
            misshapen[name] = [list(got.shape), list(want.shape)]
            continue
        off = float((got - want).norm())
        squared, dot, size = squared + off**2, dot + float((got * want).sum()), size + float(got.square().sum())
        norm = float(want.norm())
        if norm <= floor * want.numel() ** 0.5:
            zero[name] = off
        else:
            errors[name] = off / norm
    by_layer = defaultdict(list)
    for name, error in errors.items():
        by_layer[int(name.split(".")[1])].append(error)
    finite = sorted(e for e in errors.values() if e == e)
    worst = max(errors, key=lambda n: errors[n] if errors[n] == errors[n] else float("inf"), default=None)
    at = lambda q: finite[min(int(q * len(finite)), len(finite) - 1)] if finite else None  # noqa: E731
    return {
        "summary": {
            "tensors": len(errors), "median": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0),
            "worst": worst, "not_finite": len(errors) - len(finite), "whole": squared**0.5 / whole,
            "cosine": dot / (whole * size**0.5) if size else None, "norm": size**0.5, "true_norm": whole,
            "missing": missing, "misshapen": misshapen, "unknown": sorted(set(found) - set(truth)),
        },
        # Rounding grows on its way back through the layers, so the last layers tell more in low precision.
        "median_by_layer": {layer: sorted(found)[len(found) // 2] for layer, found in by_layer.items()},
        "relative_l2": errors,
        "zero_gradients_absolute_l2": zero,
    }  # fmt: skip


def main():
    options = arguments()
    device = pick_device(options.device)
    torch.backends.cudnn.benchmark = False
    name = fixtures.case_of(options.model, options.fixture)
    case = fixtures.Case(name, options.fixture)
    facts = versions(device)
    say(f"case {name}, runs on {facts['device']}, torch {facts['torch']}")

    truth_device = pick_device(options.truth_device)
    begun = time.time()
    kind = "float64" if options.truth == "float64" else "fp32"
    losses, truth = gradients(case, kind, truth_device, options.assignment, options.weights)
    recorded = case.train["losses"][0]["total"]
    source = "other weights" if options.weights else f"recorded {recorded}"
    seconds = time.time() - begun
    say(f"truth: {options.truth} on {truth_device}, loss {losses['total']:.9g} ({source}), {seconds:.1f} s")
    if not options.weights and abs(losses["total"] / recorded - 1) > 1e-4:
        raise SystemExit("error: the truth's loss is not the recorded one; run check.py")
    if options.save_truth:
        tensors.write(options.save_truth, truth)
        say(f"true gradients in {options.save_truth}")

    runs = {}
    for precision in filter(None, options.precision.split(",")):
        if precision not in ("fp32", "tf32", "bf16"):
            raise SystemExit(f"error: no precision {precision}; there are fp32, tf32 and bf16")
        begun = time.time()
        run_losses, found = gradients(case, precision, device, options.assignment, options.weights)
        set_tf32(False)
        key = f"twin {precision} on {device.type}"
        runs[key] = {**run_losses, **judge(truth, found)}
        say(f"{key}: loss {run_losses['total']:.9g}, {time.time() - begun:.1f} s")
        if options.save_runs:
            options.save_runs.mkdir(parents=True, exist_ok=True)
            tensors.write(options.save_runs / f"{name}-{precision}.safetensors", found)
    for path in options.compare:
        runs[str(path)] = judge(truth, tensors.read(path))

    told = f"truth {options.truth} on {truth_device.type}, assignment {options.assignment}"
    print(f"relative L2 error of gradients, {name}, {told}")
    print(
        f"{'run':32} {'tensors':>7} {'median':>9} {'p90':>9} {'p99':>9} {'max':>9} {'whole':>9} {'cosine':>11}  worst"
    )
    number = lambda x: f"{x:9.2e}" if x is not None else f"{'-':>9}"  # noqa: E731
    for key, run in runs.items():
        s = run["summary"]
        cells = " ".join(number(s[k]) for k in ("median", "p90", "p99", "max", "whole"))
        cosine = f"{s['cosine']:11.8f}" if s["cosine"] is not None else f"{'-':>11}"
        print(f"{key[-32:]:32} {s['tensors']:7} {cells} {cosine}  {s['worst']}")
        if run["median_by_layer"]:
            layers = sorted(run["median_by_layer"].items())
            (first, at_first), (last, at_last) = layers[0], layers[-1]
            print(f"{'':32} median in the head (layer {last}) {at_last:.2e}, in layer {first} {at_first:.2e}")
        for problem in ("missing", "misshapen", "unknown", "not_finite"):
            if s[problem]:
                shown = (
                    s[problem]
                    if isinstance(s[problem], int)
                    else f"{len(s[problem])}, such as {next(iter(s[problem]))}"
                )
                print(f"{'':32} {problem}: {shown}")
    result = {
        "case": name, "truth": {"type": options.truth, "device": str(truth_device), **losses},
        "assignment": options.assignment, "runs_on": str(device), **facts, "runs": runs,
        "true_l2": {n: float(t.double().norm()) for n, t in truth.items()},
    }  # fmt: skip
    out = options.out or Path(f"gradients-{name}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1))
    say(f"per tensor in {out}")


if __name__ == "__main__":
    main()
