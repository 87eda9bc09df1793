"""Every convolution of a model at a given input, found by a run without memory."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import nn

from .head import Dfl
from .model import Model


@dataclass(frozen=True)
class ConvShape:
    """A convolution of one image."""

    c_in: int
    c_out: int
    k: int
    stride: int
    groups: int
    height: int  # of the input
    width: int
    needs_data_gradient: bool  # not for the one that reads the image

    @property
    def out(self):
        """Height and width of the output."""
        return tuple((n + 2 * (self.k // 2) - self.k) // self.stride + 1 for n in (self.height, self.width))

    @property
    def macs(self):
        """Multiply-accumulates of a forward pass."""
        h, w = self.out
        return h * w * self.c_out * (self.c_in // self.groups) * self.k * self.k

    def __str__(self):
        groups = f" groups {self.groups}" if self.groups > 1 else ""
        stride = f" /{self.stride}" if self.stride > 1 else ""
        return f"{self.k}x{self.k}{stride} {self.c_in}->{self.c_out} @{self.height}x{self.width}{groups}"


def convolutions(name, height, width, nc=None):
    """Counter of the convolutions of a training forward pass, the fixed one of the box distribution left out."""
    with torch.device("meta"):
        model = Model(name, nc).train()
        found, handles = Counter(), []

        def note(module, inputs):
            x = inputs[0]
            k, s = module.kernel_size[0], module.stride[0]
            shape = (module.in_channels, module.out_channels, k, s, module.groups, *x.shape[2:], x.requires_grad)
            found[ConvShape(*shape)] += 1

        fixed = {id(m.conv) for m in model.modules() if isinstance(m, Dfl)}
        for module in model.modules():
            if isinstance(module, nn.Conv2d) and id(module) not in fixed:
                handles.append(module.register_forward_pre_hook(note))
        model(torch.empty(1, 3, height, width))
    return found


def step_flops(found, batch):
    """Floating-point operations of a step's convolutions: forward, weight gradient and the data gradients needed."""
    return batch * sum(2 * s.macs * (3 if s.needs_data_gradient else 2) * n for s, n in found.items())
