#!/usr/bin/env python3
"""Checks the twin against the recorded fixtures, on the CPU. Prints a table; the exit status is 1 if a row fails."""

import argparse
import sys
import time
from pathlib import Path

import torch

from twin import fixtures, tensors, zoo
from twin.assigner import Boxes, assign, quality
from twin.boxes import decode
from twin.head import BINS
from twin.loss import assign_branch, branches, loss
from twin.model import Model, head_map
from twin.shapes import convolutions
from twin.train import Trainer, parameter_groups

BRANCHES = ("aux", "main")


class Table:
    """Rows of what was compared: how many values, and the worst error in units of its tolerance."""

    def __init__(self):
        self.failed, self.rows = 0, 0
        print(f"{'case':22} {'type':8} {'what':44} {'values':>9} {'error/tol':>10}", flush=True)

    def close(self, case, kind, what, got, want, relative=0.0, absolute=0.0):
        """`got` and `want` agree within relative * |want| + absolute, which may be tensors.

        Tolerances are those of float32; in float64 a fiftieth of them must do.
        """
        got, want = torch.as_tensor(got).double(), torch.as_tensor(want).double()
        if got.shape != want.shape:
            return self.row(case, kind, f"{what}: shape {list(got.shape)}, not {list(want.shape)}", 0, float("inf"))
        tolerance = torch.as_tensor(relative).double() * want.abs() + torch.as_tensor(absolute).double()
        if kind == "float64":
            tolerance = tolerance / 50
        ratio = (got - want).abs() / tolerance.clamp(min=1e-300)
        worst = float("nan") if ratio.isnan().any() else ratio.max().item() if ratio.numel() else 0.0
        self.row(case, kind, what, want.numel(), worst)

    def equal(self, case, kind, what, got, want):
        """Exactly the same."""
        self.row(case, kind, what if got == want else f"{what}: {got} is not {want}", 1, 0.0 if got == want else 2.0)

    def row(self, case, kind, what, count, worst):
        good = worst <= 1.0
        self.rows, self.failed = self.rows + 1, self.failed + (not good)
        print(f"{case:22} {kind:8} {what[:300]:44} {count:9} {worst:10.3g} {'ok' if good else 'FAILED'}", flush=True)


def named(dtype):
    return str(dtype).removeprefix("torch.")


def check_zoo(table):
    """Parameters of all models, against the layer table of the repository."""
    text = (zoo.ZOO.parent / "tests" / "zoo-layers.txt").read_text().splitlines()
    totals, layers = {}, {}
    for parts in (line.split("|") for line in text if "|" in line):
        if parts[0] == "model":
            model, totals[parts[1]] = parts[1], int(parts[2])
        else:
            layers.setdefault(model, []).append(int(parts[3]))
    table.equal("zoo", "", "models", sorted(totals), sorted(zoo.MODELS))
    for name in zoo.MODELS:
        text = zoo.path_of(name).read_text()
        table.equal(name, "", "own reader of the file", zoo._parse_rows(text), zoo.parse(text))
        with torch.device("meta"):
            model = Model(name)
        counts = [sum(p.numel() for p in layer.parameters()) for layer in model.model]
        table.equal(name, "", "parameters of every layer", counts, layers[name])
        table.equal(name, "", "parameters", sum(counts), totals[name])


def check_names(table, case):
    """Names, shapes, types, groups and counts."""
    model, facts = case.model(), case.facts
    own = model.state_dict()
    rows = [[name, list(t.shape), named(t.dtype)] for name, t in own.items()]
    table.equal(case.name, "", "state dict: names, shapes, types, order", rows, [r[:3] for r in facts["state_dict"]])
    names = {id(p): n for n, p in model.named_parameters()}
    groups = [sorted(names[id(p)] for p in g["params"]) for g in parameter_groups(model, 0.0)]
    want = [[r[0] for r in facts["state_dict"] if r[4] == i and ".dfl" not in r[0]] for i in range(3)]
    table.equal(case.name, "", "optimiser groups", groups, [sorted(g) for g in want])
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    table.equal(case.name, "", "parameters", sum(p.numel() for p in model.parameters()), facts["parameters"])
    table.equal(case.name, "", "parameters with gradient", trained, facts["parameters_with_gradient"])
    path = case.parity / "models" / f"{facts['model']}.yaml"
    found = convolutions(path if path.is_file() else facts["model"], 640, 640, facts["nc"])
    macs = sum(shape.macs * n for shape, n in found.items())
    table.equal(case.name, "", "multiply-accumulates at 640", macs, facts["conv_macs_640"])


