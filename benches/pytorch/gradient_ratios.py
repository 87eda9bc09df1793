#!/usr/bin/env python3
"""Another program's bf16 gradients beside PyTorch autocast's, tensor by tensor, over many roundings.

One batch gives each tensor one error, whose size is luck: the same program with weights a rounding apart errs by half
or twice as much in small tensors. So both get the same slightly different weights many times, each judged by float64
gradients of its own, and what is compared are root mean squares over all of them.

    gradient_ratios.py fill --count 32 --folder weights/
    ... the other program writes its gradients for each file of weights/ into ours/ ...
    gradient_ratios.py judge --folder weights/ --compare ours/ --out ratios.json
"""

import argparse
import json
from pathlib import Path

import torch

from gradients import ZERO, gradients
from twin import fixtures, tensors
from twin.report import pick_device, say, versions

# Half a unit in the last place of bf16: enough to round everything anew, too little to change the model.
SPREAD = 2.0**-9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fill", "judge"))
    parser.add_argument("--model", default="yolov9-cmicro-nc5", help="a model with a training case, or the case")
    parser.add_argument("--fixture", type=Path, default=fixtures.PARITY, help="folder of the recorded cases")
    parser.add_argument("--folder", type=Path, required=True, help="of the weights")
    parser.add_argument("--count", type=int, default=32, help="of the weights to fill")
    parser.add_argument("--compare", type=Path, help="folder of the other program's gradients")
    parser.add_argument("--out", type=Path, default=Path("gradient-ratios.json"))
    parser.add_argument("--device", help="default is the GPU where there is one")
    return parser.parse_args()


def fill(case, folder, count):
    """Writes the case's weights, each entry scaled by up to SPREAD, drawn from the number of the file."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t for n, t in case.model().state_dict().items() if t.is_floating_point()}
    for number in range(count):
        draw = torch.Generator().manual_seed(number)
        scaled = {n: t * (1 + SPREAD * (2 * torch.rand(t.shape, generator=draw) - 1)) for n, t in state.items()}
        tensors.write(folder / f"{number:03}.safetensors", scaled)
    say(f"{count} files in {folder}")


class Squares:
    """Sums of squared relative errors of each tensor."""

    def __init__(self):
        self.by_name, self.off, self.whole, self.runs = {}, 0.0, 0.0, 0

    def add(self, truth, found):
        self.runs += 1
        entries = sum(t.numel() for t in truth.values())
        whole = sum(float(t.square().sum()) for t in truth.values())
        floor = ZERO * (whole / entries) ** 0.5
        self.whole += whole
        for name, want in truth.items():
            off, norm = float((found[name].double() - want).norm()), float(want.norm())
            self.off += off**2
            if norm > floor * want.numel() ** 0.5:
                self.by_name[name] = self.by_name.get(name, 0.0) + (off / norm) ** 2

    def errors(self):
        return {name: (sum_ / self.runs) ** 0.5 for name, sum_ in self.by_name.items()}


def judge(case, options, device):
    files = sorted(options.folder.glob("*.safetensors"))
    # The second half of PyTorch's runs beside the first tells how far a ratio is luck.
    theirs, ours, halves = Squares(), Squares(), (Squares(), Squares())
    for number, path in enumerate(files):
        _, truth = gradients(case, "float64", device, "fixture", path)
        _, twin = gradients(case, "bf16", device, "fixture", path)
        theirs.add(truth, twin)
        halves[number % 2].add(truth, twin)
        ours.add(truth, tensors.read(options.compare / path.name))
        say(f"{number + 1} of {len(files)}")
    result = {"case": case.name, "runs": len(files), **versions(device)}
    for name, a, b in (("ours by PyTorch", ours, theirs), ("PyTorch by PyTorch", *halves)):
        a_errors, b_errors = a.errors(), b.errors()
        ratios = {n: a_errors[n] / b_errors[n] for n in b_errors if n in a_errors}
        ranked = sorted(ratios.values())
        within = sum(r <= 1.5 for r in ranked) / len(ranked)
        whole = [(s.off / s.whole) ** 0.5 for s in (a, b)]
        worst = sorted(ratios, key=ratios.get)[-5:][::-1]
        print(
            f"{name:20} {len(ranked)} tensors: median {ranked[len(ranked) // 2]:.3f}, p99 "
            f"{ranked[int(0.99 * len(ranked))]:.2f}, largest {ranked[-1]:.2f}, {100 * within:.1f} % within 1.5; "
            f"all together {whole[0]:.3f} by {whole[1]:.3f}"
        )
        print("".join(f"{'':20} {ratios[n]:.2f} {a_errors[n]:.3f} by {b_errors[n]:.3f} {n}\n" for n in worst), end="")
        result[name] = {"ratios": ratios, "whole": whole, "errors": [a_errors, b_errors]}
    options.out.write_text(json.dumps(result, indent=1))
    say(f"per tensor in {options.out}")


def main():
    options = arguments()
    case = fixtures.Case(fixtures.case_of(options.model, options.fixture), options.fixture)
    if options.what == "fill":
        fill(case, options.folder, options.count)
    elif options.compare is None:
        raise SystemExit("error: judge needs --compare")
    else:
        judge(case, options, pick_device(options.device))


if __name__ == "__main__":
    main()
