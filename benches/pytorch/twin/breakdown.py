"""Where the GPU time of a step goes: kernels of a profiler trace, sorted by phase and kind."""

import bisect
import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

PREFIX = "phase: "
WORK = {"kernel", "gpu_memcpy", "gpu_memset"}
LAUNCHES = {"cuda_runtime", "cuda_driver"}

# Phases whose kernels are not split further.
WHOLE = {"refill", "loss", "assigner", "loss backward", "clip", "optimiser", "average"}

COPIES = r"copy|Memcpy|Memset|FillFunctor|elementwise|CatArray"
EITHER, DATA, WEIGHT = (
    "convolution, gradient of either kind",
    "convolution, data gradient",
    "convolution, weight gradient",
)

# First match wins: (kind, pattern for the operators above the kernel, pattern for the kernel's name).
KINDS = [
    ("compiled (Triton)", None, r"^triton_"),
    ("convolution, layout change", r"convolution", r"nchwToNhwc|nhwcToNchw|tensorTransform|nchw2nhwc|nhwc2nchw"),
    ("convolution, bias gradient", r"convolution_backward", r"reduce_kernel"),
    (DATA, r"convolution_backward", r"dgrad|bwd_?data|backward_?data"),
    (WEIGHT, r"convolution_backward", r"wgrad|bwd_?filter|backward_?filter"),
    ("convolution, copies and bias", r"convolution", COPIES),
    (EITHER, r"convolution_backward", None),
    ("convolution, forward", r"convolution", None),
    ("batch norm", r"batch_norm", None),
    ("batch norm", None, r"batch_norm|bn_fw|bn_bw"),
    ("SiLU", r"silu", None),
    ("average pools", r"avg_pool", None),
    ("max pools", r"max_pool", None),
    ("upsampling", r"upsample", None),
    ("concat and split", r"aten::(cat|split|slice_backward|narrow)|CatBackward|SplitBackward", None),
    ("casts and copies", r"aten::(copy_|_to_copy|to|clone|contiguous)\b", None),
    ("casts and copies", None, r"Memcpy"),
    ("fills", r"aten::(fill_|zero_)", None),
    ("fills", None, r"Memset"),
    ("sums", r"aten::(add|add_)\b", None),
]  # fmt: skip


def scope(name):
    """The context manager that names a phase."""
    return record_function(PREFIX + name)


def kind_of(operators, kernel):
    """The kind of a kernel launched inside `operators` (names, outermost first)."""
    above = " ".join(operators)
    for kind, operator, name in KINDS:
        if (operator is None or re.search(operator, above)) and (name is None or re.search(name, kernel)):
            return kind
    return "other"


def _enclosing(events):
    """A function from (thread, time) to the host operators around it, (name, start), outermost first."""
    threads = defaultdict(list)
    for e in events:
        if e.get("cat") == "cpu_op":
            threads[e["tid"]].append((e["ts"], -e["dur"], e["ts"] + e["dur"], e["name"]))
    starts = {}
    for thread, ops in threads.items():
        ops.sort()
        # The parent of each operator is the innermost one still open when it starts.
        parents, stack = [], []
        for i, (start, _, _, _) in enumerate(ops):
            while stack and ops[stack[-1]][2] <= start:
                stack.pop()
            parents.append(stack[-1] if stack else -1)
            stack.append(i)
        starts[thread] = ([op[0] for op in ops], ops, parents)

    def find(thread, time):
        if thread not in starts:
            return []
        begins, ops, parents = starts[thread]
        i, around = bisect.bisect_right(begins, time) - 1, []
        while i >= 0:
            if ops[i][2] >= time:
                around.append((ops[i][3], ops[i][0]))
            i = parents[i]
        return around[::-1]

    return find


def _settle(kinds):
    """Kinds of the kernels of one backward convolution in launch order, with those that no name gives away resolved.

    The operator computes the data gradient first, so what comes before a known one of them is data, after it weight.
    """
    known = [k for k in kinds if k in (DATA, WEIGHT)]
    out, seen, unnamed = [], None, sum(k == EITHER for k in kinds)
    for i, kind in enumerate(kinds):
        if kind == EITHER:
            later = [k for k in kinds[i + 1 :] if k in (DATA, WEIGHT)]
            if seen == WEIGHT:
                kind = WEIGHT
            elif later:
                kind = DATA
            elif seen == DATA:
                kind = WEIGHT
            elif not known and unnamed > 1:
                kind, seen = DATA, DATA
        if kind in (DATA, WEIGHT):
            seen = kind
        out.append(kind)
    return out