def check_forward(table, case, dtype):
    """Predictions and raw head maps on picture batch `image`."""
    kind, arrays = named(dtype), case.arrays("models")
    images = case.images("image", dtype)
    model = case.model(dtype)
    facts = case.facts["train_heads"]
    names = BRANCHES if any(k.startswith("aux") for k in facts) else BRANCHES[1:]
    if arrays is None:
        print(f"{case.name:22} {kind:8} predictions skipped: models/{case.name}.safetensors is not here")
    else:
        model.eval()
        with torch.no_grad():
            predictions = model(images)
        pixels = 0.1 if "cmicro" in case.name else 0.05
        for name, got in zip(names, predictions):
            want = arrays[f"pred_{name}"]
            table.close(case.name, kind, f"{name} boxes, px", got[:, :4], want[:, :4], 0.0, pixels)
            table.close(case.name, kind, f"{name} scores", got[:, 4:], want[:, 4:], 1e-3, 2e-4)
    with torch.no_grad():
        heads = model.train()(images)
    for name, maps in zip(names, heads):
        for i, level in enumerate(maps):
            got, fact = head_map(level), facts[f"{name}_{i}"]
            table.equal(case.name, kind, f"{name} head map {i}: shape", list(got.shape), fact["shape"])
            box = got[:, : 4 * BINS]
            values = torch.stack([got.mean(), got.std(), box.mean(), box.std()])
            want = torch.tensor([fact[k] for k in ("mean", "std", "mean_box", "std_box")])
            table.close(case.name, kind, f"{name} head map {i}: statistics", values, want, 1e-4, 1e-4)
            if arrays is not None:
                first = arrays[f"train_{name}_{i}_first256"]
                table.close(case.name, kind, f"{name} head map {i}: values", got.flatten()[:256], first, 0.0, 1.5e-3)


def check_assignment(table, case, dtype):
    """Head maps of the training batch, the own assignment, and the loss for the recorded one."""
    kind, arrays = named(dtype), case.arrays("train")
    model = case.model(dtype).train()
    names = BRANCHES if "aux_fg_mask" in arrays else BRANCHES[1:]
    fact = case.train["losses"][0]
    with torch.no_grad():
        heads = model(case.images("train", dtype))
        for name, maps, branch in zip(names, heads, branches(heads)):
            for i, level in enumerate(maps):
                want = arrays[f"{name}_head_{i}_first256"]
                got = head_map(level).flatten()[:256]
                table.close(case.name, kind, f"{name} training head map {i}", got, want, 0.0, 1.5e-3)
            slots = assign_branch(branch, case.boxes(dtype))
            compare_slots(table, case.name, kind, name, slots, arrays, f"{name}_target_", branch.classes.shape[1])
            total = fact.get(f"{name}_target_score_sum")
            if total is not None:
                table.close(case.name, kind, f"{name} sum of target scores", slots.weight.sum(), total, 1e-4)
        total, items = loss(heads, slots=case.slots(dtype))
    table.close(case.name, kind, "loss of the recorded assignment", total, fact["total"], 1e-5)
    table.close(case.name, kind, "items of the recorded assignment", items, fact["items_box_cls_dfl"], 1e-5)


