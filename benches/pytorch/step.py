#!/usr/bin/env python3
"""Times whole training steps on random data that lies on the device: forward, loss, backward, update, average."""

import argparse
import json
import time
from pathlib import Path

import torch

from twin import breakdown
from twin.model import Model
from twin.random_batch import RandomBatch
from twin.report import memory, pick_device, say, spread, versions
from twin.shapes import convolutions, step_flops
from twin.train import Replay, Trainer
from twin.zoo import MODELS


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="yolov9-s", help=f"{', '.join(MODELS)}, or a YAML file")
    parser.add_argument("--nc", type=int, help="classes; default is the file's")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--img", type=int, default=640, help="side of the square images, a multiple of 32")
    parser.add_argument("--steps", type=int, default=50, help="timed steps")
    parser.add_argument("--warmup", type=int, default=10, help="steps before; at least 3")
    parser.add_argument("--precision", choices=("bf16", "fp32", "tf32"), default="bf16")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="model",
        choices=("model", "blocks"),
        help="torch.compile of the whole model, or layer by layer (far quicker to compile)",
    )
    parser.add_argument("--compile-mode", help="mode of torch.compile, such as max-autotune-no-cudagraphs")
    parser.add_argument("--compile-loss", action="store_true", help="torch.compile of the loss and the assigner")
    parser.add_argument(
        "--cuda-graph", action="store_true", help="capture the whole step and replay it: no launch gaps"
    )
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN time its algorithms")
    parser.add_argument("--contiguous", action="store_true", help="NCHW memory instead of channels-last")
    parser.add_argument(
        "--profile", action="store_true", help="afterwards, kernel time by kind (steps without a graph)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cuda, cuda:1, cpu; default is the GPU where there is one")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser.parse_args()


class Timer:
    """Times of steps in ms: by events on the GPU's clock, by the host's clock elsewhere."""

    def __init__(self, device):
        self.cuda, self.marks = device.type == "cuda", []

    def mark(self):
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    def time(self, run):
        start = self.mark()
        result = run()
        self.marks.append((start, self.mark()))
        return result

    def milliseconds(self):
        """Waits for the device, then all times."""
        if self.cuda:
            torch.cuda.synchronize()
            return [start.elapsed_time(end) for start, end in self.marks]
        return [1e3 * (end - start) for start, end in self.marks]


def main():
    options = arguments()
    device = pick_device(options.device)
    cuda = device.type == "cuda"
    if options.img % 32:
        raise SystemExit(f"error: --img {options.img} is no multiple of 32")
    if options.cuda_graph and not cuda:
        raise SystemExit("error: --cuda-graph needs a GPU")
    torch.manual_seed(options.seed)
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    facts = versions(device)
    say(f"{facts['device']}, torch {facts['torch']}, CUDA {facts['cuda']}, cuDNN {facts['cudnn']}")

    model = Model(options.model, options.nc).to(device)
    if not options.contiguous:
        model = model.to(memory_format=torch.channels_last)
    parameters = sum(p.numel() for p in model.parameters())
    say(f"{options.model}: {parameters:,} parameters, {model.nc} classes")
    trainer = Trainer(model, options.precision)
    if options.compile:
        trainer.compile(options.compile, options.compile_mode)
    if options.compile_loss:
        trainer.compile("loss", options.compile_mode)
    data = RandomBatch(options.batch, options.img, model.nc, device, options.seed)
    if options.contiguous:
        data.images = data.images.contiguous()

    warmup, replay = max(options.warmup, 3), None
    if options.cuda_graph:
        say(f"capturing a step after {warmup} ordinary ones")
        replay = Replay(trainer, data.images, data.boxes, warmup)
        step = replay.step
    else:
        step = lambda: trainer.step(data.images, data.boxes)  # noqa: E731
    for i in range(warmup):
        data.refill()
        begun = time.time()
        total, _, _ = step()
        total = float(total)
        say(f"warm-up {i + 1} of {warmup}: {time.time() - begun:.3f} s, loss {total:.4g}")

    timer = Timer(device)
    if cuda:
        torch.cuda.synchronize()
    begun = time.time()
    for _ in range(max(options.steps, 1)):
        data.refill()
        result = timer.time(step)
    times = timer.milliseconds()
    wall = time.time() - begun
    total, items, norm = (r.tolist() for r in result)
    used = memory(device)

    figures = spread(times)
    flops = step_flops(convolutions(options.model, options.img, options.img, options.nc), options.batch)
    out = {
        "model": options.model, "nc": model.nc, "batch": options.batch, "img": options.img,
        "precision": options.precision, "compile": options.compile, "compile_mode": options.compile_mode,
        "compile_loss": options.compile_loss, "cuda_graph": options.cuda_graph,
        "cudnn_benchmark": options.cudnn_benchmark, "channels_last": not options.contiguous, "steps": len(times),
        "warmup": warmup, "step_ms": figures, "images_per_s": options.batch / figures["median"] * 1e3,
        # With the drawing of new images and boxes, and without the host waiting between steps.
        "images_per_s_wall": options.batch * len(times) / wall,
        "conv_tflops": flops / figures["median"] * 1e-9, "memory": used, "loss": total, "items": items,
        "gradient_norm": norm, "parameters": parameters, **facts,
    }  # fmt: skip
    if options.profile:
        say("profiling two steps, without a graph")
        step = replay = result = None
        if cuda:
            torch.cuda.empty_cache()

        def profiled():
            with breakdown.scope("refill"):
                data.refill()
            trainer.scoped_step(data.images, data.boxes, breakdown.scope)

        profiled()
        out["profile"] = breakdown.analyse(breakdown.record(profiled, 2, device), 2)

    # The JSON line is the last but one, so that a log's tail holds it; nothing else goes to standard output.
    if options.profile:
        print(breakdown.show(out["profile"]))
    print(json.dumps({k: v for k, v in out.items() if k != "profile"}))
    setting = f"{options.model} batch {options.batch} at {options.img} {options.precision}"
    text = (
        f"{setting}: {figures['median']:.2f} ms a step ({figures['p10']:.2f} to {figures['p90']:.2f}), "
        f"{out['images_per_s']:.1f} images/s, {out['conv_tflops']:.1f} TFLOP/s in convolutions"
    )
    if used:
        gib = 2.0**30
        text += f"; {used['allocated_peak'] / gib:.2f} GiB allocated, {used['reserved_peak'] / gib:.2f} reserved"
        text += f", {(used['nvml_used'] or used['device_used']) / gib:.2f} in use on the device"
    print(text, flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
