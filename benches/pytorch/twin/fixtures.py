"""Recorded cases of `tests/parity`: the rule that fills weights and pictures, and what a case expects."""

import json
import math
import re
from pathlib import Path

import numpy as np
import torch

from . import tensors
from .assigner import Slots, pad_boxes
from .head import STRIDES
from .model import Model

PARITY = Path(__file__).resolve().parents[3] / "tests" / "parity"
FILL_SEED, IMAGE_SEED = 1592590337, 443416577
_STEP = np.uint64(0x9E3779B97F4A7C15)


def _fnv(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def _mix(x):
    z = x + _STEP
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _hash(name, seed, index):
    return _mix(np.uint64(_fnv(name) ^ seed) + index * _STEP)


def fill_values(name, shape):
    """v of the rule, in [-1, 1), float64."""
    count = int(np.prod(shape))
    z = _hash(name, FILL_SEED, np.arange(count, dtype=np.uint64))
    return 2.0 * ((z >> np.uint64(40)).astype(np.float64) / 2**24) - 1.0


def _filled(name, shape, gains, nc, head):
    v = fill_values(name, shape)
    if name in gains:
        return v * (math.sqrt(3.0 / int(np.prod(shape[1:]))) * gains[name])
    if name.endswith("running_var"):
        return 1.0 + 0.3 * v
    if name.endswith("bn.weight"):
        return 0.15 + 0.03 * v if re.search(r"\.m\.[0-9]+\.cv2\.bn\.weight$", name) else 0.5 + 0.1 * v
    level = re.fullmatch(rf"model\.{head}\.cv[35]\.([0-9])\.2\.bias", name)
    prior = math.log(5 / nc / (640 / STRIDES[int(level.group(1))]) ** 2) if level else 0.0
    return prior + 0.1 * v


@torch.no_grad()
def fill(model, gains):
    """Fills a model by the rule."""
    head = len(model.inputs) - 1
    for name, tensor in model.state_dict().items():
        if ".dfl" in name or name.endswith("num_batches_tracked"):
            continue
        if name.endswith("weight") and tensor.dim() == 4 and name not in gains:
            raise ValueError(f"no gain for {name}")
        values = _filled(name, tuple(tensor.shape), gains, model.nc, head).astype(np.float32)
        tensor.copy_(torch.from_numpy(values).view(tensor.shape))


def picture(name, batch, height, width):
    """uint8 (B, 3, H, W)."""
    b, c, y, x = np.ogrid[:batch, :3, :height, :width]
    plane = (b * 3 + c).astype(np.uint64)
    y, x = y.astype(np.uint64), x.astype(np.uint64)
    rows, columns = np.uint64(-(-height // 16)), np.uint64(-(-width // 16))
    sixteen = np.uint64(16)
    block = _hash(f"{name}.block", IMAGE_SEED, (plane * rows + y // sixteen) * columns + x // sixteen)
    fine = _hash(f"{name}.fine", IMAGE_SEED, (plane * np.uint64(height) + y) * np.uint64(width) + x)
    eight = np.uint64(56)
    return torch.from_numpy(((np.uint64(3) * (block >> eight) + (fine >> eight)) // np.uint64(4)).astype(np.uint8))


class Case:
    """A recorded model such as `yolov9-t-nc80`, and its training steps where there are any."""

    def __init__(self, name, parity=PARITY):
        self.name, self.parity = name, Path(parity)
        self.facts = self._json(f"models/{name}.json")
        self.gains = self._json(f"models/{name}.gains.json")
        self.train = self._json(f"train/{name}.json")

    def _json(self, path):
        path = self.parity / path
        return json.loads(path.read_text()) if path.is_file() else None

    def arrays(self, folder):
        """Arrays of `models` or `train`; None where the file is not there."""
        path = self.parity / folder / f"{self.name}.safetensors"
        return tensors.read(path) if path.is_file() else None

    def model(self, dtype=torch.float32):
        """The filled model."""
        match = re.fullmatch(r"(.+)-nc([0-9]+)", self.name)
        if not match or self.gains is None:
            raise SystemExit(f"error: {self.parity} has no case {self.name}")
        own = self.parity / "models" / f"{match.group(1)}.yaml"
        model = Model(own if own.is_file() else match.group(1), int(match.group(2)))
        fill(model, self.gains)
        return model.to(dtype)

    def images(self, name, dtype=torch.float32):
        """Network input of picture batch `image` (2 pictures) or `train` (4)."""
        pixels = picture(name, 2 if name == "image" else 4, 128, 160)
        return (pixels.to(torch.float32) / 255).to(dtype)

    def boxes(self, dtype=torch.float32):
        """Ground truth of the training batch."""
        rows = self.arrays("train")["targets"]
        return pad_boxes(rows, self.train["batch"], self.train["width"], self.train["height"], dtype)

    def slots(self, dtype=torch.float32):
        """The recorded assignment, auxiliary branch first: one slot an anchor."""
        arrays, out = self.arrays("train"), []
        for branch in ("aux", "main"):
            if f"{branch}_fg_mask" not in arrays:
                continue
            label = arrays[f"{branch}_target_label"].long().clamp(min=0)
            weight = arrays[f"{branch}_target_score"].to(dtype) * arrays[f"{branch}_fg_mask"]
            anchor = torch.arange(label.shape[1]).expand(label.shape)
            out.append(Slots(anchor, label, arrays[f"{branch}_target_box_xyxy_px"].to(dtype), weight))
        return out


def case_of(model, parity=PARITY):
    """The only training case of a model, such as `yolov9-t-nc80` of `yolov9-t`."""
    found = [p.stem for p in sorted((Path(parity) / "train").glob("*.safetensors"))]
    own = [c for c in found if c == model or c.rsplit("-nc", 1)[0] == model]
    if len(own) != 1:
        raise SystemExit(f"error: {model} names {len(own)} of the training cases in {parity}/train: {', '.join(found)}")
    return own[0]