def compare_slots(table, case, kind, branch, slots, arrays, prefix, anchors):
    """Slots as dense arrays, compared where the score is above 0."""
    batch = slots.anchor.shape[0]
    filled = slots.weight > 0
    image = torch.arange(batch)[:, None].expand_as(slots.anchor)[filled]
    at = (image, slots.anchor[filled])
    score = slots.weight.new_zeros((batch, anchors)).index_put(at, slots.weight[filled], accumulate=True)
    label = torch.full((batch, anchors), -1).index_put(at, slots.label[filled])
    box = slots.box.new_zeros((batch, anchors, 4)).index_put(at, slots.box[filled])
    want = arrays[f"{prefix}score"].double()
    positive = want > 0
    same = bool((positive == (score > 0)).all())
    table.equal(case, kind, f"{branch} positives", same, True)
    table.close(case, kind, f"{branch} target scores", score, want, 1e-3, 1e-6)
    labels = arrays[f"{prefix}label"][positive].tolist()
    table.equal(case, kind, f"{branch} target labels", label[positive].tolist(), labels)
    table.close(
        case, kind, f"{branch} target boxes, px", box[positive], arrays[f"{prefix}box_xyxy_px"][positive], 1e-5, 1e-4
    )


def sampled(tensors_, index):
    """L2 norms (P,) and sampled values (P, 3) of tensors in float64."""
    flat = [t.detach().double().flatten() for t in tensors_]
    norms = torch.stack([t.norm() for t in flat])
    return norms, torch.stack([t[i.long()] for t, i in zip(flat, index)])


def check_steps(table, case, dtype):
    """Losses, gradients, statistics and parameters of SGD steps: three in float64, one in float32.

    Rounding grows from step to step: after three, the reference's own float32 run is off by up to 0.4 % in gradient
    norm, and another float32 run by several times that. Float64 has no such excuse.
    """
    kind, facts, arrays = named(dtype), case.train, case.arrays("train")
    model = case.model(dtype).to(memory_format=torch.channels_last)
    trainer = Trainer(model, "fp32", facts["lr"], facts["momentum"], facts["weight_decay"], facts["clip"])
    own, where = dict(model.named_parameters()), arrays["param.idx"]
    trained, stats = [own[n] for n in facts["params"]], [model.state_dict()[n] for n in facts["stats"]]
    start, start_stats = [p.detach().clone() for p in trained], [s.clone() for s in stats]
    images, boxes = case.images("train", dtype).to(memory_format=torch.channels_last), case.boxes(dtype)
    skipped = arrays["grad.f32_rel_l2"] > 0.01
    steps = 3 if dtype == torch.float64 else 1
    for n, (loss_at, norm_at) in enumerate([(1e-5, 2e-4), (1e-4, 1e-3), (1e-3, 5e-3)][:steps]):
        fact = facts["losses"][n]
        total, items = loss(trainer.forward(images), boxes)
        total.backward()
        if n == 0:
            check_gradients(table, case, kind, trained, arrays, where, skipped)
        norm = trainer.update()
        table.close(case.name, kind, f"step {n}: loss", total.detach(), fact["total"], loss_at)
        table.close(case.name, kind, f"step {n}: items", items, fact["items_box_cls_dfl"], loss_at)
        table.close(case.name, kind, f"step {n}: gradient norm", norm, fact["grad_norm_before_clip"], norm_at)
        if n in (0, 2):
            step, loose = n + 1, n == 2
            noise = arrays[f"sgd{step}.f32_rel_l2_of_change"].double()
            floor = 2e-2 if loose else 2e-3
            check_changes(table, case, kind, f"sgd{step}", trained, start, arrays, where, noise, floor)
            check_statistics(table, case, kind, f"stat{step}", stats, start_stats, arrays, loose)
            average = dict(zip(trainer.average.names, trainer.average.values))
            values = [average[n] for n in facts["params"]]
            check_changes(table, case, kind, f"ema{step}", values, start, arrays, where, noise, floor)
            values = [average[n] for n in facts["stats"]]
            check_statistics(table, case, kind, f"statema{step}", values, start_stats, arrays, loose)


