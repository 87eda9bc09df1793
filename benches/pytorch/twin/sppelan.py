"""Pyramid pooling: three chained 5x5 max pools, everything joined by a 1x1."""

import torch
import torch.nn.functional as F
from torch import nn

from .conv import Conv


class SPPELAN(nn.Module):
    """The pools have no parameters, so `cv2` to `cv4` are no modules here."""

    def __init__(self, c_in, c_out, c3):
        super().__init__()
        self.cv1 = Conv(c_in, c3)
        self.cv5 = Conv(4 * c3, c_out)

    def forward(self, x):
        parts = [self.cv1(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.cv5(torch.cat(parts, 1))