def _kernels(events):
    """Rows [phase, kind, event] of everything that ran on the GPU."""
    phases = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith(PREFIX)]
    phases = sorted((e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(PREFIX)) for e in phases)
    begins = [p[0] for p in phases]
    launches = {
        e["args"]["correlation"]: e for e in events if e.get("cat") in LAUNCHES and "correlation" in e.get("args", {})
    }
    enclosing = _enclosing(events)
    rows, backward = [], defaultdict(list)
    for e in events:
        if e.get("cat") not in WORK:
            continue
        launch = launches.get(e.get("args", {}).get("correlation"))
        phase, around = "outside", []
        if launch:
            i = bisect.bisect_right(begins, launch["ts"]) - 1
            if i >= 0 and launch["ts"] <= phases[i][1]:
                phase = phases[i][2]
            around = enclosing(launch["tid"], launch["ts"])
        kind = phase if phase in WHOLE else kind_of([name for name, _ in around], e["name"])
        rows.append([phase, kind, e])
        if kind in (DATA, WEIGHT, EITHER):
            start = max(start for name, start in around if "convolution_backward" in name)
            backward[launch["tid"], start].append((launch["ts"], len(rows) - 1))
    for group in backward.values():
        group.sort()
        for (_, i), kind in zip(group, _settle([rows[i][1] for _, i in group])):
            rows[i][1] = kind
    return rows


def analyse(trace, steps):
    """Milliseconds and launches a step by phase and by kind, from a Chrome trace as a dictionary."""
    rows = _kernels([e for e in trace["traceEvents"] if e.get("ph") == "X" and "dur" in e])
    by_phase, by_kind, names = defaultdict(float), defaultdict(lambda: [0.0, 0]), defaultdict(lambda: [0.0, 0])
    spans = []
    for phase, kind, e in rows:
        by_phase[phase] += e["dur"]
        for table, key in ((by_kind, kind), (names, (kind, e["name"]))):
            table[key][0] += e["dur"]
            table[key][1] += 1
        spans.append((e["ts"], e["ts"] + e["dur"]))
    busy, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    window = max(e for _, e in spans) - min(s for s, _ in spans) if spans else 0.0
    scale = 1e-3 / steps
    top = sorted(names.items(), key=lambda item: -item[1][0])[:25]
    return {
        "kernel_ms": sum(by_phase.values()) * scale,
        "busy_ms": busy * scale,
        "window_ms": window * scale,
        "launches": len(rows) / steps,
        "phases_ms": {k: v * scale for k, v in sorted(by_phase.items(), key=lambda item: -item[1])},
        "kinds": {
            k: {"ms": ms * scale, "launches": n / steps}
            for k, (ms, n) in sorted(by_kind.items(), key=lambda i: -i[1][0])
        },
        "top_kernels": [
            {"kind": k, "kernel": name[:160], "ms": ms * scale, "launches": n / steps} for (k, name), (ms, n) in top
        ],
    }


def record(run, steps, device):
    """Profiles `steps` calls of `run` and returns the trace."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    with profile(activities=activities) as recorded:
        for _ in range(steps):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))


def show(result):
    """The breakdown as text."""
    lines = [
        f"kernels {result['kernel_ms']:.2f} ms a step in {result['launches']:.0f} launches; "
        f"GPU busy {result['busy_ms']:.2f} of {result['window_ms']:.2f} ms (the profiler slows the host)"
    ]
    lines.append("by phase: " + ", ".join(f"{k} {v:.2f}" for k, v in result["phases_ms"].items()))
    total = result["kernel_ms"] or 1.0
    for kind, row in result["kinds"].items():
        lines.append(
            f"  {kind:38} {row['ms']:9.3f} ms {100 * row['ms'] / total:5.1f} % {row['launches']:8.1f} launches"
        )
    lines.append("longest kernels:")
    for row in result["top_kernels"]:
        lines.append(f"  {row['ms']:9.3f} ms {row['launches']:7.1f} x  {row['kind']}: {row['kernel'][:110]}")
    return "\n".join(lines)