def check_gradients(table, case, kind, trained, arrays, where, skipped):
    norms, values = sampled([p.grad for p in trained], where)
    want = arrays["grad.l2"].double()
    per_entry = want / torch.tensor([float(p.numel()) for p in trained]).sqrt()
    keep = ~skipped
    table.close(case.name, kind, "gradients: l2", norms[keep], want[keep], 1e-3)
    absolute = (1e-3 * per_entry)[keep, None]
    table.close(case.name, kind, "gradients: samples", values[keep], arrays["grad.val"][keep], 1e-3, absolute)


def check_changes(table, case, kind, name, values, start, arrays, where, noise, floor):
    """Changes since the start, where float32 can show them."""
    keep = noise <= 0.01
    norms, changes = sampled([v.detach().double() - s.double() for v, s in zip(values, start)], where)
    want = arrays[f"{name}.change_l2"].double()
    relative = torch.maximum(torch.full_like(noise, floor), 10 * noise)
    # Where the true change is 0, rounding of the recorded one is left.
    table.close(case.name, kind, f"{name}: change l2", norms[keep], want[keep], relative[keep], 1e-12)
    per_entry = want / torch.tensor([float(v.numel()) for v in values]).sqrt()
    # A float32 parameter cannot hold a smaller change than half its last place.
    step = 2.0**-24 * arrays[f"{name}.val"].double().abs()
    absolute = (relative * per_entry)[:, None] + 4 * step + 1e-12
    samples = arrays[f"{name}.change_val"]
    table.close(
        case.name, kind, f"{name}: change samples", changes[keep], samples[keep], relative[keep, None], absolute[keep]
    )


def check_statistics(table, case, kind, name, values, start, arrays, loose):
    norms, samples = sampled(values, arrays["stat.idx"])
    want = arrays[f"{name}.l2"].double()
    relative = 1e-3 if loose else 1e-5
    table.close(case.name, kind, f"{name}: l2", norms, want, relative)
    per_entry = want / torch.tensor([float(v.numel()) for v in values]).sqrt()
    table.close(
        case.name, kind, f"{name}: samples", samples, arrays[f"{name}.val"], relative, relative * per_entry[:, None]
    )


def check_adamw(table, case, dtype):
    """One AdamW step instead of SGD: the same gradients through another update."""
    kind, facts, arrays = named(dtype), case.train["adamw"], case.arrays("train")
    model = case.model(dtype)

    def adamw(groups):
        decay = [dict(g, weight_decay=facts["weight_decay"] if g["weight_decay"] else 0.0) for g in groups]
        options = dict(lr=facts["lr"], betas=tuple(facts["betas"]), eps=facts["eps"], amsgrad=facts["amsgrad"])
        return torch.optim.AdamW(decay, **options)

    trainer = Trainer(model, "fp32", clip=case.train["clip"], optimiser=adamw)
    own = dict(model.named_parameters())
    trained = [own[n] for n in case.train["params"]]
    start = [p.detach().clone() for p in trained]
    trainer.step(case.images("train", dtype), case.boxes(dtype))
    norms, _ = sampled([p.detach().double() - s.double() for p, s in zip(trained, start)], arrays["param.idx"])
    noise = arrays["adamw1.f32_rel_l2_of_change"].double()
    keep = noise <= 0.01
    relative = torch.maximum(torch.full_like(noise, 2e-3), 10 * noise)
    table.close(case.name, kind, "adamw1: change l2", norms[keep], arrays["adamw1.change_l2"][keep], relative[keep])


