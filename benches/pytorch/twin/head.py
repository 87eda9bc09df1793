"""Detection heads: a box tower and a class tower per level, one branch or two."""

import math

import torch
from torch import nn

from .boxes import anchor_points, decode
from .conv import Conv

STRIDES = (8, 16, 32)
BINS = 16


class Dfl(nn.Module):
    """Expectation over the bins. The weight is fixed: 0, 1, ... 15."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(BINS, 1, 1, bias=False).requires_grad_(False)
        self.conv.weight.data[:] = torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1)

    def forward(self, logits):
        """Logits (..., 4 * 16) to distances (..., 4)."""
        bins = self.conv.weight.view(BINS).to(logits.dtype)
        return logits.unflatten(-1, (4, BINS)).softmax(-1) @ bins


def _box_tower(c_in, c):
    return nn.Sequential(Conv(c_in, c, 3), Conv(c, c, 3, groups=4), nn.Conv2d(c, 4 * BINS, 1, groups=4))


def _class_tower(c_in, c, nc):
    return nn.Sequential(Conv(c_in, c, 3), Conv(c, c, 3), nn.Conv2d(c, nc, 1))


class Detect(nn.Module):
    """A head over 3 levels (one branch) or 6 (auxiliary levels first, then main).

    In training mode returns one list per branch, main last, of (box map, class map) per level; in evaluation mode
    one prediction per branch, (B, 4 + nc, A): centre and size in px, then class scores.
    """

    def __init__(self, nc, widths):
        super().__init__()
        self.nc = nc
        self.branches = []
        towers = []
        for start in range(0, len(widths), 3):
            levels = widths[start : start + 3]
            c2 = math.ceil(max(levels[0] // 4, 4 * BINS, 16) / 4) * 4
            c3 = max(levels[0], min(2 * nc, 128))
            box = nn.ModuleList(_box_tower(c, c2) for c in levels)
            classes = nn.ModuleList(_class_tower(c, c3, nc) for c in levels)
            towers.append((box, classes))
        for i, (box, classes) in enumerate(towers):
            self.add_module(f"cv{2 * i + 2}", box)
            self.add_module(f"cv{2 * i + 3}", classes)
        for i in range(len(towers)):
            name = "dfl" if i == 0 else f"dfl{i + 1}"
            self.add_module(name, Dfl())
            self.branches.append((f"cv{2 * i + 2}", f"cv{2 * i + 3}", name))
        self.set_biases()

    @torch.no_grad()
    def set_biases(self):
        """Starting biases: 1 for boxes, the prior of an object at 640 px for classes."""
        for box, classes, _ in self.branches:
            for tower, logits, stride in zip(getattr(self, box), getattr(self, classes), STRIDES):
                tower[-1].bias.fill_(1.0)
                logits[-1].bias.fill_(math.log(5 / self.nc / (640 / stride) ** 2))

    def forward(self, xs):
        out = []
        for i, (box, classes, _) in enumerate(self.branches):
            levels = xs[3 * i : 3 * i + 3]
            towers = zip(levels, getattr(self, box), getattr(self, classes))
            out.append([(tower(x), logits(x)) for x, tower, logits in towers])
        return out if self.training else [self.predict(maps, i) for i, maps in enumerate(out)]

    def predict(self, maps, branch):
        """(B, 4 + nc, A) of one branch's maps."""
        box, classes = flatten(maps)
        points, strides = anchor_points([m.shape[2:] for m, _ in maps], STRIDES, box.device, box.dtype)
        distances = getattr(self, self.branches[branch][2])(box)
        xyxy = decode(distances, points) * strides
        centre, size = (xyxy[..., :2] + xyxy[..., 2:]) / 2, xyxy[..., 2:] - xyxy[..., :2]
        return torch.cat((centre, size, classes.sigmoid()), -1).transpose(1, 2)


def flatten(maps):
    """Maps of a branch to box logits (B, A, 64) and class logits (B, A, nc); one copy where memory is NHWC."""
    rows = [[m.permute(0, 2, 3, 1).flatten(1, 2) for m in level] for level in maps]
    return torch.cat([r[0] for r in rows], 1), torch.cat([r[1] for r in rows], 1)
