"""Convolution, batch norm and SiLU."""

import torch.nn.functional as F
from torch import nn


class BatchNorm(nn.BatchNorm2d):
    """Batch norm with the reference's constants.

    The counter `num_batches_tracked` is left alone: the training step advances all counters in one launch.
    """

    def __init__(self, channels):
        super().__init__(channels, eps=1e-3, momentum=0.03)

    def forward(self, x):
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )


class Conv(nn.Module):
    """Convolution without bias, batch norm, SiLU; pads so that stride 1 keeps the size."""

    def __init__(self, c_in, c_out, k=1, s=1, groups=1, act=True):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, k, s, k // 2, groups=groups, bias=False)
        self.bn = BatchNorm(c_out)
        self.act = act

    def forward(self, x):
        x = self.bn(self.conv(x))
        return F.silu(x) if self.act else x
