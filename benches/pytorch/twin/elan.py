"""The two layer-aggregation blocks: split, two stages in a row, everything joined by a 1x1."""

import torch
from torch import nn

from .conv import Conv
from .rep import RepNCSP


class _Elan(nn.Module):
    def __init__(self, c_in, c_out, c3, c4, stage):
        super().__init__()
        self.cv1 = Conv(c_in, c3)
        self.cv2 = stage(c3 // 2, c4)
        self.cv3 = stage(c4, c4)
        self.cv4 = Conv(c3 + 2 * c4, c_out)

    def forward(self, x):
        joined = self.cv1(x)
        y2 = self.cv2(joined.chunk(2, 1)[1])
        return self.cv4(torch.cat((joined, y2, self.cv3(y2)), 1))


class RepNCSPELAN4(_Elan):
    """Stages are a RepNCSP of `n` bottlenecks followed by a 3x3."""

    def __init__(self, c_in, c_out, c3, c4, n=1):
        super().__init__(c_in, c_out, c3, c4, lambda a, b: nn.Sequential(RepNCSP(a, b, n), Conv(b, b, 3)))


class ELAN1(_Elan):
    """Stages are plain 3x3."""

    def __init__(self, c_in, c_out, c3, c4):
        super().__init__(c_in, c_out, c3, c4, lambda a, b: Conv(a, b, 3))
