"""Blocks that halve the size: both smooth with a 2x2 average of stride 1 first."""

import torch
import torch.nn.functional as F
from torch import nn

from .conv import Conv


class AConv(nn.Module):
    """Average, then a 3x3 of stride 2."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.cv1 = Conv(c_in, c_out, 3, 2)

    def forward(self, x):
        return self.cv1(F.avg_pool2d(x, 2, 1))


class ADown(nn.Module):
    """Average; one half of the channels through a 3x3 of stride 2, the other through a max pool and a 1x1."""

    def __init__(self, c_in, c_out):
        super().__init__()
        self.cv1 = Conv(c_in // 2, c_out // 2, 3, 2)
        self.cv2 = Conv(c_in // 2, c_out // 2)

    def forward(self, x):
        a, b = F.avg_pool2d(x, 2, 1).chunk(2, 1)
        return torch.cat((self.cv1(a), self.cv2(F.max_pool2d(b, 3, 2, 1))), 1)
