"""A model of the zoo as a module with the reference's parameter names."""

import torch
from torch import nn

from . import zoo
from .conv import Conv
from .down import AConv, ADown
from .elan import ELAN1, RepNCSPELAN4
from .head import Detect
from .route import CBFuse, CBLinear, Concat, Silence, Upsample
from .sppelan import SPPELAN

CONV_LIKE = {b.__name__: b for b in (Conv, RepNCSPELAN4, ELAN1, AConv, ADown, SPPELAN)}


class Model(nn.Module):
    """Layers in the order of the file. Images are (B, 3, H, W) in 0 to 1, both sides multiples of 32."""

    def __init__(self, name, nc=None):
        super().__init__()
        rows, self.nc = zoo.rows(name, nc)
        self.inputs = [row.inputs for row in rows]
        self.model = nn.ModuleList()
        widths = {-1: 3}
        for index, row in enumerate(rows):
            layers, c = [], [widths[i] for i in row.inputs]
            for _ in range(row.repeats):
                layer, out = _build(row, c)
                layers.append(layer)
                c = [out]
            self.model.append(layers[0] if len(layers) == 1 else nn.Sequential(*layers))
            widths[index] = out
        # A tensor is let go after its last reader.
        last = {i: index for index, inputs in enumerate(self.inputs) for i in inputs}
        self.dead = [[i for i, reader in last.items() if reader == index] for index in range(len(rows))]

    def forward(self, images):
        kept = {-1: images}
        for index, (layer, inputs) in enumerate(zip(self.model, self.inputs)):
            xs = [kept[i] for i in inputs]
            # Silence lists the row before it, which is the image.
            kept[index] = layer(xs if isinstance(layer, (Concat, CBFuse, Detect)) else xs[0])
            for i in self.dead[index]:
                del kept[i]
        return kept[len(self.inputs) - 1]


def _build(row, c):
    """A block and its output width; CBLinear's is the list of its parts."""
    if row.block in CONV_LIKE:
        return CONV_LIKE[row.block](c[0], *row.args), row.args[0]
    if row.block == "Silence":
        return Silence(), c[0]
    if row.block == "Upsample":
        return Upsample(), c[0]
    if row.block == "Concat":
        return Concat(), sum(c)
    if row.block == "CBLinear":
        return CBLinear(c[0], row.args[0]), row.args[0]
    if row.block == "CBFuse":
        return CBFuse(row.args[0]), c[-1]
    if row.block in ("DDetect", "DualDDetect"):
        return Detect(row.args[0], c), None
    raise ValueError(f"unknown block {row.block}")


def head_map(level):
    """A level's raw map as files list it: 64 box channels, then the classes."""
    return torch.cat(level, 1)
