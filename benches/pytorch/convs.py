#!/usr/bin/env python3
"""Times every convolution of a model alone: what cuDNN takes for the convolutions of one training step."""

import argparse
import json
import math
from pathlib import Path

import torch

from twin.report import pick_device, say, spread, versions
from twin.shapes import convolutions
from twin.train import set_tf32
from twin.zoo import MODELS

# Inputs are rotated through at least this many bytes, more than any second-level cache holds: in a step, too, a
# convolution seldom finds its input there.
COLD = 256 << 20
DIRECTIONS = ("forward", "data", "weight")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="yolov9-s", help=f"{', '.join(MODELS)}, or a YAML file")
    parser.add_argument("--nc", type=int, help="classes; default is the file's")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--img", type=int, default=640)
    parser.add_argument("--precision", choices=("bf16", "fp32", "tf32"), default="bf16")
    parser.add_argument("--contiguous", action="store_true", help="NCHW memory instead of channels-last")
    parser.add_argument("--replays", type=int, default=7, help="timed replays a convolution; the median counts")
    parser.add_argument("--only", help="only shapes whose text contains this, such as '3x3 32->32'")
    parser.add_argument("--device", help="cuda, cuda:1; cpu for a dry run")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser.parse_args()


def operations(shape, batch, dtype, device, memory):
    """The three directions as lists of functions, one function a set of inputs."""
    h, w = shape.out
    sizes = (batch, shape.c_in, shape.height, shape.width), (batch, shape.c_out, h, w)
    bytes_ = sum(math.prod(s) for s in sizes) * dtype.itemsize
    copies = min(8, max(1, math.ceil(COLD / bytes_)))
    pad = [shape.k // 2] * 2
    shared = ([shape.stride] * 2, pad, [1, 1], False, [0, 0], shape.groups)
    weight_shape = (shape.c_out, shape.c_in // shape.groups, shape.k, shape.k)
    out = {name: [] for name in DIRECTIONS}
    for _ in range(copies):
        x, dy = (torch.randn(s, device=device, dtype=dtype).to(memory_format=memory) for s in sizes)
        weight = torch.randn(weight_shape, device=device).mul_((shape.c_in // shape.groups * shape.k**2) ** -0.5)
        weight = weight.to(dtype).to(memory_format=memory)

        def forward(x=x, weight=weight):
            return torch.ops.aten.convolution(x, weight, None, *shared)

        def data(x=x, weight=weight, dy=dy):
            return torch.ops.aten.convolution_backward(dy, x, weight, None, *shared, [True, False, False])[0]

        def gradient(x=x, weight=weight, dy=dy):
            return torch.ops.aten.convolution_backward(dy, x, weight, None, *shared, [False, True, False])[1]

        out["forward"].append(forward)
        out["data"].append(data)
        out["weight"].append(gradient)
    return out


def microseconds(functions, replays, device):
    """Median time of one call, from a captured run of several."""
    if device.type != "cuda":
        import time

        functions[0]()
        begun = time.perf_counter()
        functions[0]()
        return 1e6 * (time.perf_counter() - begun)
    # cuDNN times its algorithms in the first call, so each set of inputs is run before the capture.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for function in functions:
            function()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        functions[0]()
        end.record()
    torch.cuda.synchronize()
    guess = max(start.elapsed_time(end), 0.005)
    # About 4 ms a replay, in whole rounds of the inputs.
    calls = math.ceil(min(max(4.0 / guess, 4), 200) / len(functions)) * len(functions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            functions[i % len(functions)]()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    median = spread([s.elapsed_time(e) for s, e in times])["median"]
    del graph
    return 1e3 * median / calls


def main():
    options = arguments()
    device = pick_device(options.device)
    torch.backends.cudnn.benchmark = True
    set_tf32(options.precision == "tf32")
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    memory = torch.contiguous_format if options.contiguous else torch.channels_last
    facts = versions(device)
    say(f"{facts['device']}, torch {facts['torch']}, CUDA {facts['cuda']}, cuDNN {facts['cudnn']}")
    found = convolutions(options.model, options.img, options.img, options.nc)
    shapes = [(s, n) for s, n in found.items() if not options.only or options.only in str(s)]
    say(f"{options.model}: {sum(n for _, n in shapes)} convolutions of {len(shapes)} shapes, batch {options.batch}")
    rows, sums = [], dict.fromkeys(DIRECTIONS, 0.0)
    for i, (shape, count) in enumerate(shapes, 1):
        row = {"shape": str(shape), "count": count, "macs": shape.macs * options.batch}
        work = operations(shape, options.batch, dtype, device, memory)
        for name in DIRECTIONS:
            if name == "data" and not shape.needs_data_gradient:
                row[name] = None
                continue
            try:
                row[name] = microseconds(work[name], options.replays, device)
            except RuntimeError as problem:
                # A shape that cuDNN refuses is named and left out, and the sum says so.
                say(f"{shape} {name}: {str(problem).splitlines()[0]}")
                row[name] = float("nan")
                continue
            sums[name] += row[name] * count
        rows.append(row)
        del work
        if device.type == "cuda":
            torch.cuda.empty_cache()
        rate = 2e-6 * row["macs"]
        text = ", ".join(f"{n} {row[n]:.1f} us ({rate / row[n]:.0f} TFLOP/s)" for n in DIRECTIONS if row[n])
        say(f"{i:3} of {len(shapes)}: {count:3} x {shape}: {text}")

    rows.sort(key=lambda r: -r["count"] * sum(r[n] or 0.0 for n in DIRECTIONS))
    print(f"{'shape':36} {'count':>5} {'forward':>9} {'data':>9} {'weight':>9} us {'all':>9} ms")
    for row in rows:
        cells = " ".join(f"{row[n]:9.1f}" if row[n] is not None else f"{'-':>9}" for n in DIRECTIONS)
        total = row["count"] * sum(row[n] or 0.0 for n in DIRECTIONS) / 1e3
        print(f"{row['shape']:36} {row['count']:5} {cells}    {total:9.3f}")
    failed = sum(math.isnan(r[n]) for r in rows for n in DIRECTIONS if r[n] is not None)
    result = {
        "model": options.model, "batch": options.batch, "img": options.img, "precision": options.precision,
        "channels_last": not options.contiguous, "only": options.only, "failed": failed,
        "ms": {name: value / 1e3 for name, value in sums.items()}, "total_ms": sum(sums.values()) / 1e3, **facts,
    }  # fmt: skip
    print(json.dumps(result))
    parts = ", ".join(f"{name} {value / 1e3:.2f}" for name, value in sums.items())
    left_out = f"; {failed} could not be timed" if failed else ""
    setting = f"{options.model} batch {options.batch} at {options.img} {options.precision}"
    print(f"{setting}, convolutions alone: {result['total_ms']:.2f} ms ({parts}){left_out}", flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({**result, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
