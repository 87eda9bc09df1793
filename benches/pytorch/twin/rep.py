"""The re-parameterised bottleneck and the CSP block of bottlenecks."""

import torch
import torch.nn.functional as F
from torch import nn

from .conv import Conv


class RepConvN(nn.Module):
    """SiLU of the sum of a 3x3 and a 1x1 branch, each with its own batch norm."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = Conv(c_in, c_out, 3, act=False)
        self.conv2 = Conv(c_in, c_out, 1, act=False)

    def forward(self, x):
        return F.silu(self.conv1(x) + self.conv2(x))


class RepNBottleneck(nn.Module):
    """x + cv2(cv1(x))."""

    def __init__(self, c):
        super().__init__()
        self.cv1 = RepConvN(c, c)
        self.cv2 = Conv(c, c, 3)

    def forward(self, x):
        return x + self.cv2(self.cv1(x))


class RepNCSP(nn.Module):
    """Two 1x1 paths of half the width, one of them through `n` bottlenecks, joined by a 1x1."""

    def __init__(self, c_in, c_out, n):
        super().__init__()
        half = c_out // 2
        self.cv1 = Conv(c_in, half)
        self.cv2 = Conv(c_in, half)
        self.cv3 = Conv(2 * half, c_out)
        self.m = nn.Sequential(*(RepNBottleneck(half) for _ in range(n)))

    def forward(self, x):
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))
