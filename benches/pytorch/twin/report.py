"""What a measurement was made on, how much memory it took, and how figures are summed up."""

import platform
import sys
import time

import torch

BEGUN = time.time()


def say(text):
    """A line of progress, with the seconds since the start."""
    print(f"[{time.time() - BEGUN:7.1f} s] {text}", file=sys.stderr, flush=True)


def pick_device(name):
    """The device asked for, or the GPU where there is one."""
    device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("error: no GPU is visible to PyTorch")
        torch.cuda.set_device(device.index or 0)
        return torch.device("cuda", device.index or 0)
    return device


def versions(device):
    """Versions of everything a figure depends on."""
    out = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    out["cudnn"] = torch.backends.cudnn.version() if device.type == "cuda" else None
    out["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    try:
        import triton

        out["triton"] = triton.__version__
    except ImportError:
        out["triton"] = None
    return out


def spread(times):
    """Median, quantiles and extremes of times in ms."""
    ordered = sorted(times)

    def at(q):
        position = q * (len(ordered) - 1)
        low = int(position)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (position - low)

    quantiles = {"median": at(0.5), "p10": at(0.1), "p90": at(0.9), "min": ordered[0], "max": ordered[-1]}
    return {"mean": sum(ordered) / len(ordered), **quantiles}


def memory(device):
    """Peak bytes of this process by the allocator, and what the whole device holds now."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    out = {
        "allocated_peak": torch.cuda.max_memory_allocated(device),
        "reserved_peak": torch.cuda.max_memory_reserved(device),
        "device_used": total - free,
        "nvml_used": None,
    }
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        out["nvml_used"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        pynvml.nvmlShutdown()
    except Exception as problem:  # The package and the library are both optional, and it is a side figure.
        say(f"no NVML figure: {problem}")
    return out