def check_pieces(table, parity):
    """The assigner and the box distribution alone."""
    path = parity / "pieces" / "assigner.safetensors"
    arrays = tensors.read(path)
    points = arrays["anchor_points_px"]
    for case in sorted({k.split(".")[0] for k in arrays if ".in." in k}):
        given = {k.split(".in.")[1]: v for k, v in arrays.items() if k.startswith(f"{case}.in.")}
        batch, classes = given["pd_scores"].shape[0], given["pd_scores"].shape[2]
        none = torch.zeros((batch, 0))
        boxes = Boxes(
            given["gt_labels"][..., 0].long() if "gt_labels" in given else none.long(),
            given.get("gt_bboxes", torch.zeros((batch, 0, 4))),
            given["mask_gt"][..., 0] > 0 if "mask_gt" in given else none.bool(),
        )
        logits = given["pd_scores"].double().logit()
        predicted, double = given["pd_bboxes"].double(), boxes._replace(box=boxes.box.double())
        slots = assign(logits, predicted, points.double(), double)
        if f"{case}.mid.metric" in arrays:
            real = boxes.real[..., None]
            metric, overlap = quality(logits, predicted, double)
            want = arrays[f"{case}.mid.metric"] * real, arrays[f"{case}.mid.overlap"] * real
            table.close("assigner", case, "metric", metric * real, want[0], 2e-4, 1e-6)
            table.close("assigner", case, "overlap", overlap * real, want[1], 1e-5, 2e-6)
        if case == "ties":
            # Which ten of equals win is undefined.
            table.equal(
                "assigner", case, "at most ten a box", int((slots.weight > 0).sum()) <= 10 * boxes.label.shape[1], True
            )
            continue
        scores = arrays[f"{case}.out.target_scores"]
        dense = {
            "score": scores.sum(-1) if classes else scores[..., 0],
            "label": arrays[f"{case}.out.target_labels"],
            "box_xyxy_px": arrays[f"{case}.out.target_bboxes"],
        }
        compare_slots(table, "assigner", case, "", slots, dense, "", points.shape[0])
    arrays = tensors.read(parity / "pieces" / "dfl.safetensors")
    bins = torch.arange(BINS, dtype=torch.float64)
    distances = arrays["logits"].double().unflatten(-1, (4, BINS)).softmax(-1) @ bins
    table.close("dfl", "", "expected distances", distances, arrays["expected_distance"], 1e-5, 1e-5)
    xyxy = decode(distances, arrays["anchor_points"].double())
    table.close("dfl", "", "decoded boxes", xyxy, arrays["xyxy_grid"], 1e-5, 1e-5)


def check_scopes(table, case):
    """A step cut into phases, as the profile runs it, changes no number; nor does a replayed average."""
    results = []
    for scoped in (False, True):
        trainer = Trainer(case.model(torch.float64), "fp32")
        images, boxes = case.images("train", torch.float64), case.boxes(torch.float64)
        if scoped:
            total, _, norm = trainer.scoped_step(images, boxes, torch.profiler.record_function)
        else:
            trainer.average.weight.fill_(trainer.average.advance())
            total, _, norm = trainer.step(images, boxes, replayed=True)
        flat = torch.cat([v.flatten() for v in trainer.average.values])
        results.append((torch.stack((total, norm)), flat))
    table.close(case.name, "float64", "step in phases: loss, norm", results[1][0], results[0][0], 1e-10)
    table.close(case.name, "float64", "step in phases: average", results[1][1], results[0][1], 1e-10, 1e-12)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", type=Path, default=fixtures.PARITY, help="folder of the recorded cases")
    parser.add_argument("--case", action="append", help="only this case, such as yolov9-t-nc80; may be repeated")
    parser.add_argument("--quick", action="store_true", help="float32 only")
    options = parser.parse_args()
    begun, table = time.time(), Table()
    if not options.case:
        check_zoo(table)
        check_pieces(table, options.fixtures)
    listed = sorted(p.name.removesuffix(".json") for p in (options.fixtures / "models").glob("*-nc*.json"))
    names = options.case or [n for n in listed if "." not in n]
    kinds = (torch.float32,) if options.quick else (torch.float32, torch.float64)
    for name in names:
        case = fixtures.Case(name, options.fixtures)
        check_names(table, case)
        for dtype in kinds:
            check_forward(table, case, dtype)
            if case.train:
                check_assignment(table, case, dtype)
                check_steps(table, case, dtype)
                check_adamw(table, case, dtype)
        if case.train:
            check_scopes(table, case)
    print(f"{table.rows} rows, {table.failed} failed, {time.time() - begun:.0f} s")
    return 1 if table.failed or not table.rows else 0


if __name__ == "__main__":
    sys.exit(main())
