"""Blocks that pass, join or mix tensors of other layers."""

import torch
import torch.nn.functional as F
from torch import nn


class Silence(nn.Module):
    """The image itself."""

    def forward(self, x):
        return x


class Upsample(nn.Module):
    """Nearest, twice the size."""

    def forward(self, x):
        return F.interpolate(x, scale_factor=2.0, mode="nearest")


class Concat(nn.Module):
    """Channels, in the order of the inputs."""

    def forward(self, xs):
        return torch.cat(xs, 1)


class CBLinear(nn.Module):
    """A 1x1 with bias, split into parts of the given widths."""

    def __init__(self, c_in, widths):
        super().__init__()
        self.widths = widths
        self.conv = nn.Conv2d(c_in, sum(widths), 1)

    def forward(self, x):
        return self.conv(x).split(self.widths, 1)


class CBFuse(nn.Module):
    """The last input plus one part of each other input, resized (nearest) to the last one's size."""

    def __init__(self, parts):
        super().__init__()
        self.parts = parts

    def forward(self, xs):
        out = xs[-1]
        for split, part in zip(xs[:-1], self.parts):
            out = out + F.interpolate(split[part], size=xs[-1].shape[2:], mode="nearest")
        return out
